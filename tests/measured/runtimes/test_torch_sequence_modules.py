"""The LSTM ensemble and the transformer on torch, against numpy and torch's own counts."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.module_preparation import convert_to_torchscript
from corewise.measured.runtimes.torch.modules.network import build_module, build_network
from corewise.measured.workloads.registry import find_workload

Params = Callable[..., TrialParameters]
Array = NDArray[np.float64]
ENSEMBLE = {"time_steps": 5, "features": 3, "hidden": 4, "members": 2, "num_classes": 6}
ENCODER = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 12, "tokens": 5, "num_classes": 6}
SMALL = {"lstm_ensemble": ENSEMBLE, "transformer": ENCODER}
POINTS = [
    {},
    {"dtype": "bfloat16"},
    {"dtype": "float64"},
    {"math": "vanilla"},
    {"execution": "script"},
    {"execution": "script", "dtype": "bfloat16"},
]
each_model = pytest.mark.parametrize("name", SMALL)
each_mode = pytest.mark.parametrize("mode", ["infer", "train"])


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def numpy_lstm(weights: list[Array], x: Array) -> Array:
    """The outputs of one direction; x is (steps, samples, features), gates are in torch's order."""
    of_input, of_state, input_bias, state_bias = weights
    state = cell = np.zeros((x.shape[1], of_state.shape[1]))
    outputs = []
    for step in x:
        gates = step @ of_input.T + input_bias + state @ of_state.T + state_bias
        entry, forget, new, exit_ = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(new)
        state = sigmoid(exit_) * np.tanh(cell)
        outputs.append(state)
    return np.stack(outputs)


def numpy_ensemble(weights: list[Array], x: Array) -> Array:
    *recurrent, head, bias = weights
    steps = x.transpose(1, 0, 2)
    total: Any = 0.0
    for member in range(ENSEMBLE["members"]):
        ahead, back = (recurrent[8 * member + 4 * i : 8 * member + 4 * i + 4] for i in range(2))
        reverse = numpy_lstm(back, steps[::-1])[::-1]
        total = total + np.concatenate([numpy_lstm(ahead, steps), reverse], axis=2)
    return np.asarray(total.mean(axis=0) @ head.T + bias)


def normalised(x: Array, scale: Array, shift: Array) -> Array:
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / deviation * scale + shift)


def numpy_attention(joined: Array, num_heads: int) -> Array:
    outputs = []
    for head in zip(*(np.split(part, num_heads, axis=-1) for part in np.split(joined, 3, axis=-1)), strict=True):
        query, key, value = head
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        seen = np.exp(scores - scores.max(axis=-1, keepdims=True))
        outputs.append(seen / seen.sum(axis=-1, keepdims=True) @ value)
    return np.concatenate(outputs, axis=-1)


def numpy_encoder(weights: list[Array], x: Array) -> Array:
    *layers, head, bias = weights
    for i in range(0, len(layers), 12):
        into, into_b, out, out_b, scale, shift, wide, wide_b, back, back_b, scale2, shift2 = layers[i : i + 12]
        attention = numpy_attention(x @ into.T + into_b, ENCODER["heads"]) @ out.T + out_b
        x = normalised(x + attention, scale, shift)
        widened = np.maximum(x @ wide.T + wide_b, 0) @ back.T + back_b
        x = normalised(x + widened, scale2, shift2)
    return np.asarray(x.mean(axis=1) @ head.T + bias)


@pytest.mark.parametrize("how", ["eager", "scripted", "side by side"])
@pytest.mark.parametrize(("name", "reference"), [("lstm_ensemble", numpy_ensemble), ("transformer", numpy_encoder)])
def test_the_outputs_are_those_of_numpy(name: str, reference: Callable[[list[Array], Array], Array], how: str) -> None:
    model: Any = find_workload(name)
    network = build_network(model.build_layers(SMALL[name]), seed=7, side_by_side=how == "side by side").double()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        # Biases and norms start as zeros and ones, so they are drawn too.
        for values in network.parameters():
            values.copy_(torch.randn(values.shape, generator=generator, dtype=torch.float64))
        x = torch.randn(3, *model.compute_input_shape(SMALL[name]), generator=generator, dtype=torch.float64)
        outputs = (network if how == "eager" else convert_to_torchscript(network))(x).numpy()
    wanted = reference([values.detach().numpy() for values in network.parameters()], x.numpy())
    assert outputs.shape == (3, 6)
    assert np.abs(outputs - wanted).max() < 1e-12 * np.abs(wanted).max()


@each_model
def test_the_module_has_as_many_parameters_as_the_description(name: str) -> None:
    model: Any = find_workload(name)
    with torch.device("meta"):
        module = build_module(model.build_layers({}))
    assert sum(p.numel() for p in module.parameters()) == model.count_work("infer", {}).num_parameters


