"""Modules that torch.fx cannot trace are frozen with prepared layers and captured graphs."""

import contextlib
import copy
import inspect
import pickle
import threading
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

import corewise
from corewise.accelerate.fast_kernels.kernel_support import has_kernels
from corewise.accelerate.fast_kernels.winograd_convolution import count_winograd_layers
from corewise.accelerate.freeze.captured_forward import CALLS_BEFORE_CAPTURE, MAX_SIGNATURES
from corewise.accelerate.freeze.packed_layers import PreparedLayer
from corewise.accelerate.unsupported import Unsupported

# A module's layers are prepared where that is faster. These sizes are large enough on every machine.
WIDTH, ROWS = 256, 64
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU"
)


@pytest.fixture(autouse=True)
def ignore_times(prepare_all_layers: None) -> None:
    """No test of this file depends on timing."""


class Store:
    """A cache as those of generating models: an object with lists of tensors."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.length = 0

    def add(self, key: Any) -> None:
        self.keys.append(key)
        self.length += key.shape[1]


@dataclass
class Output:
    rows: Any
    store: Store | None = None
    scale: float = 2.0


class Encoder(nn.Module):
    """What torch.fx cannot trace: control flow on sizes, keyword arguments, optional masks, a returned cache."""

    def __init__(self, width: int = WIDTH, activation: str = "gelu") -> None:
        super().__init__()
        self.config = {"width": width}
        self.embed = nn.Embedding(100, width)
        self.positions = nn.Embedding(128, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.norm = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)
        self.dropout, self.activation = nn.Dropout(0.5), activation

    def forward(self, ids: Any, *, mask: Any = None, use_store: bool = False, **options: Any) -> Any:
        length = ids.shape[1]
        if length > 100:
            raise ValueError("too long")
        x = self.dropout(self.embed(ids) + self.positions(torch.arange(length)))
        store = Store() if use_store else None
        query, key, value = (
            one(x).view(*ids.shape, 4, -1).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        if store is not None:
            store.add(key)
        bias = None if mask is None else mask[:, None, None, :].bool()
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = self.up(self.norm(x))
        hidden = functional.gelu(hidden) if self.activation == "gelu" else self.approximate(hidden)
        return Output(x + self.down(hidden), store)

    def approximate(self, x: Any) -> Any:
        """Compute the tanh approximation of GELU as many models write it."""
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def make_inputs(rows: int = 2, length: int = ROWS // 2, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    return {"ids": torch.randint(0, 100, (rows, length), generator=generator), "mask": mask}


def require_same(got: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    wanted.rows = wanted.rows.detach()
    torch.testing.assert_close(got.rows, wanted.rows, rtol=tolerance, atol=tolerance)
    assert (got.store is None) == (wanted.store is None)
    if wanted.store is not None:
        assert (type(got.store), got.store.length) == (Store, wanted.store.length)
        torch.testing.assert_close(got.store.keys, wanted.store.keys, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@pytest.mark.parametrize("use_store", [False, True])
def test_keyword_inputs_masks_and_caches_are_captured(activation: str, use_store: bool) -> None:
    module, given = Encoder(activation=activation).eval(), {**make_inputs(), "use_store": use_store}
    frozen: Any = corewise.freeze(module, given)
    assert "a captured graph" in frozen.explain()
    with torch.no_grad():
        for seed in range(3):
            fresh = {**make_inputs(seed=seed), "use_store": use_store}
            require_same(frozen(**fresh), module(**fresh))


def test_a_returned_cache_belongs_to_one_call() -> None:
    module, given = Encoder().eval(), {**make_inputs(), "use_store": True}
    frozen = corewise.freeze(module, given)
    first, second = frozen(**given).store, frozen(**given).store
    first.add(first.keys[0])
    assert first is not second
    assert (len(first.keys), len(second.keys), len(frozen(**given).store.keys)) == (2, 1, 1)


def test_positional_and_keyword_inputs_go_together() -> None:
    module, given = Encoder().eval(), make_inputs()
    frozen: Any = corewise.freeze(module, (given["ids"],), example_kwargs={"mask": given["mask"]})
    assert "a captured graph" in frozen.explain()
    with torch.no_grad():
        require_same(frozen(given["ids"], mask=given["mask"]), module(**given))


def test_other_sizes_and_options_compute_the_same_and_are_captured_when_they_come_again() -> None:
    module = Encoder().eval()
    frozen: Any = corewise.freeze(module, make_inputs())
    with torch.no_grad():
        for rows, length in ((3, 32), (2, 7), (1, 100)):
            for call in range(CALLS_BEFORE_CAPTURE + 1):
                given = make_inputs(rows, length, seed=call)
                require_same(frozen(**given), module(**given))
        assert frozen.explain().count("a captured graph") == 4
        require_same(frozen(make_inputs()["ids"]), module(make_inputs()["ids"]))
        with pytest.raises(ValueError, match="too long"):
            frozen(torch.zeros(1, 101, dtype=torch.long))


def test_the_number_of_graphs_is_bounded() -> None:
    module = Encoder(width=16).eval()
    frozen: Any = corewise.freeze(module, make_inputs(2, 4))
    with torch.no_grad():
        for length in range(5, 5 + MAX_SIGNATURES + 2):
            for _ in range(CALLS_BEFORE_CAPTURE + 1):
                given = make_inputs(2, length)
                require_same(frozen(**given), module(**given))
    assert frozen.explain().count("a captured graph") == MAX_SIGNATURES


def test_the_frozen_module_keeps_its_class_attributes_and_signature() -> None:
    module = Encoder().eval()
    frozen: Any = corewise.freeze(module, make_inputs())
    assert isinstance(frozen, Encoder)
    assert frozen.config == module.config
    assert list(inspect.signature(frozen.forward).parameters) == ["ids", "mask", "use_store", "options"]
    assert not frozen(**make_inputs()).rows.requires_grad
    assert not any(weight.requires_grad for weight in frozen.parameters())


def test_the_module_is_left_alone_and_its_later_changes_have_no_effect() -> None:
    module, given = Encoder().eval(), make_inputs()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    frozen = corewise.freeze(module, given)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(isinstance(part, PreparedLayer) for part in module.modules())
    wanted = frozen(**given).rows
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2.0)
    assert torch.equal(frozen(**given).rows, wanted)


def test_a_copy_computes_the_same_and_saving_says_what_to_do() -> None:
    frozen, given = corewise.freeze(Encoder().eval(), make_inputs()), make_inputs(seed=5)
    other: Any = copy.deepcopy(frozen)
    assert torch.equal(other(**given).rows, frozen(**given).rows)
    assert other.forward._module is other
    with pytest.raises(TypeError, match="save the model itself, and freeze it after loading"):
        pickle.dumps(frozen)


@needs_bfloat16
def test_bfloat16_has_the_types_of_autocast_and_its_error() -> None:
    module, given = Encoder().eval(), {**make_inputs(), "use_store": True}
    frozen: Any = corewise.freeze(module, given, torch.bfloat16)
    assert "a captured graph" in frozen.explain()
    with torch.no_grad():
        exact = module(**given)
        with torch.autocast("cpu", torch.bfloat16):
            plain, got = module(**given), frozen(**given)
    assert (got.rows.dtype, got.store.keys[0].dtype) == (plain.rows.dtype, plain.store.keys[0].dtype)
    errors = [float((each.rows.float() - exact.rows).norm() / exact.rows.norm()) for each in (got, plain)]
    assert errors[0] < 2 * errors[1] + 1e-3
    # Without autocast it computes in bfloat16 as well.
    assert torch.equal(frozen(**given).rows, got.rows)


@needs_bfloat16
@pytest.mark.parametrize("always", [False, True])
def test_angles_of_positions_stay_in_float32_in_bfloat16(always: bool) -> None:
    class Rotates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("rates", 1.0 / 100.0 ** (torch.arange(WIDTH) / WIDTH))

        def forward(self, x: Any, positions: Any, **options: Any) -> Any:
            # Some models enter the context only if autocast is on.
            is_needed = always or torch.is_autocast_enabled("cpu")
            with torch.autocast("cpu", enabled=False) if is_needed else contextlib.nullcontext():
                angles = positions[:, None].float() @ self.rates[None, :]
            return self.layer(x) * angles.cos(), angles.cos()

    module, x, places = Rotates().eval(), torch.randn(ROWS, WIDTH), torch.arange(ROWS) + 1000
    frozen: Any = corewise.freeze(module, {"x": x, "positions": places}, torch.bfloat16)
    assert "a captured graph" in frozen.explain()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(frozen(x=x, positions=places)[1], module(x, places)[1])


def test_a_cache_among_the_inputs_runs_the_modules_code_and_does_not_stop_captures() -> None:
    class Continues(Encoder):
        def forward(self, ids: Any, *, past: Any = None, **options: Any) -> Any:
            result = super().forward(ids, use_store=past is not None, **options)
            if past is not None:
                past.add(result.store.keys[0])
            return result

    module = Continues().eval()
    frozen: Any = corewise.freeze(module, make_inputs())
    with torch.no_grad():
        past = Store()
        for _ in range(10):
            require_same(frozen(**make_inputs(), past=past), module(**make_inputs(), past=Store()))
        assert len(past.keys) == 10
        for _ in range(CALLS_BEFORE_CAPTURE):
            frozen(**make_inputs(3))
    assert frozen.explain().count("a captured graph") == 2


def test_weights_in_a_graph_are_not_converted() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x: Any, **options: Any) -> Any:
            return functional.linear(x, self.weight)

    x = torch.randn(ROWS, WIDTH)
    module = Functional().eval()
    frozen = corewise.freeze(module, {"x": x, "option": 1})
    torch.testing.assert_close(frozen(x=x, option=1), module(x).detach(), rtol=1e-4, atol=1e-3)
    with pytest.raises(RuntimeError, match="prepared weights cannot be moved or converted"):
        frozen.double()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_a_module_can_be_frozen_and_called_in_any_mode(mode: Any) -> None:
    module = Encoder().eval()
    with mode():
        frozen = corewise.freeze(module, make_inputs())
        require_same(frozen(**make_inputs(seed=3)), module(**make_inputs(seed=3)))
    with torch.no_grad():
        require_same(frozen(**make_inputs(seed=4)), module(**make_inputs(seed=4)))


def test_threads_may_call_while_another_signature_is_captured() -> None:
    module = Encoder().eval()
    frozen = corewise.freeze(module, make_inputs())
    failures: list[BaseException] = []

    def call(rows: int) -> None:
        try:
            with torch.no_grad():
                for seed in range(6):
                    require_same(frozen(**make_inputs(rows, seed=seed)), module(**make_inputs(rows, seed=seed)))
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=call, args=(rows,)) for rows in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Counting(nn.Module):
    """Counts its calls, and returns the count."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.num_calls = Encoder(), 0

    def forward(self, ids: Any, **options: Any) -> Any:
        self.num_calls += 1
        return self.encoder(ids, **options).rows, self.num_calls


