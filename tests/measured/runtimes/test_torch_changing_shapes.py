"""Factories whose shapes change are described by their shapes."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime

Params = Callable[..., TrialParameters]
Write = Callable[[str], str]
RANDOM_SIZE = """
import random, torch
def make(batch, mode):
    size = random.randint(8, 4000)
    return torch.nn.Linear(size, 2), (torch.randn(batch, size),)
"""
CUT = """
import torch
class Cut(torch.nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out[:3] if x.dtype == torch.float32 else out
def make(batch, mode):
    return Cut(8, 2), (torch.randn(batch, 8),)
"""


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def test_sizes_that_a_factory_draws_are_the_same_in_every_process(
    params: Params, alone: RankContext, write: Write
) -> None:
    name = write(RANDOM_SIZE)
    shapes = [prepare(params(workload=name, batch=batch), alone).read_facts()["shapes"] for batch in (2, 2, 4)]
    assert len(set(shapes)) == 1
    assert "parameters, inputs of " in shapes[0]


def test_outputs_of_another_shape_are_reported_with_both_shapes(
    params: Params, alone: RankContext, write: Write
) -> None:
    check = prepare(params(workload=write(CUT), batch=4), alone).check()
    assert check.error == float("inf")
    assert "(expected shapes (4, 2), the module returned (3, 2))" in check.reference