@each_model
@each_mode
def test_the_work_is_what_torch_counts(name: str, mode: str) -> None:
    model: Any = find_workload(name)
    # On this device, LSTMs and attention consist of plain products.
    with torch.device("meta"):
        module, x = (
            build_module(model.build_layers(SMALL[name])),
            torch.empty(2, *model.compute_input_shape(SMALL[name])),
        )
    with FlopCounterMode(display=False) as counter:
        outputs = module(x)
        if mode == "train":
            outputs.sum().backward()
    assert counter.get_total_flops() == 2 * model.count_work(mode, SMALL[name]).flops_per_sample


@each_model
@each_mode
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_sequences_are_computed_rightly_at_every_point(
    params: Params, alone: RankContext, name: str, mode: str, point: dict[str, Any]
) -> None:
    job = prepare(params(workload=name, mode=mode, batch=4, **point, **SMALL[name]), alone)
    check = job.check()
    # TorchScript optimizes from the third call on.
    for _ in range(4):
        job.step()
    assert check.passed, check
    assert job.read_facts()["output_dtype"] == point.get("dtype", "float32")
    assert (job.read_loss() is None) is (mode == "infer")
    # The loss is near the logarithm of six.
    assert mode == "infer" or 1.0 < job.read_loss() < 3.0


def test_the_transformer_trains_with_dropout_and_is_checked_without(params: Params, alone: RankContext) -> None:
    point = {**ENCODER, "dropout": 0.2}
    job = prepare(params(workload="transformer", mode="train", batch=2, **point), alone)
    assert sum(type(m).__name__ == "Dropout" for m in job._module.modules()) == 3 * ENCODER["layers"]
    assert job.check().passed
    job.step()
    assert all(m.training for m in job._module.modules())


def test_sequences_for_recurrent_layers_lie_in_memory_steps_first(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="lstm_ensemble", batch=4, **ENSEMBLE), alone)
    (x,), _ = job._batches.next()
    assert x.shape == (4, 5, 3)
    assert x.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"memory_format": "channels_last"}, "takes no images"),
        ({"data": "/images"}, "takes no images"),
        ({"freezing": "fold"}, "no batch normalisation follows a convolution"),
        ({"interop_threads": 2}, "concurrently only with execution script"),
        ({"hidden": 0}, "hidden must be a whole number"),
    ],
    ids=str,
)
def test_what_sequences_do_not_have_is_infeasible_with_its_reason(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(workload="lstm_ensemble", **{**ENSEMBLE, **point}), alone)


SIDE_BY_SIDE = """
import json, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime
runtime = find_runtime("torch")
runtime.warm()
def worked_ns():
    tasks = [t for t in Path("/proc/self/task").iterdir() if "PTThreadPool" in (t / "comm").read_text()]
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}
results = {}
for mode in ("infer", "train"):
    params = TrialParameters.from_mapping(dict(json.loads(sys.argv[1]), mode=mode))
    job = runtime.prepare(params, RankContext(0, 1, "", 2))
    passed, before = job.check().passed, worked_ns()
    # On a busy machine, one thread may do the work of many steps.
    for number in range(2000):
        job.step()
        busy = [task for task, spent in worked_ns().items() if spent > before.get(task, 0)]
        if number >= 19 and len(busy) >= min(2, params.interop_threads):
            break
    facts = job.read_facts()
    results[mode] = [passed, len(worked_ns()), len(busy), facts["num_threads"], facts["num_interop_threads"]]
print(json.dumps(results), flush=True)
# Ranks end this way: threads of a pool may abort a process during Python's shutdown.
os._exit(0)
"""


@pytest.mark.parametrize(("num_branches", "num_threads", "width"), [(1, 3, 3), (3, 3, 1)])
def test_as_many_branches_as_interop_threads_run_concurrently_and_share_the_threads(
    params: Params, num_branches: int, num_threads: int, width: int
) -> None:
    sizes = {**ENSEMBLE, "time_steps": 10, "members": 4}
    point = params(
        workload="lstm_ensemble",
        batch=8,
        execution="script",
        interop_threads=num_branches,
        threads=num_threads,
        **sizes,
    )
    command = [sys.executable, "-c", SIDE_BY_SIDE, json.dumps(point.to_mapping())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for passed, num_pool_threads, num_busy, width_read, interop_read in json.loads(done.stdout).values():
        assert passed
        assert (width_read, interop_read) == (width, num_branches)
        # With more threads, the pool's teams have this name as well.
        if width == 1:
            assert num_pool_threads == num_branches
        assert num_busy >= min(2, num_branches)
