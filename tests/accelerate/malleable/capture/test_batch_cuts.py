"""Recurrent layers cut along their batch: same results, same gradients, and where nothing is cut."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.accelerate.malleable.program_replay import replay
from torch.utils import _pytree as pytree

from corewise.accelerate.malleable.capture.batch_cuts import MAX_SLICE_ROWS, MIN_SLICE_ROWS, count_slices
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.module_wrapper import malleable
from corewise.accelerate.malleable.plan.task_merging import build_call_graph, group_slices, merge_calls

pytestmark = pytest.mark.torch
CORES = 4


class Recurrent(torch.nn.Module):
    """A recurrent layer between other layers; its states are results too."""

    def __init__(self, layer_type: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, layer_type)(6, 5, **options)
        width = options.get("proj_size", 5) * (2 if options.get("bidirectional") else 1)
        self.last = torch.nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        rows, states = self.layer(torch.tanh(x))
        return self.last(rows), rows.flip([0]).mean([0, 1]), states


class Ensemble(torch.nn.Module):
    """Both directions of two members."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = torch.nn.ModuleList(torch.nn.LSTM(6, 5) for _ in range(2))
        self.back = torch.nn.ModuleList(torch.nn.LSTM(6, 5) for _ in range(2))
        self.last = torch.nn.Linear(10, 7)

    def forward(self, x: Any) -> Any:
        x = x.transpose(0, 1).contiguous()
        members = [
            torch.cat([one(x)[0], other(x.flip([0]))[0].flip([0])], -1)
            for one, other in zip(self.ahead, self.back, strict=True)
        ]
        return self.last(torch.stack(members).sum(0).mean(0))


def count_layers(captured: CapturedProgram) -> int:
    return sum(str(call.target).endswith(".input") for call in captured.program.calls)


def build_weights_like(leaf: Any) -> Any:
    return torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype).view(leaf.shape)


