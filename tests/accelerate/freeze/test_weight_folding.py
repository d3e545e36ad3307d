"""Norms are folded into convolutions, and weights become constants in inference."""

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from corewise.accelerate.freeze.weight_folding import count_norms, fold_module
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.registry import find_workload

Params = Callable[..., TrialParameters]
Write = Callable[[str], str]
LINEAR = """
import torch
def make(batch, mode):
    return torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 8)), (torch.randn(batch, 32),)
"""


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def with_statistics(module: nn.Module) -> nn.Module:
    """Return the module in evaluation mode, with norms that have statistics."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return module.eval()


class Odd(nn.Module):
    """Norms that must stay: before a convolution, after a shared one, and after one with another reader."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.before = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.shared, self.after_shared = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.read_twice, self.after_read_twice = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last, self.folds = nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x: Any) -> Any:
        x = self.before(torch.relu(self.first(x)))
        x = self.after_shared(self.shared(x)) + self.shared(x)
        y = self.read_twice(x)
        return self.folds(self.last(self.after_read_twice(y) + y))


def test_only_norms_directly_after_an_unshared_convolution_are_folded() -> None:
    odd = with_statistics(Odd())
    made, _ = fold_module(odd)
    x = torch.randn(2, 3, 5, 5)
    assert count_norms(made) == count_norms(odd) - 1 == 3
    assert torch.allclose(made(x), odd(x), rtol=1e-4, atol=1e-5)


def test_a_folded_network_computes_the_same_and_leaves_the_original_alone() -> None:
    description: Any = find_workload("resnet18")
    network = with_statistics(build_network(description.build_layers({"num_classes": 10}), seed=3)).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    made, x = fold_module(network)[0], torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        wanted, got = network(x), made(x)
    assert count_norms(made) == 0
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-12
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_module_that_cannot_be_traced_says_so() -> None:
    class Chooser(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(Unsupported, match=r"freezing fold: torch\.fx cannot trace this module"):
        fold_module(Chooser())


@pytest.mark.parametrize(
    "point",
    [
        {},
        {"memory_format": "channels_last"},
        {"memory_format": "blocked"},
        {"execution": "script"},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_norms_are_folded_at_every_point_and_counted(params: Params, alone: RankContext, point: dict[str, Any]) -> None:
    job = prepare(params(workload="resnet18", image_size=32, batch=2, freezing="fold", **point), alone)
    check = job.check()
    job.step()
    facts = job.read_facts()
    assert check.passed, check
    assert facts["num_folded"] == 20
    assert facts["weights_memory_format"] == point.get("memory_format", "contiguous")


@pytest.mark.parametrize("workload", ["resnet18", "lstm_ensemble", "transformer"])
def test_scripted_weights_become_constants(params: Params, alone: RankContext, workload: str) -> None:
    sizes = {"resnet18": {"image_size": 32}, "lstm_ensemble": {"time_steps": 4}, "transformer": {"layers": 1}}
    job = prepare(params(workload=workload, batch=2, execution="script", freezing="full", **sizes[workload]), alone)
    check = job.check()
    job.step()
    assert check.passed, check
    assert job.read_facts()["num_weights_left"] == 0


@pytest.mark.slow
def test_the_compiler_prepares_weights(
    params: Params, alone: RankContext, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    with warnings.catch_warnings():
        # The compiler warns.
        warnings.simplefilter("ignore")
        job = prepare(params(workload=write(LINEAR), execution="compile", freezing="full", batch=2), alone)
        check = job.check()
        job.step()
    assert check.passed, check
    assert job.read_facts()["num_prepared_weights"] == 2


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"mode": "train", "freezing": "fold"}, "freezing fold: weights cannot be constants in training"),
        ({"mode": "train", "freezing": "full", "execution": "script"}, "weights cannot be constants in training"),
        ({"freezing": "full", "execution": "malleable"}, "malleable execution does not support it"),
        ({"freezing": "full", "memory_format": "blocked"}, "chooses the layout of weights"),
        ({"freezing": "full", "dtype": "float64"}, "in float32 or bfloat16, not in float64"),
        ({"freezing": "full", "execution": "script", "math": "vanilla"}, "needs oneDNN on the CPU"),
        ({"freezing": "full", "execution": "script", "dtype": "bfloat16"}, "do not follow autocast"),
        ({"workload": "alexnet", "image_size": 64, "freezing": "fold"}, "no batch normalisation follows"),
        ({"workload": "matmul", "freezing": "fold"}, "freezing fold has no effect: matmul is a single operator"),
    ],
    ids=str,
)
def test_freezing_that_does_not_exist_is_infeasible_with_its_reason(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    given: dict[str, Any] = {"workload": "resnet18", **point}
    if given["workload"] == "resnet18":
        given["image_size"] = 32
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**given), alone)


def test_what_onednn_cannot_run_frozen_is_infeasible(params: Params, alone: RankContext) -> None:
    point = params(workload="alexnet", image_size=64, num_classes=10, execution="script", freezing="full")
    with pytest.raises(Infeasible, match="freezing full: input size is not divisible"):
        prepare(point, alone).check()


FREEZES = """
import sys, torch, corewise
layers = (torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
model = torch.nn.Sequential(*layers)
corewise.freeze(model.eval(), (torch.randn(1, 3, 4, 4),))
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""


def test_freezing_imports_neither_an_algebra_system_nor_the_compiler() -> None:
    completed = subprocess.run([sys.executable, "-c", FREEZES], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["[]"]
