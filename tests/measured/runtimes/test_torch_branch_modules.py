"""Inception-v3, the two-tower recommender and the mixture of experts on torch."""

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
from corewise.measured.runtimes.torch.modules.branch_modules import AuxiliaryHeadModule
from corewise.measured.runtimes.torch.modules.described_models import AUXILIARY_WEIGHT, compute_training_loss
from corewise.measured.runtimes.torch.modules.module_preparation import convert_to_torchscript
from corewise.measured.runtimes.torch.modules.network import build_module, build_network
from corewise.measured.workloads.models.branch_layers import WithAuxiliary as WithAuxiliaryLayer
from corewise.measured.workloads.models.layers import Linear
from corewise.measured.workloads.registry import find_workload

Params = Callable[..., TrialParameters]
Array = NDArray[np.float64]
TOWERS: dict[str, Any] = {
    "user_ids": 20, "item_ids": 10, "user_fields": 3, "item_fields": 2, "embedding": 4, "user_width": 16,
    "item_width": 8, "layers": 2, "output": 8,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "layers": 2, "experts": 4, "top_k": 2, "width": 8, "hidden": 12, "tokens": 5, "num_classes": 6,
}  # fmt: skip
SMALL = {"two_tower": TOWERS, "mixture_of_experts": EXPERTS}
POINTS = [{}, {"dtype": "bfloat16"}, {"dtype": "float64"}, {"math": "vanilla"}, {"execution": "script"}]
each_small = pytest.mark.parametrize("name", SMALL)
each_mode = pytest.mark.parametrize("mode", ["infer", "train"])


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def inputs_of(name: str, args: dict[str, Any], batch: int) -> Any:
    model: Any = find_workload(name)
    generator = torch.Generator().manual_seed(8)
    limits = model.list_id_limits(args)
    if limits:
        return torch.stack([torch.randint(limit, (batch,), generator=generator) for limit in limits], dim=1)
    return torch.randn(batch, *model.compute_input_shape(args), generator=generator, dtype=torch.float64)


def numpy_tower(weights: list[Array], ids: Array) -> Array:
    table, *rest = weights
    x = table[ids].reshape(len(ids), -1)
    for i in range(0, len(rest) - 2, 2):
        x = np.maximum(x @ rest[i].T + rest[i + 1], 0)
    return np.asarray(x @ rest[-2].T + rest[-1])


def numpy_towers(weights: list[Array], ids: Array) -> Array:
    user, item = numpy_tower(weights[:7], ids[:, :3]), numpy_tower(weights[7:], ids[:, 3:])
    return np.asarray((user * item).sum(axis=1, keepdims=True))


def numpy_mixture(weights: list[Array], x: Array) -> Array:
    per_layer = 1 + 4 * EXPERTS["experts"] + 2
    for i in range(EXPERTS["layers"]):
        gate, *experts = weights[i * per_layer : (i + 1) * per_layer]
        scores = x @ gate.T
        chosen = np.argsort(-scores, axis=-1)[..., : EXPERTS["top_k"]]
        mixed = np.zeros_like(x)
        for b, t in np.ndindex(*x.shape[:2]):
            best = chosen[b, t]
            shares = np.exp(scores[b, t, best]) / np.exp(scores[b, t, best]).sum()
            for share, e in zip(shares, best, strict=True):
                wide, wide_b, back, back_b = experts[4 * e : 4 * e + 4]
                mixed[b, t] += share * (np.maximum(x[b, t] @ wide.T + wide_b, 0) @ back.T + back_b)
        x = x + mixed
        deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        x = (x - x.mean(axis=-1, keepdims=True)) / deviation * experts[-2] + experts[-1]
    return np.asarray(x.mean(axis=1) @ weights[-2].T + weights[-1])


@pytest.mark.parametrize("how", ["eager", "side by side"])
@pytest.mark.parametrize(("name", "reference"), [("two_tower", numpy_towers), ("mixture_of_experts", numpy_mixture)])
def test_the_outputs_are_those_of_numpy(name: str, reference: Callable[[list[Array], Array], Array], how: str) -> None:
    model: Any = find_workload(name)
    network = build_network(model.build_layers(SMALL[name]), seed=7, side_by_side=how == "side by side").double()
    generator = torch.Generator().manual_seed(9)
    x = inputs_of(name, SMALL[name], 3)
    with torch.no_grad():
        # Biases and norms start as zeros and ones, so they are drawn too.
        for values in network.parameters():
            values.copy_(torch.randn(values.shape, generator=generator, dtype=torch.float64))
        outputs = (network if how == "eager" else convert_to_torchscript(network))(x).numpy()
    wanted = reference([values.detach().numpy() for values in network.parameters()], x.numpy())
    assert np.abs(outputs - wanted).max() < 1e-12 * np.abs(wanted).max()