def assert_alike(module: Any, captured: CapturedProgram, x: Any) -> None:
    """Assert that results and gradients of the program are those of the module."""
    runs = []
    for run in (lambda: module(x), lambda: replay(captured, module, x)):
        leaves = pytree.tree_leaves(run())
        weights = list(module.parameters())
        total = sum((leaf * build_weights_like(leaf)).sum() for leaf in leaves)
        runs.append((leaves, torch.autograd.grad(total, weights)))
    for one, other in zip(pytree.tree_leaves(runs[0]), pytree.tree_leaves(runs[1]), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layer_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}, {"bias": False}],
    ids=["plain", "deep bidirectional", "batch first", "no bias"],
)
def test_slices_give_the_numbers_and_gradients_of_the_whole(layer_type: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    # Slices have 16 and 17 rows.
    module, num_rows = Recurrent(layer_type, **options).double(), 67
    shape = (num_rows, 9, 6) if options.get("batch_first") else (9, num_rows, 6)
    x = torch.randn(shape, dtype=torch.float64)
    captured = capture(module, (x,), {}, CORES)
    assert count_layers(captured) == CORES
    assert_alike(module, captured, x)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projected_states_are_cut_too() -> None:
    module, x = Recurrent("LSTM", proj_size=2).double(), torch.randn(9, 64, 6, dtype=torch.float64)
    captured = capture(module, (x,), {}, CORES)
    assert count_layers(captured) == CORES
    assert_alike(module, captured, x)


def test_operators_before_and_after_are_cut_too() -> None:
    module, x = Ensemble().double(), torch.randn(64, 9, 6, dtype=torch.float64)
    captured = capture(module, (x,), {}, CORES)
    names = [str(call.target) for call in captured.program.calls]
    assert count_layers(captured) == 4 * CORES
    assert names.count("aten.stack.default") == names.count("aten.mean.dim") == CORES
    # One per slice for the directions of each member, and one for all slices at the end.
    assert names.count("aten.cat.default") == 2 * CORES + 1
    assert_alike(module, captured, x)


def test_a_planned_ensemble_gives_what_the_module_gives() -> None:
    module, x = Ensemble().eval(), torch.randn(64, 9, 6)
    with torch.no_grad():
        fast = malleable(module, (x,), run="planned", planning_s=1.0, keep=False)
        try:
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
            other = torch.randn(80, 9, 6)
            torch.testing.assert_close(fast(other), module(other), rtol=1e-4, atol=1e-5)
        finally:
            fast.close()


def test_slices_put_together_lie_in_memory_as_the_whole_does() -> None:
    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(6, 5, batch_first=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, _ = self.layer(x)
            return y, y.transpose(0, 1).view(-1)

    module, x = First().double(), torch.randn(64, 9, 6, dtype=torch.float64)
    captured = capture(module, (x,), {}, CORES)
    assert captured.program.is_cut
    assert_alike(module, captured, x)
    with torch.no_grad():
        fast = malleable(module, (x,), run="planned", planning_s=0.1, keep=False)
        try:
            assert [one.stride() for one in fast(x)] == [one.stride() for one in module(x)]
            assert fast.timeline()
        finally:
            fast.close()


def test_a_planned_ensemble_trains_as_the_module_does() -> None:
    module, x = Ensemble(), torch.randn(64, 9, 6)
    module(x).square().mean().backward()
    expected = [one.grad.clone() for one in module.parameters()]
    fast = malleable(module, (x,), run="planned", planning_s=1.0, keep=False)
    try:
        module.zero_grad()
        fast(x).square().mean().backward()
    finally:
        fast.close()
    for one, grad in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(one.grad, grad, rtol=1e-4, atol=1e-6)


def is_uncut(module: Any, x: Any) -> bool:
    return count_layers(capture(module, (x,), {}, CORES)) == 1


def test_nothing_is_cut_where_it_would_change_results_or_not_help() -> None:
    many, few = torch.randn(9, 64, 6), torch.randn(9, 2 * MIN_SLICE_ROWS - 1, 6)
    assert not is_uncut(Recurrent("LSTM"), many)
    assert is_uncut(Recurrent("LSTM"), few)
    assert is_uncut(Recurrent("LSTM", num_layers=2, dropout=0.5), many)
    assert not is_uncut(Recurrent("LSTM", num_layers=2, dropout=0.5).eval(), many)
    # The weights do not fit a core's cache.
    assert is_uncut(torch.nn.LSTM(6, 256), many)
    # The input has no batch dimension.
    assert is_uncut(torch.nn.LSTM(6, 5), torch.randn(9, 6))


def test_a_program_that_writes_to_its_inputs_is_not_cut() -> None:
    class Writing(Recurrent):
        def forward(self, x: Any) -> Any:
            rows, _ = self.layer(x)
            x.add_(1.0)
            return rows

    assert is_uncut(Writing("GRU"), torch.randn(9, 64, 6))


@pytest.mark.parametrize("num_cores", [2, 3, 16, 64])
@pytest.mark.parametrize("num_rows", [32, 100, 400, 5000])
@pytest.mark.parametrize("num_together", [1, 8])
def test_slices_are_neither_too_small_nor_too_many(num_rows: int, num_together: int, num_cores: int) -> None:
    num = count_slices(num_rows, num_together, num_cores)
    assert num_rows // num >= MIN_SLICE_ROWS
    assert -(-num_rows // num) <= MAX_SLICE_ROWS or num == num_rows // MIN_SLICE_ROWS
    if num_rows // num_cores >= MIN_SLICE_ROWS:
        assert num % num_cores == 0


def test_slices_are_larger_where_gradients_are_wanted() -> None:
    module, x = Recurrent("LSTM"), torch.randn(9, 2 * CORES * MAX_SLICE_ROWS, 6)
    assert count_layers(capture(module, (x,), {}, CORES)) == CORES
    with torch.no_grad():
        assert count_layers(capture(module, (x,), {}, CORES)) == 2 * CORES


def test_a_slice_is_one_task_where_there_is_one_for_every_core() -> None:
    # Layers of float64 are not joined.
    x = torch.randn(64, 9, 6, dtype=torch.float64)
    program = capture(Ensemble().double(), (x,), {}, CORES).program
    assert sorted({part for part in program.slices if part is not None}) == list(range(CORES))
    tasks = merge_calls(program, [{1: 1e-3, 2: 1e-3}] * len(program.calls), 1e-5)
    layers = [sum(str(program.calls[call].target) == "aten.lstm.input" for call in task.calls) for task in tasks]
    assert [num for num in layers if num] == [4] * CORES


@pytest.mark.parametrize("at", [(slice(2, None),), (slice(None), slice(None), slice(6))])
def test_layers_that_share_a_piece_of_their_input_are_cut_right(at: Any) -> None:
    class Pieces(Ensemble):
        def forward(self, x: Any) -> Any:
            # Cut along time or features, it must still be cut along the batch.
            piece = x[at]
            return [layer(piece)[0] for layer in (*self.ahead, *self.back)]

    module, x = Pieces().double(), torch.randn(9, 64, 6 if len(at) == 1 else 8, dtype=torch.float64)
    captured = capture(module, (x,), {}, CORES)
    assert count_layers(captured) == 4 * CORES
    with torch.no_grad():
        torch.testing.assert_close(replay(captured, module, x), module(x), rtol=1e-9, atol=1e-12)


def test_slices_that_meet_in_between_are_tasks_before_and_after() -> None:
    class Meeting(Ensemble):
        def forward(self, x: Any) -> Any:
            first, _ = self.ahead[0](x)
            # The mean over the batch needs every slice.
            shared = first - first.mean(1, keepdim=True)
            second, _ = self.back[0](torch.cat([shared, x[..., :1]], -1))
            return second

    module = Meeting()
    x = torch.randn(9, 64, 6)
    captured = capture(module, (x,), {}, CORES)
    groups = group_slices(captured.program, build_call_graph(captured.program))
    assert len(groups) == 2 * CORES
    tasks = merge_calls(captured.program, [{1: 1e-3}] * len(captured.program.calls), 1e-5)
    assert all(max(task.needs, default=-1) < number for number, task in enumerate(tasks))
    with torch.no_grad():
        torch.testing.assert_close(replay(captured, module, x), module(x), rtol=1e-4, atol=1e-5)
