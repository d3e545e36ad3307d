"""LSTMs row by row: torch's results and gradients for any size, and torch where ours would be slower."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from corewise.accelerate.kernels.build import load_native_module
from corewise.accelerate.malleable.capture.batch_cuts import compute_slice_bounds
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# Steps, rows, inputs, hidden units: less than a vector, vectors and a bit, odd units, more inputs than units,
# more chunks than sums.
SIZES = [
    *((7, 5, 3, 4), (8, 33, 10, 10), (5, 16, 7, 13), (3, 1, 1, 1), (4, 100, 33, 20), (9, 31, 4, 64)),
    (2, 700, 3, 5),
]


@pytest.fixture(autouse=True)
def kernel(native: None) -> None:
    load_native_module()


def weights(inputs: int, hidden: int, dtype: Any = torch.float32) -> list[Any]:
    sizes = [(4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return [torch.randn(size, dtype=dtype) / hidden**0.5 for size in sizes]


def given(size: tuple[int, ...]) -> list[Any]:
    steps, rows, inputs, hidden = size
    states = [torch.randn(rows, hidden) for _ in range(2)]
    return [torch.randn(steps, rows, inputs), *states, *weights(inputs, hidden)]


def by_torch(x: Any, h: Any, c: Any, *params: Any, reverse: bool = False) -> tuple[Any, ...]:
    turned = x.flip(0) if reverse else x
    rows, last, cell = torch.ops.aten.lstm.input(
        turned, [h[None], c[None]], params, len(params) > 2, 1, 0.0, False, False, False
    )
    return (rows.flip(0) if reverse else rows), last[0], cell[0]


def with_gradients(run: Callable[..., Any], values: list[Any], **options: Any) -> list[Any]:
    """Return the results, then the gradients of all inputs."""
    own = [value.detach().clone().requires_grad_() for value in values]
    results = run(*own, **options)
    generator = torch.Generator().manual_seed(3)
    arriving = [torch.randn(one.shape, generator=generator).to(one.dtype) for one in results]
    return [*results, *torch.autograd.grad(results, own, arriving)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results_and_gradients_are_those_of_float64(
    size: tuple[int, ...], num_threads: int, reverse: bool, threads: Callable[[int], None]
) -> None:
    threads(num_threads)
    values = given(size)
    wanted = with_gradients(by_torch, [value.double() for value in values], reverse=reverse)
    got = with_gradients(torch.ops.corewise.lstm_direction, values, reverse=reverse)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_rows_are_the_same_to_the_bit_whoever_computes_them(threads: Callable[[int], None]) -> None:
    values = given((30, 77, 9, 11))
    results = []
    for num_threads in (1, 2):
        threads(num_threads)
        results.append(torch.ops.corewise.lstm_direction(*values, reverse=False))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    alone = [values[0][:, 40:41], values[1][40:41], values[2][40:41], *values[3:]]
    assert torch.equal(torch.ops.corewise.lstm_direction(*alone, reverse=False)[0], results[0][0][:, 40:41])


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": False},
    {"batch_first": True},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers_of_all_forms_give_what_torch_gives(options: dict[str, Any]) -> None:
    layer = torch.nn.LSTM(6, 8, **options)
    args = layer_args(layer, torch.randn(12, 40, 6))
    wanted = [*torch.ops.aten.lstm.input(*args)]
    wanted += torch.autograd.grad(wanted[0].square().sum(), [*layer.parameters()])
    got = [*torch.ops.corewise.lstm(*args)]
    assert is_ours(got[0])
    got += torch.autograd.grad(got[0].square().sum(), [*layer.parameters()])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
        assert one.stride() == other.stride()


def layer_args(layer: Any, x: Any, states: Any = None, train: bool = False) -> tuple[Any, ...]:
    rows = x.shape[0 if layer.batch_first else 1]
    num = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = [torch.zeros(num, rows, layer.proj_size or layer.hidden_size, dtype=x.dtype)]
    states = states or [*hidden, torch.zeros(num, rows, layer.hidden_size, dtype=x.dtype)]
    sizes = (layer.bias, layer.num_layers, layer.dropout, train, layer.bidirectional, layer.batch_first)
    return (x, states, layer._flat_weights, *sizes)


def names_of_history(result: Any) -> set[str]:
    """List the names of all autograd nodes that led to a result."""
    waiting, names = [result.grad_fn], {}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in names:
            names[node] = node.name()
            waiting += [one for one, _ in node.next_functions]
    return set(names.values())


def is_ours(result: Any) -> bool:
    return any("LstmFunction" in name for name in names_of_history(result))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (torch.nn.LSTM(6, 8).double(), (12, 40, 6)),
        (torch.nn.LSTM(6, 8, proj_size=3), (12, 40, 6)),
        (torch.nn.LSTM(64, 256), (5, 1, 64)),
        (torch.nn.LSTM(320, 320), (2, 32, 320)),
    ],
    ids=["double", "projected", "one row of a wide layer", "more weights than a cache holds"],
)
def test_unsupported_layers_are_computed_by_torch(layer: Any, shape: tuple[int, ...]) -> None:
    args = layer_args(layer, torch.randn(shape, dtype=next(layer.parameters()).dtype))
    got = torch.ops.corewise.lstm(*args)
    assert not is_ours(got[0])
    assert torch.equal(got[0], torch.ops.aten.lstm.input(*args)[0])


def test_without_gradients_more_weights_are_read_from_a_cache() -> None:
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watching():
        for size in (320, 768):
            torch.ops.corewise.lstm(*layer_args(torch.nn.LSTM(size, size), torch.randn(1, 32, size)))
    assert seen.count(torch.ops.corewise.lstm_direction.default) == 1


def test_dropout_between_layers_draws_what_torch_draws() -> None:
    layer = torch.nn.LSTM(6, 8, num_layers=2, dropout=0.5)
    args = layer_args(layer, torch.randn(12, 40, 6), train=True)
    results = []
    for run in (torch.ops.corewise.lstm, torch.ops.aten.lstm.input):
        torch.manual_seed(5)
        results.append(run(*args)[0])
    assert torch.equal(*results)


def test_under_autocast_types_are_those_of_torch() -> None:
    args = layer_args(torch.nn.LSTM(6, 8), torch.randn(12, 40, 6))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.ops.corewise.lstm(*args)[0].dtype == torch.ops.aten.lstm.input(*args)[0].dtype


def test_nan_stays_in_its_row_and_large_numbers_saturate() -> None:
    values = given((6, 40, 5, 7))
    values[0][2, 11, 3] = float("nan")
    values[0][:, 20] = 1e30
    values[0][:, 21] = -1e30
    values[0][:, 22] = float("inf")
    wanted = by_torch(*values)[0]
    got = torch.ops.corewise.lstm_direction(*values, reverse=False)[0]
    assert torch.equal(got.isnan(), wanted.isnan())
    assert bool(got[2:, 11].isnan().all())
    assert not bool(got[:, 12].isnan().any())
    torch.testing.assert_close(got, wanted, equal_nan=True, **CLOSE)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_of_one_result_alone(which: int) -> None:
    values = [value.requires_grad_() for value in given((8, 20, 4, 6))]
    wanted = torch.autograd.grad(by_torch(*values)[which].square().sum(), values)
    result = torch.ops.corewise.lstm_direction(*values, reverse=False)[which]
    for one, other in zip(torch.autograd.grad(result.square().sum(), values), wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_weights_alone_may_want_gradients() -> None:
    values = given((8, 20, 4, 6))
    own = [value.requires_grad_() for value in values[3:]]
    rows = torch.ops.corewise.lstm_direction(*values, reverse=False)[0]
    wanted = torch.autograd.grad(by_torch(*values)[0].square().sum(), own)
    for one, other in zip(torch.autograd.grad(rows.square().sum(), own), wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("reverse", [False, True])
def test_second_derivatives_are_those_of_torch(reverse: bool) -> None:
    results = []
    for dtype, run in ((torch.float64, by_torch), (torch.float32, torch.ops.corewise.lstm_direction)):
        torch.manual_seed(2)
        values = [value.to(dtype).requires_grad_() for value in given((4, 20, 4, 6))]
        rows, last, _ = run(*values, reverse=reverse)
        first = torch.autograd.grad(rows.square().sum() + last.sum(), values, create_graph=True)
        results.append(torch.autograd.grad(sum(one.square().sum() for one in first), values))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other.double(), one, **CLOSE)


@pytest.mark.parametrize("shared", ["biases", "weights", "states", "state of the input"])
def test_derivatives_to_differentiate_are_each_inputs_own(shared: str) -> None:
    """Where inputs are one and the same, or one is made of another, nothing is counted twice."""
    results = []
    for dtype, run in ((torch.float64, by_torch), (torch.float32, torch.ops.corewise.lstm_direction)):
        torch.manual_seed(2)
        values = [value.to(dtype).requires_grad_() for value in given((4, 20, 6, 6))]
        all_given = list(values)
        if shared == "state of the input":
            all_given[1] = values[0].mean(0)
        else:
            one, other = {"biases": (5, 6), "weights": (3, 4), "states": (1, 2)}[shared]
            all_given[other] = values[one]
        rows = run(*all_given)[0] if run is by_torch else run(*all_given, reverse=False)[0]
        own = [value for value in values if any(value is each for each in all_given)]
        first = torch.autograd.grad(rows.square().sum(), own, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), own)
        results.append([*first, *second])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other.double(), one, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("learns", [False, True])
def test_tensors_that_are_negated_when_read_are_read_so(learns: bool) -> None:
    values = [value.requires_grad_(learns) for value in given((4, 20, 4, 6))]
    wanted = by_torch(-values[0], *values[1:])[0]
    got = torch.ops.corewise.lstm_direction(torch._neg_view(values[0]), *values[1:], reverse=False)[0]
    torch.testing.assert_close(got, wanted, **CLOSE)
    if learns:
        gradients = [torch.autograd.grad(one.square().sum(), values) for one in (got, wanted)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("learns", [False, True])
def test_tensors_without_numbers_pass_as_when_a_graph_is_traced(learns: bool) -> None:
    values = given((4, 20, 4, 6))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value).requires_grad_(learns) for value in values]
        results = torch.ops.corewise.lstm_direction(*fakes, reverse=True)
        gradients = torch.autograd.grad([one.sum() for one in results], fakes) if learns else ()
    wanted = torch.ops.corewise.lstm_direction(*values, reverse=True)
    assert [(one.shape, one.stride()) for one in results] == [(one.shape, one.stride()) for one in wanted]
    assert [one.shape for one in gradients] == [one.shape for one in values] * learns


def test_a_graph_of_any_number_of_rows_is_torchs() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, state: Any, *params: Any) -> Any:
            return torch.ops.corewise.lstm(x, [state, state], params, True, 1, 0.0, False, False, False)

    rows = torch.export.Dim("rows", min=2, max=64)
    inputs = (torch.randn(4, 20, 6), torch.zeros(1, 20, 8), *weights(6, 8))
    sizes = {"x": {1: rows}, "state": {1: rows}, "params": (None,) * 4}
    exported = torch.export.export(Model(), inputs, dynamic_shapes=sizes).module()
    more = (torch.randn(4, 33, 6), torch.zeros(1, 33, 8), *inputs[2:])
    for one, other in zip(exported(*more), Model()(*more), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_derivatives_are_refused_rather_than_lost() -> None:
    values = given((4, 20, 4, 6))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(values[0], torch.ones_like(values[0]))
        with pytest.raises(NotImplementedError, match="forward"):
            torch.ops.corewise.lstm_direction(dual, *values[1:], reverse=False)


@pytest.mark.parametrize(
    ("place", "shape", "named"),
    [(0, (4, 20, 5), "x"), (1, (19, 6), "state"), (4, (24, 5), "weight of the state"), (5, (23,), "bias")],
)
def test_sizes_that_do_not_fit_raise(place: int, shape: tuple[int, ...], named: str) -> None:
    values = given((4, 20, 4, 6))
    values[place] = torch.randn(shape)
    with pytest.raises(RuntimeError, match=f"corewise::lstm.*{named}"):
        torch.ops.corewise.lstm_direction(*values, reverse=False)


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_narrower_vectors_give_the_same_numbers(capability: str) -> None:
    program = (
        "import torch\n"
        "from corewise.accelerate.kernels.build import load_native_module\n"
        "from tests.accelerate.kernels.test_recurrent_kernel import CLOSE, by_torch, given, with_gradients\n"
        "load_native_module()\n"
        "for size in ((7, 5, 3, 4), (20, 33, 10, 10), (5, 17, 7, 13)):\n"
        "    values = given(size)\n"
        "    wanted = with_gradients(by_torch, [value.double() for value in values])\n"
        "    got = with_gradients(torch.ops.corewise.lstm_direction, values, reverse=False)\n"
        "    for one, other in zip(got, wanted):\n"
        "        torch.testing.assert_close(one.double(), other, **CLOSE)\n"
        "print(torch.backends.cpu.get_cpu_capability())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "AVX512" not in done.stdout


def test_a_forked_process_can_use_the_kernel() -> None:
    values = given((30, 64, 9, 11))
    wanted = torch.ops.corewise.lstm_direction(*values, reverse=False)[0]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            code = not torch.equal(torch.ops.corewise.lstm_direction(*values, reverse=False)[0], wanted)
        finally:
            os._exit(int(code))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_slices_are_as_even_as_vectors_allow() -> None:
    assert compute_slice_bounds(7, 2) == [(0, 3), (3, 7)]
    assert compute_slice_bounds(64, 2, 16) == [(0, 32), (32, 64)]
    assert compute_slice_bounds(33, 2, 16) == [(0, 16), (16, 33)]
    # There is less than one vector for each core.
    assert compute_slice_bounds(31, 2, 16) == [(0, 15), (15, 31)]
    rows = [last - first for first, last in compute_slice_bounds(400, 8, 16)]
    assert sum(rows) == 400
    assert all(each % 32 == 0 for each in rows[:-1])


class BothWays(torch.nn.Module):
    """A layer that reads its input forwards and one that reads it backwards."""

    def __init__(self, turns: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.ahead, self.back, self.turns = torch.nn.LSTM(6, 8), torch.nn.LSTM(6, 8), turns

    def forward(self, x: Any) -> Any:
        before, after = self.turns
        back, (last, _) = self.back(x.flip([before]))
        return torch.cat([self.ahead(x)[0], back.flip([after])], -1), last


def targets(captured: CapturedProgram) -> list[str]:
    return [str(call.target) for call in captured.program.calls]


def test_a_layer_between_two_flips_reads_from_the_last_step_on() -> None:
    captured = capture(BothWays().eval(), (torch.randn(7, 64, 6),), {}, 2, own_kernels=True)
    assert captured.program.num_own_lstms == 2 * 2
    assert not any("flip" in one for one in targets(captured))
    assert sum(call.args[-1] is True for call in captured.program.calls if "corewise" in str(call.target)) == 2


@pytest.mark.parametrize("turns", [(1, 1), (0, 1), (1, 0)])
def test_other_flips_are_not_removed(turns: tuple[int, int]) -> None:
    captured = capture(BothWays(turns).eval(), (torch.randn(7, 64, 6),), {}, 1, own_kernels=True)
    assert captured.program.num_own_lstms == 2
    assert sum("flip" in one for one in targets(captured)) == 2


def test_without_our_kernels_the_graph_is_torchs() -> None:
    captured = capture(BothWays().eval(), (torch.randn(7, 64, 6),), {}, 2)
    assert captured.program.has_only_torch_operators
    assert not any("corewise" in one for one in targets(captured))


@pytest.fixture
def planned_natively() -> Any:
    made: list[Malleable] = []

    def make(model: Any, x: Any, **options: Any) -> Malleable:
        settings = {"executor": "native", "planning_s": 0.1, "keep": False, "run": "planned", **options}
        made.append(malleable(model, (x,), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("turns", [(0, 0), (1, 1)])
def test_a_planned_model_gives_what_the_module_gives(turns: Any, planned_natively: Any) -> None:
    model, x = BothWays(turns).eval(), torch.randn(7, 64, 6)
    with torch.no_grad():
        fast = planned_natively(model, x)
        assert "recurrent layers run row by row" in fast.explain()
        for _ in range(2):
            x = torch.randn(7, 64, 6)
            for one, other in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(one, other, **CLOSE)
        # Later changes of the weights take effect.
        model.back.weight_hh_l0.mul_(2)
        for one, other in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


def test_a_planned_model_trains_as_the_module_does(planned_natively: Any) -> None:
    model, x = BothWays(), torch.randn(7, 64, 6)
    fast = planned_natively(model, x)
    assert "recurrent layers run row by row" in fast.explain()
    x = torch.randn(7, 64, 6)
    wanted = torch.autograd.grad(sum(one.square().sum() for one in model(x)), [*model.parameters()])
    got = torch.autograd.grad(sum(one.square().sum() for one in fast(x)), [*model.parameters()])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_torchs_kernels_run_where_ours_are_not_wanted(planned_natively: Any) -> None:
    model, x = BothWays(), torch.randn(7, 64, 6)
    assert "row by row" not in planned_natively(model, x, kernels=False).explain()


def test_a_planned_model_has_second_derivatives(planned_natively: Any) -> None:
    model, x = BothWays(), torch.randn(5, 64, 6, requires_grad=True)
    results = []
    for run in (model, planned_natively(model, x)):
        [first] = torch.autograd.grad(run(x)[0].square().sum(), [x], create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [x])[0])
    torch.testing.assert_close(*results, **CLOSE)
