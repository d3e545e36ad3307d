"""Custom torch modules and steps."""

import dataclasses
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext, WorkloadError
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.user_module import compute_custom_loss, inspect_traits
from corewise.measured.workloads.custom import CustomModule

Params = Callable[..., TrialParameters]
Write = Callable[[str], str]

MODULE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.drop, self.head = torch.nn.Dropout(0.5), torch.nn.Linear(8, 5)
    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(self.drop(x))
def make(batch, mode):
    return Net(), (torch.randn(batch, 3, 8, 8),)
def labelled(batch, mode):
    return Net(), (torch.randn(batch, 3, 8, 8),), torch.randint(5, (batch,))
"""
WRONG = """
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return {spoiled} if y.dtype == torch.float32 else y
def make(batch, mode):
    return Net(4, 3), (torch.randn(batch, 4),)
"""
WRONG_GRADIENT = """
import torch
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2 if gradient.dtype == torch.float32 else gradient
class Net(torch.nn.Linear):
    def forward(self, x):
        return Halved.apply(super().forward(x))
def make(batch, mode):
    return Net(4, 3), (torch.randn(batch, 4),)
"""


KEYWORDS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 3)
    def forward(self, *, scale, values, labels=None):
        logits = self.head(values) * scale
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
def make(batch, mode):
    inputs = {"values": torch.randn(batch, 4), "scale": 2.0, "labels": torch.randint(3, (batch,))}
    return Net(), inputs
def misnamed(batch, mode):
    return Net(), {"not a name": torch.randn(batch, 4)}
"""


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_mapping_of_inputs_is_passed_by_name(params: Params, alone: RankContext, write: Write, mode: str) -> None:
    job = prepare(params(workload=write(KEYWORDS), mode=mode, batch=5), alone)
    check = job.check()
    job.step()
    assert check.passed, check


def test_a_key_that_is_no_name_of_an_argument_is_refused(params: Params, alone: RankContext, write: Write) -> None:
    workload = write(KEYWORDS).replace(":make", ":misnamed")
    with pytest.raises(WorkloadError, match=r"the key 'not a name'; keys are names of the module's arguments"):
        prepare(params(workload=workload, mode="infer", batch=5), alone)


def test_a_model_trains_with_the_loss_that_it_returns() -> None:
    own = torch.tensor(0.25)
    outputs = {"loss": own, "logits": torch.ones(2, 3)}
    assert compute_custom_loss(outputs, None) is own
    # A loss for each sample is an output like others.
    assert compute_custom_loss({"loss": torch.full((2,), 3.0)}, None) == 9


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize(
    "point",
    [{}, {"dtype": "bfloat16"}, {"dtype": "float64"}, {"memory_format": "channels_last"}, {"execution": "script"}],
    ids=str,
)
def test_a_module_is_run_and_checked_as_the_trial_asks(
    params: Params, alone: RankContext, write: Write, mode: str, point: dict[str, Any]
) -> None:
    job = prepare(params(workload=write(MODULE), mode=mode, batch=3, **point), alone)
    check = job.check()
    job.step()
    assert check.passed, check
    assert "float64" in check.reference
    assert job.samples_per_step == 3
    assert job.read_facts()["output_dtype"] == point.get("dtype", "float32")
    assert (job.read_loss() is None) is (mode == "infer")


def test_whole_number_targets_are_classes(params: Params, alone: RankContext, write: Write) -> None:
    job = prepare(params(workload=write(MODULE).replace(":make", ":labelled"), mode="train", batch=4), alone)
    assert job.check().passed
    job.step()
    # The loss is near the logarithm of five.
    assert 0.5 < job.read_loss() < 4


def test_the_loss_depends_on_the_targets() -> None:
    outputs = torch.tensor([[1.0, 3.0]])
    assert compute_custom_loss(outputs, None).item() == 5
    assert compute_custom_loss(outputs, torch.tensor([[0.0, 3.0]])).item() == 0.5
    assert compute_custom_loss(outputs, torch.tensor([1])).item() == pytest.approx(0.126928)
    assert compute_custom_loss({"a": outputs, "b": (outputs, "text")}, None).item() == 10


