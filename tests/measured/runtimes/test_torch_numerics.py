"""Short float32 products and flushed denormals are set, verified and tolerated by the check."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.numerical_check import CheckCase, check_module
from corewise.measured.runtimes.torch.numerics import check_denormals_flushed, measure_float32_product_error
from corewise.measured.runtimes.torch.settings import Settings

Params = Callable[..., TrialParameters]
HAS_AMX = "amx_bf16" in Path("/proc/cpuinfo").read_text()


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


@pytest.mark.parametrize("point", [{"size": 64}, {"workload": "resnet18", "image_size": 32, "batch": 2}], ids=str)
def test_short_products_are_proved_or_refused(params: Params, alone: RankContext, point: dict[str, Any]) -> None:
    trial = params(float32_precision="bf16", **point)
    if not HAS_AMX:
        with pytest.raises(Infeasible, match="oneDNN ignores the setting on this CPU"):
            prepare(trial, alone)
        return
    job = prepare(trial, alone)
    assert job.check().passed
    assert job.read_facts()["float32_product_error"] > 1e-5


def test_by_default_products_are_as_exact_as_float32() -> None:
    assert 0 < measure_float32_product_error() < 1e-5


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"math": "vanilla"}, "on a CPU, only oneDNN supports it"),
        ({"dtype": "bfloat16"}, "float32_precision bf16: dtype is bfloat16"),
    ],
    ids=str,
)
def test_short_products_that_cannot_be_are_refused(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(float32_precision="bf16", size=8, **point), alone)


class OffByOnePercent(torch.nn.Linear):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y * 1.01 if y.dtype == torch.float32 else y


@pytest.mark.parametrize(("precision", "passes"), [("default", False), ("tf32", True), ("bf16", True)])
def test_the_check_allows_for_what_products_are_computed_in(precision: str, passes: bool) -> None:
    settings = Settings(torch.device("cpu"), "float32", "contiguous", "eager", training=False)
    settings = dataclasses.replace(settings, float32_precision=precision)
    module, inputs = OffByOnePercent(4, 3).eval(), (torch.randn(2, 4),)
    check, _ = check_module(module, module, settings, CheckCase(inputs, inputs))
    assert check.passed is passes


FLUSHED = """
import json, sys
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.parameters import TrialParameters
runtime = find_runtime("torch")
runtime.warm()
import torch
params = json.loads(sys.argv[1])
if params.pop("late"):
    torch.set_num_threads(2)
    # This starts threads before the setting.
    torch.ones(2**20).mul(2)
try:
    job = runtime.prepare(TrialParameters.from_mapping(params), RankContext(0, 1, "", 2))
    job.step()
    small = torch.full((2**18,), 1e-30) * torch.full((2**18,), 1e-10)
    num_left = int(small.view(torch.int32).ne(0).sum())
    results = [job.check().passed, job.read_facts().get("denormals_flushed"), num_left]
except Infeasible as problem:
    results = [str(problem)]
print(json.dumps(results))
"""


def run_flushed_job(params: TrialParameters, late: bool) -> list[Any]:
    command = [sys.executable, "-c", FLUSHED, json.dumps({**params.to_mapping(), "late": late})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_denormals_are_flushed_in_every_thread_when_asked(params: Params) -> None:
    assert run_flushed_job(params(size=16, threads=2, denormals="flush"), late=False) == [True, True, 0]


def test_denormals_are_left_alone_by_default(params: Params, alone: RankContext) -> None:
    job = prepare(params(size=16), alone)
    job.step()
    assert "denormals_flushed" not in job.read_facts()
    assert not check_denormals_flushed()


def test_denormals_that_some_thread_keeps_are_refused(params: Params) -> None:
    [reason] = run_flushed_job(params(size=16, threads=2, denormals="flush"), late=True)
    assert reason == "denormals flush: torch does not flush denormals in all of its threads on this CPU"
