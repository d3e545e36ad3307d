"""Programs cut along the batch from their inputs on: same numbers, and where nothing is cut."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.accelerate.malleable.program_replay import replay
from tests.accelerate.sample_models import RandomGraph, Wide
from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.malleable import plan_facts, planned_module
from corewise.accelerate.malleable.capture import whole_batch_cuts
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.capture.whole_batch_cuts import choose_num_slices
from corewise.accelerate.malleable.explanation import describe_task
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable
from corewise.accelerate.malleable.plan import planner
from corewise.accelerate.malleable.plan.planner import estimate_slice_costs
from corewise.accelerate.malleable.plan.task_merging import merge_calls

pytestmark = pytest.mark.torch
CORES = 4


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Residual(nn.Module):
    """Convolutions with norms, writes in place, branches and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.drop = nn.GroupNorm(2, 16), nn.Dropout(0.5, inplace=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        both = self.norm(torch.cat([self.left(x) + x, self.right(x)], 1)).relu_()
        pooled = torch.flatten(nn.functional.adaptive_avg_pool2d(both, 1), 1)
        return self.last(self.drop(pooled)), both


class Attending(nn.Module):
    """A layer of a transformer, with what encoders do besides: positions, heads, a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.randn(6, 8))
        self.parts, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        rows, steps = x.shape
        x = self.tokens(x) + self.places
        q, k, v = (one.view(rows, steps, 2, 4).transpose(1, 2) for one in self.parts(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.norm(x + self.out(mixed.transpose(1, 2).reshape(rows, steps, 8)))
        best, which = x.max(1)
        return {"mean": x.mean(1), "best": best, "which": which, "over all": x.sum()}


class Experts(nn.Module):
    """Experts of which each row has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        scores = self.gate(x)
        least = scores.topk(2, -1).values[..., -1:]
        shares = scores.masked_fill(scores < least, -torch.inf).softmax(-1)
        return (torch.stack([one(x).tanh() for one in self.experts], -2) * shares.unsqueeze(-1)).sum(-2)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "convolutions": (Residual, lambda rows: torch.randn(rows, 3, 12, 12, dtype=torch.float64)),
    "attention": (Attending, lambda rows: torch.randint(11, (rows, 6))),
    "experts": (Experts, lambda rows: torch.randn(rows, 5, 8, dtype=torch.float64)),
    "branches": (Wide, lambda rows: torch.randn(rows, 16, dtype=torch.float64)),
}


def made(name: str, rows: int) -> tuple[Any, Any]:
    make, inputs = MODELS[name]
    return make().double().eval(), inputs(rows)


def in_slices(module: Any, *inputs: Any, num_cores: int = CORES) -> CapturedProgram | None:
    return capture(module, inputs, {}, num_cores).in_slices


def assert_same(actual: Any, expected: Any) -> None:
    one, other = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    for mine, plain in zip(one, other, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-12)
        assert mine.stride() == plain.stride()


@pytest.mark.parametrize("rows", [2, 4, 8, 17, 64])
@pytest.mark.parametrize("name", MODELS)
def test_slices_give_the_numbers_of_the_whole(name: str, rows: int) -> None:
    module, x = made(name, rows)
    cut = in_slices(module, x)
    assert cut is not None
    assert cut.program.num_slices == choose_num_slices(rows, CORES) == len(set(cut.program.slices) - {None})
    assert_same(replay(cut, module, x), module(x))
    again = torch.randn_like(x) if x.is_floating_point() else x.flip(0)
    assert_same(replay(cut, module, again), module(again))


def test_only_what_needs_the_whole_batch_is_left_whole() -> None:
    module, x = made("attention", 8)
    cut = in_slices(module, x)
    assert cut is not None
    whole = [call.name for call, part in zip(cut.program.calls, cut.program.slices, strict=True) if part is None]
    assert all(name.startswith(("cat", "sum")) for name in whole)
    # Four concatenated results, and a sum over all rows.
    assert len(whole) == 5


def test_weights_that_a_slice_hardly_uses_are_read_once() -> None:
    class Classifier(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(400, width)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x).flatten(1))

    for width, is_cut in ((8, True), (4000, False)):
        cut = in_slices(Classifier(width), torch.randn(8, 1, 12, 12))
        assert cut is not None
        targets = [str(call.target) for call in cut.program.calls]
        assert targets.count("aten.linear.default") == (CORES if is_cut else 1)


def test_several_inputs_are_cut_where_they_have_as_many_rows() -> None:
    class Two(nn.Module):
        def forward(self, x: Any, y: Any, scale: Any) -> Any:
            return torch.tanh(x @ y.transpose(1, 2)) * scale

    inputs = torch.randn(8, 3, 4), torch.randn(8, 5, 4), torch.randn(5)
    cut = in_slices(Two(), *inputs)
    assert cut is not None
    assert_same(replay(cut, Two(), *inputs), Two()(*inputs))