def test_python_state_still_changes_and_the_parts_are_captured() -> None:
    module, given = Counting().eval(), make_inputs()
    frozen: Any = corewise.freeze(module, given)
    assert "its forward changes attributes (num_calls)" in frozen.explain()
    assert "captured graphs run in its parts encoder" in frozen.explain()
    assert module.num_calls == 0
    assert [frozen(**given)[1] for _ in range(4)] == [1, 2, 3, 4]
    with torch.no_grad():
        torch.testing.assert_close(frozen(**given)[0], module(**given)[0], rtol=1e-4, atol=1e-4)


class Branching(nn.Module):
    """Takes another branch for other values, not sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, **options: Any) -> Any:
        return self.first(x) if bool(x.sum() > 0) else torch.relu(self.second(x))


def test_control_flow_on_values_runs_as_it_is_written() -> None:
    module, x = Branching().eval(), torch.rand(ROWS, WIDTH)
    frozen: Any = corewise.freeze(module, (x,), example_kwargs={"option": 1})
    assert "the module's code runs" in frozen.explain()
    assert "second" in frozen.explain()
    with torch.no_grad():
        for given in (x, -x):
            torch.testing.assert_close(frozen(given, option=1), module(given), rtol=1e-4, atol=1e-4)


def test_hooks_of_parts_run_at_every_call() -> None:
    module, given, seen = Encoder().eval(), make_inputs(), []
    module.norm.register_forward_hook(lambda part, inputs, result: seen.append(1) or result + 1)
    frozen: Any = corewise.freeze(module, given)
    assert "norm has hooks" in frozen.explain()
    seen.clear()
    with torch.no_grad():
        for _ in range(3):
            require_same(frozen(**given), module(**given))
    assert len(seen) == 6


def test_grad_contexts_within_a_module_are_captured() -> None:
    class Watches(Encoder):
        def forward(self, ids: Any, **options: Any) -> Any:
            with torch.no_grad():
                scale = self.embed(ids).mean()
            with torch.enable_grad():
                result = super().forward(ids, **options)
            result.rows = result.rows * scale
            return result

    module = Watches().eval().requires_grad_(False)
    frozen: Any = corewise.freeze(module, make_inputs())
    assert "a captured graph" in frozen.explain()
    require_same(frozen(**make_inputs(seed=2)), module(**make_inputs(seed=2)))


def test_writes_to_inputs_and_constants_stay_as_they_are() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any, **options: Any) -> Any:
            table = torch.zeros(WIDTH)
            table[::2] = 1.0
            rows = self.layer(x)
            rows += table
            read = rows * 2
            table[1] = rows[0, 0]
            x.mul_(2.0)
            return rows + x + table, read

    module, x = Writes().eval(), torch.randn(ROWS, WIDTH)
    frozen: Any = corewise.freeze(module, (x.clone(),), example_kwargs={"option": 1})
    assert "a captured graph" in frozen.explain()
    one, two = x.clone(), x.clone()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(frozen(one, option=1), module(two), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(one, two)


def test_a_result_that_is_a_constant_may_be_written_to() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any, **options: Any) -> Any:
            return self.layer(x), torch.arange(4.0) * 2

    module, x = Constant().eval(), torch.randn(ROWS, WIDTH)
    frozen = corewise.freeze(module, (x,), example_kwargs={"option": 1})
    frozen(x, option=1)[1].fill_(7.0)
    assert frozen(x, option=1)[1].tolist() == [0.0, 2.0, 4.0, 6.0]


class Block(nn.Module):
    """Convolutions with norms, a shortcut and activations, between steps that torch.fx does not trace."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding="same")
        self.one, self.two = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.Conv2d(32, 32, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(2))
        for norm in self.norms:
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)

    def forward(self, images: Any, **options: Any) -> Any:
        if images.shape[1] != 3:
            raise ValueError("three channels")
        x = functional.silu(self.stem(images))
        rest = self.norms[0](self.one(x))
        rest = self.norms[1](self.two(functional.relu(rest)))
        rest += x
        x = functional.relu(rest)
        return x.view(*x.shape[:2], -1).mean(-1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("winograd", [False, True])
def test_convolutions_are_fused_with_norms_sums_and_activations(channels_last: bool, winograd: bool) -> None:
    module = Block().eval()
    form = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.randn(2, 3, 24, 24).contiguous(memory_format=form)
    frozen: Any = corewise.freeze(module, {"images": images, "option": 1}, winograd=winograd)
    # Three convolutions, a mean and a change of shape.
    assert "a captured graph of 5 operators" in frozen.explain()
    assert count_winograd_layers(frozen) == (1 if winograd and has_kernels() else 0)
    with torch.no_grad():
        for size in (24, 16):
            fresh = torch.randn(2, 3, size, size).contiguous(memory_format=form)
            for _ in range(3):
                torch.testing.assert_close(frozen(images=fresh, option=1), module(fresh), rtol=1e-3, atol=1e-4)


def test_layers_of_torch_that_read_the_weights_of_their_parts_stay_as_they_are() -> None:
    class Translates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 512, batch_first=True)
            self.decoder = nn.TransformerDecoderLayer(WIDTH, 4, 512, batch_first=True)
            self.head = nn.Linear(WIDTH, 300)

        def forward(self, x: Any, target: Any, **options: Any) -> Any:
            return self.head(self.decoder(target, self.encoder(x)))

    module, x, y = Translates().eval(), torch.randn(2, ROWS, WIDTH), torch.randn(2, 16, WIDTH)
    frozen = corewise.freeze(module, {"x": x, "target": y})
    assert isinstance(frozen.head, PreparedLayer)
    with torch.no_grad():
        for length in (16, 20):
            fresh = {"x": torch.randn_like(x), "target": torch.randn(2, length, WIDTH)}
            torch.testing.assert_close(frozen(**fresh), module(**fresh), rtol=1e-4, atol=1e-4)


