"""Small recurrent layers over one input joined into wider ones: same numbers, and where nothing is joined."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.accelerate.malleable.program_replay import replay
from torch.utils import _pytree as pytree

from corewise.accelerate.fast_kernels.wide_lstm import choose_group_sizes
from corewise.accelerate.malleable.capture.batch_cuts import MIN_SLICE_ROWS
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.module_wrapper import malleable

pytestmark = pytest.mark.torch
CORES, ROWS, STEPS = 2, 64, 7
HIDDEN = 5


class Members(torch.nn.Module):
    """LSTMs over one input; `ends` selects what is done with their results."""

    def __init__(self, num: int = 3, hidden: int = HIDDEN, ends: str = "sum", **options: Any) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(torch.nn.LSTM(6, hidden, **options) for _ in range(num))
        self.ends = ends

    def forward(self, x: Any) -> Any:
        results = [member(x) for member in self.members]
        rows = [each[0] for each in results]
        if self.ends == "states":
            return torch.stack(rows), [each[1] for each in results]
        if self.ends == "rows":
            return rows
        if self.ends == "views":
            return [each.view(-1, each.shape[-1]) for each in rows]
        if self.ends == "stack":
            return torch.stack(rows), torch.cat([each[1][0] for each in results])
        if self.ends == "first":
            return rows[0] + sum(each.detach() for each in rows[1:])
        return torch.stack(rows).sum(0).mean(0)


class BothWays(torch.nn.Module):
    """Members that read the input forwards, and others that read it backwards, each with a separate flip."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = torch.nn.ModuleList(torch.nn.LSTM(6, HIDDEN) for _ in range(4))
        self.back = torch.nn.ModuleList(torch.nn.LSTM(6, HIDDEN) for _ in range(4))

    def forward(self, x: Any) -> Any:
        pairs = zip(self.ahead, self.back, strict=True)
        return torch.stack([torch.cat([a(x)[0], b(x.flip([0]))[0].flip([0])], -1) for a, b in pairs]).sum(0)


class Chain(torch.nn.Module):
    """Each layer reads what the one before gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.LSTM(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)[0]
        return x


class FromStates(torch.nn.Module):
    """Members with separate initial states."""

    def __init__(self) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(torch.nn.LSTM(6, HIDDEN) for _ in range(3))

    def forward(self, x: Any, state: Any) -> Any:
        return torch.stack([member(x, (state, state))[0] for member in self.members])


class OtherRows(Members):
    """Batches of two sizes: such layers are not cut."""

    def forward(self, x: Any) -> Any:
        return [*(member(x)[0] for member in self.members[:2]), self.members[2](x[:, :MIN_SLICE_ROWS])[0]]


class InPlace(Members):
    """Something is written to: nothing is moved then."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).add_(1.0)


def list_widths(captured: CapturedProgram) -> set[int]:
    """List the hidden units of the recurrent layers of a program."""
    layers = [signature for signature in captured.call_signatures if signature.startswith("aten.lstm.input")]
    # Each ends in (steps, rows, hidden) and the states.
    results = [signature.rpartition(" [")[2] for signature in layers]
    return {int(each.partition(")")[0].rpartition(", ")[2]) for each in results}


def assert_same(module: Any, captured: CapturedProgram, *inputs: Any) -> None:
    one, other = (pytree.tree_leaves(run) for run in (module(*inputs), replay(captured, module, *inputs)))
    for wanted, got in zip(one, other, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        assert got.stride() == wanted.stride()


@pytest.fixture
def x() -> Any:
    torch.manual_seed(1)
    return torch.randn(STEPS, ROWS, 6)


@pytest.mark.parametrize("ends", ["sum", "states", "rows", "views"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"bidirectional": True}, {"bidirectional": True, "bias": False}],
    ids=["biases", "none", "bidirectional", "bidirectional, none"],
)
def test_a_wide_layer_gives_the_numbers_of_its_members(x: Any, ends: str, options: dict[str, Any]) -> None:
    module = Members(ends=ends, **options).eval()
    with torch.no_grad():
        captured = capture(module, (x,), {}, CORES)
        assert list_widths(captured) == {3 * HIDDEN * (2 if options.get("bidirectional") else 1)}
        assert_same(module, captured, x)


def test_inputs_that_were_flipped_one_by_one_are_one_input(x: Any) -> None:
    module = BothWays().eval()
    with torch.no_grad():
        captured = capture(module, (x,), {}, CORES)
        assert list_widths(captured) == {4 * HIDDEN}
        num_layers = sum(str(call.target) == "aten.lstm.input" for call in captured.program.calls)
        assert captured.program.num_joined_lstms == 8
        # Each core has a slice of each direction.
        assert num_layers == 2 * CORES
        assert_same(module, captured, x)


def test_weights_that_change_later_are_those_that_count(x: Any) -> None:
    module = Members().eval()
    with torch.no_grad():
        captured = capture(module, (x,), {}, CORES)
        before = replay(captured, module, x)
        for weight in module.parameters():
            weight.mul_(-1.5)
        assert not torch.allclose(before, module(x))
        assert_same(module, captured, x)


def compute_gradients(module: Any, results: Any) -> list[Any]:
    """Compute the gradients of all weights, for a weighted sum of the results."""
    parts = [(each * torch.linspace(-1, 1, each.numel()).view(each.shape)).sum() for each in results]
    return list(torch.autograd.grad(sum(parts), list(module.parameters()), allow_unused=True))


