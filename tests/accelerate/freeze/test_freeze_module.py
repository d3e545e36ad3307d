"""Frozen networks compute the same as the original."""

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

import corewise
from corewise.accelerate.freeze.freeze_module import freeze, prepare_network
from corewise.accelerate.freeze.packed_layers import PreparedConvolution
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.registry import find_workload

Params = Callable[..., TrialParameters]
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU"
)


def error(made: Any, wanted: Any) -> float:
    return float((made.double() - wanted.double()).norm() / wanted.double().norm())


def differ_by(module: nn.Module, *inputs: Any) -> float:
    """Compute the relative error of the frozen module on new inputs, and on another batch size."""
    frozen = freeze(module.eval(), inputs)
    errors = []
    with torch.inference_mode():
        for rows in (inputs[0].shape[0], inputs[0].shape[0] + 1):
            fresh = [torch.randn(rows, *x.shape[1:]) for x in inputs]
            errors.append(error(frozen(*fresh), module(*fresh)))
    return max(errors)


def nodes(frozen: Any) -> list[str]:
    return [str(node.target) for node in frozen.graph.nodes if node.op not in ("placeholder", "output")]


class Block(nn.Module):
    """Convolution, norm and activation twice, a shortcut, and an activation of the sum."""

    def __init__(self, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 1),
            nn.BatchNorm2d(8),
        )
        self.shortcut = shortcut

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.shortcut(x))


def test_a_block_is_one_operator_for_each_convolution() -> None:
    blocks = [Block(nn.Conv2d(8, 8, 1)), Block(nn.Identity()), Block(nn.Identity())]
    network, x = nn.Sequential(nn.Conv2d(3, 8, 3), *blocks).eval(), torch.randn(2, 3, 9, 9)
    frozen = freeze(network, (x,))
    assert nodes(frozen) == [f"prepared_{i}" for i in range(8)]
    layers = [layer for layer in frozen.modules() if isinstance(layer, PreparedConvolution)]
    # No sum needs extra memory.
    assert sum(layer.overwrites for layer in layers) == 3
    assert differ_by(network, x) < 1e-5


class Branching(nn.Module):
    """Values that are read after a sum, through a view, or by the convolution itself."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.case = case

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        if self.case == "view":
            flat = a.flatten(1)
            return torch.relu(self.second(x) + a).flatten(1) + flat
        if self.case == "itself":
            return self.second(a) + a
        if self.case == "later":
            b = torch.relu(self.second(a) + a)
            return b + self.third(a)
        if self.case == "input":
            x = self.second(a) + x
            return x * 2
        if self.case == "twice":
            return self.first(a) + self.first(self.second(x))
        if self.case == "broadcast":
            return self.second(x) + a.mean((2, 3), keepdim=True)
        # The sum is in place.
        a += self.second(x)
        return torch.sigmoid(a) + torch.tanh(self.third(x))


@pytest.mark.parametrize("case", ["view", "itself", "later", "input", "twice", "broadcast", "in place"])
def test_a_value_that_is_still_needed_is_not_overwritten(case: str) -> None:
    x = torch.randn(2, 4, 5, 5)
    original = x.clone()
    assert differ_by(Branching(case), x) < 1e-5
    with torch.no_grad():
        freeze(Branching(case).eval(), (x,))(x)
    assert torch.equal(x, original)


class Activated(nn.Module):
    def __init__(self, activation: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.activation = nn.Linear(6, 5), activation

    def forward(self, x: Any) -> Any:
        return self.activation(self.layer(x))


@pytest.mark.parametrize(
    ("activation", "num_nodes"),
    [
        (nn.ReLU(), 1),
        (nn.GELU(), 1),
        (nn.GELU(approximate="tanh"), 1),
        (nn.SiLU(), 1),
        (nn.Tanh(), 1),
        (torch.sigmoid, 1),
        (lambda x: functional.gelu(x, approximate="tanh"), 1),
        (lambda x: x.relu(), 1),
        (nn.LeakyReLU(0.3), 2),
        (nn.Softmax(-1), 2),
    ],
)
def test_activations_are_part_of_the_layer_or_left_as_they_are(activation: Any, num_nodes: int) -> None:
    module, x = Activated(activation).eval(), torch.randn(3, 7, 6)
    assert len(nodes(freeze(module, (x,)))) == num_nodes
    assert differ_by(module, x) < 1e-5


class Drawn(nn.Module):
    """Layers, sums and activations drawn at random, some in place, some sharing memory; all values count."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers, self.plan = nn.ModuleList([nn.Conv2d(8, 8, 1)]), [("layer", 0, 0)]
        dice = random.Random(seed)
        makers: list[Callable[[], nn.Module]] = [
            lambda: nn.Conv2d(8, 8, 3, padding=1),
            lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            lambda: nn.BatchNorm2d(8),
            lambda: nn.ReLU(inplace=dice.random() < 0.5),
            lambda: nn.Identity(),
            lambda: nn.Linear(6, 6),
        ]
        for number in range(2, dice.randint(5, 13)):
            self.layers.append(dice.choice(makers)())
            what = dice.choice(["layer", "layer", "layer", "sum", "view", "in place", "shared"])
            self.plan.append((what, dice.randrange(number), dice.randrange(number)))

    def forward(self, x: Any) -> Any:
        values = [x * 1.0]
        for (what, first, second), layer in zip(self.plan, self.layers, strict=True):
            a, b = values[first], values[second]
            if what == "layer":
                values.append(layer(a))
            elif what == "shared":
                values.append(self.layers[0](a) - self.layers[0](b))
            elif what == "sum":
                values.append(torch.relu(a + b))
            else:
                values.append(a.view(a.shape) if what == "view" else a.mul_(0.5))
        return values[-1], torch.stack(values).sum(0)


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_compute_the_same(seed: int) -> None:
    torch.manual_seed(seed)
    module = Drawn(seed).eval()
    frozen = freeze(module, (torch.randn(2, 8, 6, 6),))
    x = torch.randn(3, 8, 6, 6)
    with torch.no_grad():
        for got, wanted in zip(frozen(x.clone()), module(x.clone()), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_a_module_that_does_more_than_its_traced_graph_shows_is_captured() -> None:
    class Aliasing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 1)

        def forward(self, x: Any) -> Any:
            a = b = self.layer(x)
            # torch.fx traces it as a = a + x, which does not change b.
            a += x
            return a * b

    assert differ_by(Aliasing(), torch.randn(2, 4, 5, 5)) < 1e-5


