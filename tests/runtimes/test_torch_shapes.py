"""Factories whose shapes change: what is told of them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.runtimes.base import RankContext  # noqa: E402
from corewise.runtimes.registry import find_runtime  # noqa: E402

Params = Callable[..., dict[str, Any]]
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


def prepare(params: dict[str, Any], context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def test_sizes_that_a_factory_draws_are_the_same_in_every_process(
    params: Params, alone: RankContext, write: Write
) -> None:
    name = write(RANDOM_SIZE)
    told = [prepare(params(workload=name, batch=batch), alone).facts()["shapes"] for batch in (2, 2, 4)]
    assert len(set(told)) == 1
    assert "parameters, inputs of " in told[0]


def test_outputs_of_another_shape_are_told_with_both(
    params: Params, alone: RankContext, write: Write
) -> None:
    check = prepare(params(workload=write(CUT), batch=4), alone).check()
    assert check.error == float("inf")
    assert "(shapes (4, 2), where the module gave (3, 2))" in check.reference