def test_a_graph_is_used_where_torchs_operators_are_as_fast_as_prepared_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corewise.accelerate.freeze.prepared_tree.MAX_TIME_RATIO", 0.0)
    monkeypatch.setattr("corewise.accelerate.freeze.captured_graph.MAX_TIME_RATIO", 0.0)
    module = Encoder().eval()
    frozen, given = corewise.freeze(module, make_inputs()), make_inputs()
    assert "a captured graph of" in frozen.explain()
    torch.testing.assert_close(frozen(**given).rows, module(**given).rows, rtol=1e-5, atol=1e-5)
    # Without a faster graph nothing is gained.
    monkeypatch.setattr("corewise.accelerate.freeze.captured_forward.MAX_TIME_RATIO", 0.0)
    with pytest.raises(Unsupported, match="torch's own operators are as fast on this machine"):
        corewise.freeze(module, make_inputs())


def test_a_module_whose_forward_was_replaced_is_refused() -> None:
    module = Encoder().eval()
    module.forward = lambda *args, **kwargs: 1  # type: ignore[method-assign,assignment]
    with pytest.raises(Unsupported, match="forward was replaced"):
        corewise.freeze(module, make_inputs())


def test_training_mode_runs_the_modules_code() -> None:
    frozen, given = corewise.freeze(Encoder().eval(), make_inputs()), make_inputs()
    one = frozen(**given).rows
    frozen.train()
    assert not torch.equal(frozen(**given).rows, one)
    frozen.eval()
    assert torch.equal(frozen(**given).rows, one)