@pytest.mark.parametrize("spoiled", ["y * 1.01", "y * float('nan')", "y + float('inf')", "y[:, :2]", "y.tolist()"])
def test_wrong_outputs_fail_the_check(params: Params, alone: RankContext, write: Write, spoiled: str) -> None:
    job = prepare(params(workload=write(WRONG.format(spoiled=spoiled)), batch=4), alone)
    assert not job.check().passed


def test_wrong_gradients_fail_the_check(params: Params, alone: RankContext, write: Write) -> None:
    assert prepare(params(workload=write(WRONG_GRADIENT), batch=4), alone).check().passed
    check = prepare(params(workload=write(WRONG_GRADIENT), batch=4, mode="train"), alone).check()
    assert not check.passed
    assert check.error == pytest.approx(0.5)
    assert "gradients" in check.reference


def test_a_module_that_cannot_run_in_float64_is_compared_in_its_dtype(
    params: Params, alone: RankContext, write: Write
) -> None:
    name = write(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x): return super().forward(x) @ torch.ones(3, 3)\n"
        "def make(batch, mode): return Net(4, 3), (torch.randn(batch, 4),)\n"
    )
    for mode in ("infer", "train"):
        check = prepare(params(workload=name, batch=2, mode=mode), alone).check()
        assert check.passed
        assert "does not run in float64" in check.reference


def test_a_custom_step_is_called(params: Params, alone: RankContext, write: Write) -> None:
    job = prepare(params(workload=write("def make(batch, mode): return {'step': dict, 'samples_per_step': 9}")), alone)
    job.step()
    assert job.samples_per_step == 9
    assert job.read_facts()["num_threads"] == 1


def test_a_check_that_says_wrong_fails(params: Params, alone: RankContext, write: Write) -> None:
    job = prepare(
        params(workload=write("def make(batch, mode): return {'step': dict, 'check': lambda: (0.2, 0.1)}")), alone
    )
    check = job.check()
    assert not check.passed
    assert (check.error, check.tolerance) == (0.2, 0.1)


@pytest.mark.parametrize(
    "point", [{"dtype": "bfloat16"}, {"execution": "compile"}, {"memory_format": "channels_last"}], ids=str
)
def test_a_step_decides_for_itself_what_the_trial_cannot_impose(
    params: Params, alone: RankContext, write: Write, point: dict[str, Any]
) -> None:
    with pytest.raises(Infeasible, match="a custom step decides it"):
        prepare(params(workload=write("def make(batch, mode): return {'step': dict}"), **point), alone)


@pytest.mark.parametrize(
    ("returned", "mode", "message"),
    [
        ("'net', (torch.ones(2),)", "infer", "returned a str instead of a torch.nn.Module"),
        ("torch.nn.Linear(2, 2), ()", "infer", "no tensor among the inputs"),
        ("torch.nn.Linear(2, 2), (torch.ones(1, 2),), 'cat'", "train", "a str instead of a tensor of targets"),
        ("torch.nn.ReLU(), (torch.ones(2),)", "train", "no parameters to train; measure it with mode infer"),
    ],
)
def test_invalid_results_of_a_factory_are_reported(
    params: Params, alone: RankContext, write: Write, returned: str, mode: str, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        prepare(params(workload=write(f"import torch\ndef make(batch, mode): return {returned}"), mode=mode), alone)


def test_a_module_torchscript_cannot_take_is_infeasible(params: Params, alone: RankContext, write: Write) -> None:
    name = write(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, *xs, **options): return super().forward(xs[0])\n"
        "def make(batch, mode): return Net(4, 3), (torch.randn(batch, 4),)\n"
    )
    with pytest.raises(Infeasible, match=r"execution script: torch\.jit\.script does not support this module"):
        prepare(params(workload=name, execution="script"), alone)


def test_a_compiled_module_is_checked_in_the_shape_it_is_compiled_for(
    params: Params, alone: RankContext, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    # One kernel needs no pool of compiler processes.
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    name = write(
        "import torch\n"
        "def make(batch, mode):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()), (torch.randn(batch, 4),)\n"
    )
    with warnings.catch_warnings():
        # The compiler warns.
        warnings.simplefilter("ignore")
        job = prepare(params(workload=name, execution="compile", batch=2), alone)
        check = job.check()
        job.step()
    assert check.passed, check
    assert job.read_facts()["first_call_s"] > 0
    assert any((tmp_path / "compiled").rglob("*.so"))


def build_net(*layers: Any) -> Any:
    return torch.nn.Sequential(*layers)


IMAGES, TOKENS = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, dtype=torch.int64)