def test_layers_that_compute_otherwise_than_torchs_stay_as_they_are() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    hooked, x = nn.Linear(6, 6), torch.randn(3, 6)
    hooked.register_forward_hook(lambda module, given, result: result + 1)
    same = nn.Conv2d(1, 1, 3, padding="same")
    reflecting = nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")
    rows = nn.Sequential(Doubled(6, 6), hooked, nn.Linear(6, 4))
    images = nn.Sequential(same, reflecting, nn.Conv2d(1, 2, 1))
    assert prepare_network(rows.eval(), (x,), torch.float32)[1] == 1
    assert prepare_network(images.eval(), (torch.randn(2, 1, 5, 5),), torch.float32)[1] == 1
    assert differ_by(rows, x) < 1e-5
    assert differ_by(images, torch.randn(2, 1, 5, 5)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
def test_a_whole_network_computes_the_same_and_the_original_is_left_alone(dtype: Any) -> None:
    description: Any = find_workload("resnet18")
    network = build_network(description.build_layers({"num_classes": 10}), seed=3).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    frozen = corewise.freeze(network, (x,), dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
        made, plain = frozen(x), network(x)
    with torch.no_grad():
        wanted = network(x)
    assert made.dtype == plain.dtype
    assert error(made, wanted) < max(1e-5, 2 * error(plain, wanted))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("module", "dtype", "reason"),
    [
        (nn.Linear(3, 3), torch.float32, r"is in training mode; call eval\(\)"),
        (
            nn.Sequential(nn.Linear(3, 3).eval(), nn.Dropout()).train(False).append(nn.Dropout()),
            torch.float32,
            r"a part of it, is in training mode; call eval\(\)",
        ),
        (nn.Linear(3, 3).eval().double(), torch.float32, "the module is torch.float64; convert it to float32 first"),
        (nn.Linear(3, 3, device="meta").eval(), torch.float32, "on the CPU; one is on meta"),
        (nn.Linear(3, 3).eval(), torch.float64, "in float32 or bfloat16"),
        (nn.Tanh().eval(), torch.float32, "no 2-D convolution, linear layer or LSTM"),
        (nn.LSTM(3, 3).eval(), torch.bfloat16, "in bfloat16, LSTMs are joined only if several read one input"),
        (
            nn.TransformerEncoderLayer(3, 1, 4).eval(),
            torch.float32,
            r"none of its .* does not trace composite layers of torch\.nn",
        ),
    ],
)
def test_what_cannot_be_prepared_says_why(module: Any, dtype: Any, reason: str) -> None:
    with pytest.raises(Unsupported, match=f"freezing full: .*{reason}"):
        prepare_network(module, (torch.randn(2, 3),), dtype)


def test_inputs_may_be_one_tensor_and_mistakes_are_named() -> None:
    module, x = nn.Linear(3, 3).eval(), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(freeze(module, x)(x), module(x))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not str"):
        freeze("model", (x,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"corewise\.freeze takes example inputs as a tensor, a tuple or a mapping"):
        freeze(module, "x")
    with torch.no_grad():
        torch.testing.assert_close(freeze(module, {"input": x})(input=x), module(x))
    # The error is that of the module.
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        freeze(module, (torch.randn(2, 4),))


def test_prepared_weights_are_not_moved_or_converted() -> None:
    frozen = freeze(nn.Linear(3, 3).eval(), (torch.randn(2, 3),))
    with pytest.raises(RuntimeError, match="prepared weights cannot be moved or converted"):
        frozen.double()


@pytest.mark.parametrize(
    "point",
    [
        {"workload": "resnet18", "image_size": 32},
        {"workload": "resnet18", "image_size": 32, "memory_format": "channels_last"},
        pytest.param({"workload": "alexnet", "image_size": 64, "dtype": "bfloat16"}, marks=needs_bfloat16),
        {"workload": "transformer", "layers": 1},
        {"workload": "mixture_of_experts"},
    ],
    ids=str,
)
def test_a_trial_runs_with_prepared_weights_and_counts_them(
    params: Params, alone: RankContext, point: dict[str, Any]
) -> None:
    runtime = find_runtime("torch")
    runtime.warm()
    job = runtime.prepare(params(batch=2, freezing="full", **point), alone)
    check = job.check()
    job.step()
    assert check.passed, check
    assert job.read_facts()["num_prepared_weights"] > 1


class Attends(nn.Module):
    """A norm that is not prepared before a prepared layer, and the last input it received."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(6), nn.Linear(6, 6)
        self.register_buffer("num_calls", torch.zeros(()))
        self.last, self.seen = None, []  # type: ignore[var-annotated]

    def forward(self, x: Any) -> Any:
        self.num_calls += 1
        self.last = self.layer(self.norm(x))
        self.seen.append(self.last)
        return self.last


def test_module_and_copy_do_not_change_each_other() -> None:
    module, x = Attends().eval(), torch.randn(3, 6)
    frozen = freeze(module, (x,))
    assert module.last is None
    assert not module.seen
    assert not module.num_calls
    assert set(dict(module.named_buffers())) == {"num_calls"}
    assert "_tensor_constant0" not in vars(module)
    wanted = frozen(x)
    assert not wanted.requires_grad
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(3.0)
    assert torch.equal(frozen(x), wanted)
    with pytest.raises(RuntimeError, match="prepared weights cannot be moved or converted"):
        frozen.double()
    frozen.train()
    assert {each.dtype for each in module.parameters()} == {torch.float32}
    assert not any(part.training for part in module.modules())


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Any, y: Any) -> Any:
        return functional.relu(y + self.layer(x))


@pytest.mark.parametrize(
    "shapes", [((3, 4, 5, 5), (1, 4, 5, 5)), ((1, 4, 5, 5), (3, 4, 5, 5)), ((2, 4, 1, 1), (2, 4, 5, 5))], ids=str
)
def test_a_sum_broadcasts_for_other_sizes(shapes: Any) -> None:
    module = Added().eval()
    frozen = freeze(module, (torch.randn(1, 4, 1, 1), torch.randn(1, 4, 1, 1)))
    assert nodes(frozen) == ["prepared_0"]
    given = [torch.randn(shape) for shape in shapes]
    with torch.no_grad():
        torch.testing.assert_close(frozen(*given), module(*given))


@pytest.mark.parametrize("place", [0, 1, 2, 3, None], ids=["layer", "norm", "idle", "activation", "all"])
def test_hooks_are_never_skipped(place: int | None) -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Identity(), nn.ReLU(), nn.Conv2d(4, 4, 1))
    hooked = module if place is None else module[place]
    seen = []
    hooked.register_forward_hook(lambda module, given, result: seen.append(1) or result.abs() + 1)
    frozen, x = freeze(module.eval(), torch.randn(2, 4, 5, 5)), torch.randn(2, 4, 5, 5)
    seen.clear()
    with torch.no_grad():
        got = frozen(x)
        # The hook of a leaf is called. That of a traced module is part of the graph.
        assert bool(seen) is (place is not None)
        torch.testing.assert_close(got, module(x))


def test_weights_that_are_computed_from_others_are_prepared_too() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    assert differ_by(nn.Sequential(normed, nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 4, 5, 5)) < 1e-5


def test_results_are_compared_whatever_holds_them_and_masks_are_equal() -> None:
    @dataclass
    class Result:
        rows: Any
        masked: Any

    class Returns(nn.Module):
        def __init__(self, masks: float) -> None:
            super().__init__()
            self.layer, self.masks = nn.Linear(4, 4), masks

        def forward(self, x: Any) -> Any:
            rows = self.layer(x)
            return Result(rows, torch.where(rows > 0, rows, self.masks))

    x = torch.randn(8, 4)
    frozen = freeze(Returns(float("-inf")).eval(), x)
    assert torch.isinf(frozen(x).masked).any()
    with pytest.raises(Unsupported, match="returns NaN for the example inputs"):
        freeze(Returns(float("nan")).eval(), x)


def test_a_frozen_copy_is_copied_but_not_saved() -> None:
    frozen, x = freeze(nn.Linear(3, 3).eval(), torch.randn(2, 3)), torch.randn(2, 3)
    assert torch.equal(copy.deepcopy(frozen)(x), frozen(x))
    with pytest.raises(TypeError, match="save the model itself, and freeze it after loading"):
        pickle.dumps(frozen)
