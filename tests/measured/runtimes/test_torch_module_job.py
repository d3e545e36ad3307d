"""Trials of models and products on torch."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, MissingPart, RankContext
from corewise.measured.runtimes.registry import find_runtime

Params = Callable[..., TrialParameters]
POINTS = [
    {},
    {"memory_format": "channels_last"},
    {"memory_format": "channels_last", "dtype": "bfloat16"},
    {"dtype": "float64"},
    {"math": "vanilla"},
    {"execution": "script"},
    {"execution": "script", "dtype": "bfloat16"},
]
BLOCKED = [{"memory_format": "blocked"}, {"memory_format": "blocked", "dtype": "bfloat16"}]


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


@pytest.mark.parametrize("point", [*POINTS, *BLOCKED], ids=str)
def test_inference_is_correct_at_every_point(params: Params, alone: RankContext, point: dict[str, Any]) -> None:
    if point in BLOCKED and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes no bfloat16 on this CPU")
    job = prepare(params(workload="resnet18", image_size=64, batch=2, **point), alone)
    check = job.check()
    job.step()
    facts = job.read_facts()
    assert check.passed, check
    assert job.independent
    assert facts["weights_memory_format"] == point.get("memory_format", "contiguous")
    assert facts["output_dtype"] == point.get("dtype", "float32")
    assert facts["onednn_enabled"] is (point.get("math") != "vanilla")
    assert facts["num_threads"] == 1
    assert job.read_loss() is None


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_training_is_correct_at_every_point(params: Params, alone: RankContext, point: dict[str, Any]) -> None:
    job = prepare(params(workload="resnet18", mode="train", image_size=32, batch=4, **point), alone)
    assert job.check().passed
    before = [p.detach().clone() for p in job._module.parameters()]
    job.step()
    assert 5 < job.read_loss() < 9
    assert all(not torch.equal(p, q) for p, q in zip(before, job._module.parameters(), strict=True))
    assert job.samples_per_step == 4


def test_alexnet_trains_with_dropout_and_is_checked_without(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="alexnet", mode="train", image_size=64, num_classes=10, batch=2), alone)
    assert job.check().passed
    assert all(m.training for m in job._module.modules())
    job.step()
    assert math.isfinite(job.read_loss())


def test_blocked_pooling_leaves_the_blocks_where_onednn_cannot_pool(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="alexnet", image_size=64, num_classes=10, memory_format="blocked"), alone)
    assert job.check().passed


def test_the_check_leaves_no_trace(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="resnet18", mode="train", image_size=32, batch=2), alone)
    before = {name: value.clone() for name, value in job._module.state_dict().items()}
    assert job.check().passed
    after = job._module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in job._module.parameters())
    assert all(m.training for m in job._module.modules())


def test_random_labels_cannot_be_memorized(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="resnet18", mode="train", image_size=32, batch=4), alone)
    losses = []
    for _ in range(25):
        job.step()
        losses.append(job.read_loss())
    assert all(5 < loss < 9 for loss in losses)


def test_synthetic_input_rotates(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="resnet18", image_size=32, batch=2), alone)
    images = [job._batches.next()[0][0] for _ in range(5)]
    assert not torch.equal(images[0], images[1])
    assert torch.equal(images[0], images[4])
    assert job.read_facts()["num_distinct_batches"] == 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_product_passes_its_check(params: Params, alone: RankContext, dtype: str, batch: int) -> None:
    job = prepare(params(dtype=dtype, size=48, batch=batch), alone)
    assert job.check().passed
    job.step()
    wanted = job._a.double() @ job._b.double()
    assert torch.allclose(job._c.double(), wanted, rtol=0.05, atol=0.05)
    assert job.samples_per_step == batch
    assert job.read_facts()["output_dtype"] == dtype


def test_a_product_with_nan_fails_its_check(params: Params, alone: RankContext) -> None:
    job = prepare(params(size=8), alone)
    job._a[0, 0] = math.nan
    assert not job.check().passed


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"mode": "train"}, "matmul has no mode 'train'"),
        ({"execution": "compile"}, "execution compile has no effect"),
        ({"workload": "resnet18", "dtype": "float16"}, "float16 on a CPU"),
        ({"workload": "resnet18", "mode": "train", "memory_format": "blocked"}, "blocked: torch cannot train"),
        ({"workload": "resnet18", "memory_format": "blocked", "math": "vanilla"}, "blocked: it needs oneDNN"),
        ({"workload": "resnet18", "memory_format": "blocked", "dtype": "float64"}, "not float64"),
        (
            {"workload": "resnet18", "memory_format": "blocked", "execution": "script"},
            "can neither compile nor script its modules",
        ),
        ({"workload": "alexnet", "image_size": 32}, "image_size 32 is too small"),
        ({"workload": "resnet18", "image_sise": 32}, "no parameter 'image_sise'"),
    ],
    ids=str,
)
def test_a_point_that_does_not_exist_is_infeasible_with_its_reason(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**point), alone)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_infeasible(params: Params, alone: RankContext) -> None:
    with pytest.raises(Infeasible, match="torch sees no CUDA device"):
        prepare(params(device="cuda"), alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_gpu_computes_correct_results(params: Params, alone: RankContext, mode: str, dtype: str) -> None:
    job = prepare(params(workload="resnet50", mode=mode, image_size=64, batch=4, device="cuda", dtype=dtype), alone)
    check = job.check()
    job.step()
    assert check.passed, check


def test_versions_name_torch_and_its_libraries() -> None:
    runtime = find_runtime("torch")
    runtime.warm()
    assert runtime.read_versions()["torch"] == torch.__version__
    assert {"python", "numpy", "openmp"} <= set(runtime.read_versions())


def test_a_missing_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPart, match=r"pip install 'corewise\[torch\]'"):
        find_runtime("torch").warm()


def test_an_ordinary_trial_imports_nothing_heavy_after_warming(params: Params) -> None:
    program = f"""
import os, sys, json
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.parameters import TrialParameters
runtime = find_runtime("torch")
runtime.warm()
before = set(sys.modules)
params = {params(workload="resnet18", image_size=32, batch=2, interop_threads=3).to_mapping()!r}
for point in (params, dict(params, mode="train"), {params(size=8, interop_threads=3).to_mapping()!r}):
    job = runtime.prepare(TrialParameters.from_mapping(point), RankContext(0, 1, "", 1))
    job.check(); job.step(); facts = job.read_facts(); job.close()
print(json.dumps([facts["num_interop_threads"], sorted(set(sys.modules) - before)]), flush=True)
# Ranks end this way: threads of a pool may abort a process during Python's shutdown.
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    num_interop_threads, imported = json.loads(done.stdout)
    assert num_interop_threads == 3
    assert "torch._dynamo" not in imported
    assert len(imported) < 10, imported