@pytest.mark.parametrize(
    ("module", "inputs", "traits"),
    [
        (build_net(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)), IMAGES, ("takes_images", "has_batch_norm")),
        (build_net(torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout2d(0.1)), IMAGES, ("takes_images", "has_dropout")),
        (build_net(torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4), torch.nn.Dropout(0.0)), TOKENS, ()),
        # Four dimensions alone are no image, and a convolution alone takes none.
        (build_net(torch.nn.Linear(8, 4)), IMAGES, ()),
        (build_net(torch.nn.Conv1d(8, 4, 3), torch.nn.BatchNorm1d(4)), torch.zeros(2, 8, 8), ("has_batch_norm",)),
        # Layers that pass a probability to a function.
        (torch.nn.LSTM(4, 4, 2, dropout=0.3), torch.zeros(2, 8, 4), ("has_dropout",)),
        (torch.nn.MultiheadAttention(4, 2, dropout=0.1), torch.zeros(2, 8, 4), ("has_dropout",)),
        (torch.nn.MultiheadAttention(4, 2), torch.zeros(2, 8, 4), ()),
    ],
)
def test_a_module_says_which_settings_apply_to_it(module: Any, inputs: Any, traits: tuple[str, ...]) -> None:
    found = inspect_traits(CustomModule(module, (inputs,)))
    assert {name for name, has in found.items() if has} == set(traits)
    assert set(found) == {"takes_images", "has_batch_norm", "has_dropout"}


def test_the_facts_of_a_trial_hold_what_the_module_says(params: Params, alone: RankContext, write: Write) -> None:
    job = prepare(params(workload=write(MODULE), mode="infer", batch=3), alone)
    job.check()
    job.step()
    assert job.read_facts()["traits"] == {"takes_images": True, "has_batch_norm": True, "has_dropout": True}


def test_planning_of_malleable_fits_the_time_limit_of_the_run(params: Params, alone: RankContext, write: Write) -> None:
    trial = params(workload=write(MODULE), mode="infer", batch=3, execution="malleable")
    limits = {}
    for limit_s in (None, 600.0, 8.0):
        job = prepare(trial, dataclasses.replace(alone, time_limit_s=limit_s))
        limits[limit_s] = job._configured._options["planning_s"]
        job.close()
    assert limits == {None: 20.0, 600.0: 20.0, 8.0: 2.0}


COUNTING = """
import pathlib, torch
class Net(torch.nn.Linear):
    def forward(self, x):
        with open({calls!r}, "a") as file:
            file.write(str(x.dtype) + chr(10))
        return super().forward(x) * {factor}
def make(batch, mode):
    torch.manual_seed({seed})
    return Net(4, 3), (torch.randn(batch, 4),), torch.randn(batch, 3)
"""


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_processes_with_the_same_values_share_the_reference_of_their_check(
    params: Params, alone: RankContext, write: Write, tmp_path: Path, mode: str
) -> None:
    context = dataclasses.replace(alone, references=str(tmp_path / "references"))
    calls = tmp_path / "calls"

    def check(batch: int = 3, seed: int = 1) -> tuple[bool, bool]:
        """Return whether the check passed, and whether it computed a reference."""
        calls.write_text("")
        workload = write(COUNTING.format(calls=str(calls), seed=seed, factor=1))
        job = prepare(params(workload=workload, mode=mode, batch=batch), context)
        return job.check().passed, "torch.float64" in calls.read_text()

    assert [check(), check(), check(batch=4), check(seed=2)] == [
        (True, True),
        (True, False),
        (True, True),
        (True, True),
    ]


def test_a_wrong_result_fails_against_a_shared_reference(
    params: Params, alone: RankContext, write: Write, tmp_path: Path
) -> None:
    context = dataclasses.replace(alone, references=str(tmp_path / "references"))
    for factor, passed in ((1, True), (2, False)):
        workload = write(COUNTING.format(calls=str(tmp_path / "calls"), seed=1, factor=factor))
        assert prepare(params(workload=workload, mode="infer", batch=3), context).check().passed is passed