@pytest.mark.parametrize("name", [*SMALL, "inception_v3"])
@each_mode
def test_parameters_and_work_are_what_torch_counts(name: str, mode: str) -> None:
    model: Any = find_workload(name)
    args = SMALL.get(name, {})
    with torch.device("meta"):
        module = build_module(model.build_layers(args))
        x = inputs_of(name, args, 2).to("meta", torch.float32 if name != "two_tower" else torch.int64)
    for each in module.modules():
        if isinstance(each, AuxiliaryHeadModule):
            each.returns_auxiliary = mode == "train"
    with FlopCounterMode(display=False) as counter:
        outputs = module(x)
        if mode == "train":
            sum(o.sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    work = model.count_work(mode, args)
    assert counter.get_total_flops() == 2 * work.flops_per_sample
    assert sum(p.numel() for p in module.parameters()) == work.num_parameters


@each_small
@each_mode
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_branches_are_computed_rightly_at_every_point(
    params: Params, alone: RankContext, name: str, mode: str, point: dict[str, Any]
) -> None:
    job = prepare(params(workload=name, mode=mode, batch=4, **point, **SMALL[name]), alone)
    check = job.check()
    # TorchScript optimizes from the third call on.
    for _ in range(4):
        job.step()
    assert check.passed, check
    assert job.read_facts()["output_dtype"] == point.get("dtype", "float32")
    chance = {"two_tower": 0.69, "mixture_of_experts": 1.79}[name]
    assert job.read_loss() is None if mode == "infer" else 0.5 * chance < job.read_loss() < 2 * chance


@pytest.mark.parametrize("point", [{"memory_format": "channels_last"}, {"freezing": "fold"}], ids=str)
def test_inception_infers_rightly(params: Params, alone: RankContext, point: dict[str, Any]) -> None:
    sizes = {"image_size": 75, "num_classes": 10}
    job = prepare(params(workload="inception_v3", batch=2, **sizes, **point), alone)
    check = job.check()
    assert check.passed, check
    if "freezing" in point:
        # The two norms of the auxiliary head do not run.
        assert job.read_facts()["num_folded"] == 94


def test_inception_returns_its_second_head_where_it_is_built_for_training() -> None:
    model: Any = find_workload("inception_v3")
    with torch.device("meta"):
        network = build_module(model.build_layers({}))
        images = torch.empty(2, 3, 299, 299)
    network.returns_auxiliary = True
    assert [tuple(each.shape) for each in network(images)] == [(2, 1000), (2, 1000)]
    network.returns_auxiliary = False
    assert tuple(network(images).shape) == (2, 1000)


@pytest.mark.parametrize("how", ["eager", "scripted"])
def test_both_heads_are_trained_with_their_weights(how: str) -> None:
    description = WithAuxiliaryLayer(Linear(4, 4), Linear(4, 3), Linear(4, 3))
    network = build_network(description, seed=1, training=True)
    outputs = (network if how == "eager" else convert_to_torchscript(network))(torch.randn(5, 4))
    labels = torch.tensor([0, 1, 2, 0, 1])
    entropy = torch.nn.functional.cross_entropy
    wanted = entropy(outputs[0], labels) + AUXILIARY_WEIGHT * entropy(outputs[1], labels)
    loss = compute_training_loss(outputs, labels)
    assert torch.equal(loss, wanted)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_numbers_of_users_and_items_stay_within_their_tables(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="two_tower", batch=64, **TOWERS), alone)
    (ids,), _ = job._batches.next()
    assert ids.shape == (64, 5)
    assert ids.dtype == torch.int64
    assert 10 <= int(ids[:, :3].max()) < 20
    assert int(ids[:, 3:].max()) < 10


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"workload": "two_tower", "memory_format": "channels_last"}, "two_tower takes no images"),
        ({"workload": "inception_v3", "memory_format": "blocked"}, "torch cannot join branches in oneDNN's"),
        ({"workload": "inception_v3", "mode": "train", "image_size": 75}, "cannot train on samples of"),
    ],
    ids=str,
)
def test_what_branches_do_not_have_is_infeasible_with_its_reason(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**point), alone)