def test_a_write_that_others_see_stays_a_write() -> None:
    class Seen(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 2.0
            z = y + 1.0
            torch.relu_(y)
            return y + z, y.view(-1)[::2].mul_(0.5).sum()

    module, x = Seen(), torch.randn(8, 6)
    assert in_slices(module, x) is None
    fast = malleable(module, (x,), planning_s=0.2, keep=False)
    assert_same(fast(x), module(x))
    fast.close()


def test_a_write_of_a_wider_type_stays_a_write() -> None:
    class Wrapping(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return (x + 1).add_(y * 3).to(torch.int64) * 2

    small, wide = torch.ones(8, 6, dtype=torch.uint8), torch.ones(8, 6, dtype=torch.int64)
    # 300 fits only if the sum has a wider type than the written tensor.
    assert in_slices(Wrapping(), small, wide) is None
    assert in_slices(Wrapping(), small, small) is not None


def test_a_write_to_what_dropout_passed_on_stays_a_write() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            y = x * 2.0
            self.drop(y).clamp_(min=0.0)
            return y + 1.0

    class ToInputs(Passing):
        def forward(self, x: Any) -> Any:
            return self.drop(x).clamp_(min=0.0) + 1.0

    x = torch.randn(8, 6)
    assert in_slices(Passing().eval(), x) is None
    assert capture(ToInputs().eval(), (x,), {}, CORES).written_values == (0,)
    assert capture(ToInputs().train(), (x,), {}, CORES).written_values == ()


def test_a_check_that_would_fail_fails_in_slices() -> None:
    class Checking(nn.Module):
        def forward(self, x: Any) -> Any:
            torch._assert_async((x < 100).all(), "too large")
            return torch.relu(x * 2.0)

    module, x = Checking(), torch.rand(8, 6)
    cut = in_slices(module, x)
    assert cut is not None
    assert_same(replay(cut, module, x), module(x))
    with pytest.raises(RuntimeError):
        replay(cut, module, x + 100)


def test_slices_without_readers_are_not_concatenated() -> None:
    class Narrowing(nn.Module):
        # Export evaluates the conversion and records nothing.
        def forward(self, x: Any) -> Any:
            return torch.relu((x * 2.0).to(torch.float32))

    cut = in_slices(Narrowing(), torch.randn(8, 6, dtype=torch.float64))
    assert cut is not None
    assert [str(call.target) for call in cut.program.calls].count("aten.cat.default") == 1


@pytest.mark.parametrize(
    "returned",
    [
        lambda x, y: (y, y.view(8, 2, -1)),
        lambda x, y: (y, nn.functional.dropout(y, 0.5, training=False)),
        lambda x, y: (y, nn.functional.dropout(x, 0.5, training=False)),
    ],
    ids=["each other", "each other unseen", "input"],
)
def test_results_that_share_memory_still_do(returned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tied(nn.Module):
        def forward(self, x: Any) -> Any:
            return returned(x, torch.tanh(x * 2.0))

    chosen_in_slices(monkeypatch)
    module, x = Tied(), torch.randn(8, 600)
    fast = planned(module, x, keep=False)
    try:
        assert "slices" not in fast.explain()
        one, other = fast(x)
        assert other.data_ptr() in (one.data_ptr(), x.data_ptr())
    finally:
        fast.close()


def test_slices_that_fail_leave_the_plans_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(case: Any, expected: Any) -> str:
        if case.program.num_slices:
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
        return ""

    monkeypatch.setattr(planned_module, "find_difference", failing)
    module, x = made("branches", 8)
    fast = planned(module, x, keep=False)
    try:
        assert "planning failed" not in fast.explain()
        assert_same(fast(x), module(x))
    finally:
        fast.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_in_slices_are_equal_to_plain(seed: int) -> None:
    module, x = RandomGraph(seed, 14, writes=bool(seed % 3 == 0)).double(), torch.randn(12, 12).double()
    cut = in_slices(module, x, num_cores=2 + seed % 5)
    if cut is not None:
        assert_same(replay(cut, module, x), module(x))
    else:
        assert seed % 3 == 0 or choose_num_slices(12, 2 + seed % 5) == 1


def test_nothing_is_cut_where_it_would_change_results() -> None:
    module, x = made("convolutions", 8)
    assert in_slices(module, x) is not None
    # A single row.
    assert in_slices(module, x[:1]) is None
    # These rows cannot be shared evenly.
    assert in_slices(module, x[:7]) is None
    assert in_slices(module, x, num_cores=1) is None
    # Batch statistics and dropout masks need the whole batch.
    assert in_slices(module.train(), x) is None
    with torch.enable_grad():
        assert in_slices(module.eval(), x) is None

    class Writing(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1.0).tanh()

    assert in_slices(Writing(), torch.randn(8, 3)) is None

    class Mixing(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.cumsum(0).tanh()

    # Each operator needs all rows.
    assert in_slices(Mixing(), torch.randn(8, 3)) is None


@pytest.mark.parametrize(
    ("rows", "cores", "num"), [(8, 16, 8), (16, 16, 16), (64, 16, 16), (67, 16, 16), (12, 16, 4), (7, 4, 1)]
)
def test_cores_are_shared_out_evenly(rows: int, cores: int, num: int) -> None:
    assert choose_num_slices(rows, cores) == num


def test_slices_cost_their_share_and_each_is_one_task() -> None:
    module, x = made("convolutions", 8)
    uncut = capture(module, (x,), {}, CORES)
    cut = uncut.in_slices
    assert cut is not None
    costs = [{1: 4e-3, 2: 2e-3, 4: 1e-3} for _ in uncut.program.calls]
    sliced = estimate_slice_costs(cut, costs)
    convolutions = [n for n, call in enumerate(cut.program.calls) if "conv2d" in str(call.target)]
    assert len(convolutions) == 3 * CORES
    assert all(sliced[number] == {1: 1e-3, 2: 0.5e-3, 4: 0.25e-3} for number in convolutions)
    tasks = merge_calls(cut.program, sliced, 20e-6)
    of_slices = [{cut.program.slices[call] for call in task.calls} for task in tasks]
    assert sorted(part for one in of_slices if None not in one for part in one) == list(range(CORES))
    operators = [plan_facts._name_operator(cut.program, task, sliced) for task in tasks]
    assert operators.count("slice") == CORES < len(operators)
    names = sorted(describe_task(cut.program, task, sliced) for task in tasks)
    assert names[-CORES:] == [f"slice {part} of {CORES}, 15 operators" for part in range(1, CORES + 1)]


def chosen_in_slices(monkeypatch: Any) -> None:
    """Let the slices win the race."""

    def best_of(times: Any, plain: str) -> str:
        return next((name for name in times if "slices" in name), plain)

    monkeypatch.setattr(planner, "choose_fastest", best_of)


def planned(module: Any, x: Any, **options: Any) -> Malleable:
    return malleable(module, (x,), planning_s=0.5, cpus=None, **options)


@pytest.mark.parametrize("executor", [None, "python"])
def test_slices_that_win_run_and_are_cached(
    executor: str | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path))
    chosen_in_slices(monkeypatch)
    module, x = made("convolutions", 8)
    if torch.get_num_threads() < 2:
        pytest.skip("a machine with one core cuts nothing")
    first = planned(module, x, executor=executor)
    try:
        assert "slices, from the inputs until they are joined" in first.explain()
        entry = first._last_plan
        assert entry is not None
        assert entry.decision is not None
        # The widths may differ.
        assert "slices, " in entry.decision.chosen
        for rows in (8, 8, 24):
            other = torch.randn(rows, 3, 12, 12, dtype=torch.float64)
            assert_same(first(other), module(other))
        assert first.timeline()
    finally:
        first.close()
    monkeypatch.undo()
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path))
    second = planned(module, x, executor=executor)
    try:
        entry = second._last_plan
        assert entry is not None
        assert entry.decision is not None
        assert entry.decision.is_cached
        assert entry.decision.is_in_slices
        assert_same(second(x), module(x))
    finally:
        second.close()


def test_where_the_whole_has_won_nothing_is_cut_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path))
    monkeypatch.setattr(planner, "choose_fastest", lambda times, plain: plain)
    module, x = made("convolutions", 8)
    planned(module, x).close()
    monkeypatch.setattr(whole_batch_cuts, "cut_inputs", lambda *_: pytest.fail("it was cut again"))
    again = planned(module, x)
    assert_same(again(x), module(x))
    again.close()


def test_weights_that_change_are_seen_by_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_in_slices(monkeypatch)
    module, x = made("experts", 8)
    fast = planned(module, x, keep=False)
    try:
        for one in module.parameters():
            one.data.mul_(1.5)
        assert_same(fast(x), module(x))
    finally:
        fast.close()


def test_teams_end_when_a_plan_has_lost_on_real_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_in_slices(monkeypatch)
    module, x = made("branches", 8)
    fast = planned(module, x, keep=False)
    try:
        fast(x)
        assert fast._held_teams
        entry = fast._last_plan
        assert entry is not None
        assert entry.decision is not None
        entry.decision.executor, entry.decision.chosen = None, "plain"
        assert_same(fast(x), module(x))
        assert not fast._held_teams
        assert_same(fast(x), module(x))
    finally:
        fast.close()