def assert_same_gradients(one: list[Any], other: list[Any]) -> None:
    assert [each is None for each in one] == [each is None for each in other]
    for wanted, got in zip(one, other, strict=True):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.norm()))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_are_those_of_the_members(x: Any, bidirectional: bool) -> None:
    module = Members(ends="stack", bidirectional=bidirectional).train()
    captured = capture(module, (x,), {}, CORES)
    assert captured.program.num_joined_lstms == 3
    assert_same_gradients(compute_gradients(module, module(x)), compute_gradients(module, replay(captured, module, x)))


def test_weights_that_members_share_get_the_gradients_of_all(x: Any) -> None:
    module = Members(ends="stack").train()
    module.members[1].weight_hh_l0 = module.members[0].weight_hh_l0
    module.members[2].requires_grad_(False)
    weights = module.members[:2]
    captured = capture(module, (x,), {}, CORES)
    assert captured.program.num_joined_lstms == 3
    assert_same_gradients(
        compute_gradients(weights, module(x)), compute_gradients(weights, replay(captured, module, x))
    )


@pytest.mark.parametrize("ends", ["rows", "first"])
def test_members_of_other_results_stay_apart_where_gradients_are_computed(x: Any, ends: str) -> None:
    """Members without a part in a loss have no gradient: an optimizer leaves them as they are."""
    module = Members(num=2, ends=ends).train()
    captured = capture(module, (x,), {}, CORES)
    assert captured.program.num_joined_lstms == 0
    first = [each if ends == "first" else each[0] for each in (module(x), replay(captured, module, x))]
    one, other = (compute_gradients(module, [each]) for each in first)
    assert sum(each is None for each in one) == 4
    assert_same_gradients(one, other)
    with torch.no_grad():
        assert capture(module, (x,), {}, CORES).program.num_joined_lstms == 2


@pytest.mark.parametrize("executor", ["native", "python"])
def test_losses_of_members_go_back_one_after_the_other(x: Any, executor: str) -> None:
    module = Members(ends="rows").train()
    other = copy.deepcopy(module)
    with malleable(other, (x,), run="planned", planning_s=0.5, keep=False, executor=executor) as fast:
        assert fast.explain().count("operators in") == 1
        for rows in (module(x), fast(x)):
            for each in rows[:2]:
                each.pow(2).sum().backward()
    results = [[each.grad for each in one.parameters()] for one in (module, other)]
    assert sum(each is None for each in results[0]) == 4
    assert_same_gradients(*results)


def test_layers_whose_joined_weights_leave_the_cache_stay(x: Any) -> None:
    module = Members(num=2).eval()
    module.members = torch.nn.ModuleList(torch.nn.LSTM(4000, HIDDEN) for _ in range(2))
    wide = torch.randn(2, ROWS, 4000)
    with torch.no_grad():
        captured = capture(module, (wide,), {}, CORES)
        assert list_widths(captured) == {HIDDEN}
        # The joined layer could not be cut.
        assert captured.program.is_cut
        assert_same(module, captured, wide)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Chain(), (torch.randn(STEPS, ROWS, HIDDEN),)),
        (FromStates(), (torch.randn(STEPS, ROWS, 6), torch.randn(1, ROWS, HIDDEN))),
        (InPlace(), (torch.randn(STEPS, ROWS, 6),)),
        (OtherRows(), (torch.randn(STEPS, ROWS, 6),)),
        (Members().double(), (torch.randn(STEPS, ROWS, 6, dtype=torch.float64),)),
        (Members(batch_first=True), (torch.randn(ROWS, STEPS, 6),)),
        (Members(), (torch.randn(STEPS, MIN_SLICE_ROWS - 1, 6),)),
    ],
    ids=["one after another", "states", "in place", "other rows", "double", "batch first", "few rows"],
)
def test_what_cannot_be_joined_or_would_leave_cores_idle_stays(module: Any, inputs: tuple[Any, ...]) -> None:
    module.eval()
    with torch.no_grad():
        captured = capture(module, inputs, {}, CORES)
        assert list_widths(captured) == {HIDDEN}
        assert_same(module, captured, *inputs)


def test_wide_layers_stay_apart_and_narrow_ones_fill_vectors() -> None:
    # One wide layer uses 40 of 48 lanes, four layers use 10 of 16 each.
    assert choose_group_sizes(4, 10, 16) == [4]
    assert choose_group_sizes(4, 20, 16) == [2, 2]
    assert choose_group_sizes(8, 8, 16) == [4, 4]
    for hidden in (16, 32, 64, 256):
        assert choose_group_sizes(4, hidden, 16) == [1, 1, 1, 1]


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_planned_ensemble_of_small_layers_gives_what_the_module_gives(x: Any, executor: str) -> None:
    module = BothWays().eval()
    with torch.no_grad():
        fast = malleable(module, (x,), run="planned", planning_s=1.0, keep=False, executor=executor)
        try:
            joined, own = ("8 small recurrent layers run joined into wider ones", "recurrent layers run row by row")
            assert (own if executor == "native" else joined) in fast.explain()
            for _ in range(3):
                other = torch.randn_like(x)
                torch.testing.assert_close(fast(other), module(other), rtol=1e-5, atol=1e-6)
        finally:
            fast.close()
