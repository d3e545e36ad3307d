"""Whatever the plan, a malleable model gives what the model gives."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.accelerate.sample_models import Lstms, RandomGraph, Wide
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.python_executor import PythonExecutor
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable
from corewise.accelerate.malleable.plan.lane_widths import list_widths
from corewise.accelerate.malleable.plan.plan_candidates import build_plan as plan_with
from corewise.accelerate.malleable.plan.task_merging import find_chains, merge_calls, sum_task_costs

Make = Callable[..., Malleable]


@pytest.fixture(scope="module")
def four_lanes() -> Any:
    """Build teams for four cores, on two or more real ones."""
    import os

    cpus = sorted(os.sched_getaffinity(0))
    teams = Teams([cpus[number % len(cpus)] for number in range(4)])
    teams.num_users = 1
    yield teams
    teams.release()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num_operators=st.integers(1, 30), writes=st.booleans())
def test_random_graphs_at_random_widths_equal_plain_execution(
    four_lanes: Teams, seed: int, num_operators: int, writes: bool
) -> None:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    model = RandomGraph(seed, num_operators, writes).eval()
    x = torch.randn(12, 12)
    with torch.no_grad():
        expected = model(x)
        bound = BoundProgram(capture(model, (x,), {}), model)
        costs = [{w: 1e-4 * chance.random() for w in list_widths(4)} for _ in bound.program.calls]
        tasks = chance.choice([find_chains(bound.program), merge_calls(bound.program, costs, 5e-5)])
        widths = [chance.choice(list_widths(4)) for _ in tasks]
        plan = plan_with(tasks, sum_task_costs(tasks, costs), widths, 4, 1e-6)
        executor = PythonExecutor(bound.program, tasks, plan, four_lanes)
        for _ in range(2):
            values = bound.collect_values([x])
            executor.run(values)
            same(bound.build_result(values), expected)


def same(got: Any, expected: Any) -> None:
    flat, spec = pytree.tree_flatten(got)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for one, two in zip(flat, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("model", "x"), [(Wide(), torch.randn(32, 16)), (Lstms(), torch.randn(6, 5, 8))], ids=["wide", "lstms"]
)
def test_wide_models_run_by_a_plan_and_equal_plain(planned: Make, model: nn.Module, x: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        fast = planned(model, x)
        torch.testing.assert_close(fast(x), model(x))
        assert len(fast.timeline()) > 0


class Nested(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor], scale: float, *, extra: dict[str, Tensor]) -> Any:
        left, right = pair
        return {"out": (left * scale + right, extra["bias"]), "same": left, "number": 3}


def test_nested_inputs_and_outputs_keep_their_form(planned: Make) -> None:
    inputs = ((torch.randn(3), torch.randn(3)), 2.0)
    extra = {"bias": torch.randn(3)}
    fast = planned(Nested())
    # Another number makes another program.
    for scale in (2.0, 2.0, 5.0, 5.0, 5.0):
        got = fast(inputs[0], scale, extra=extra)
        same(got, Nested()(inputs[0], scale, extra=extra))
        assert got["same"] is inputs[0][0]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.drop(norm(x)) for norm in self.norms]).sum(0)


def test_training_updates_buffers_and_draws_masks_as_plain_does(planned: Make) -> None:
    torch.manual_seed(0)
    model, twin = Normed(), Normed()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(8, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    fast = planned(model, x)
    # Planning has no side effects.
    assert torch.equal(torch.get_rng_state(), rng)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for seed in range(3):
        torch.manual_seed(seed)
        got = fast(x)
        torch.manual_seed(seed)
        # Statistics are added in another order at another width.
        torch.testing.assert_close(got, twin(x))
    assert len(fast.timeline()) > 0
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_change_of_mode_is_noticed_at_once(planned: Make) -> None:
    model = Normed()
    x = torch.randn(8, 6)
    fast = planned(model, x)
    model.eval()
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    model.norms[0].train()
    model.drop.p = 0.0
    copied = Normed()
    copied.load_state_dict(model.state_dict())
    copied.eval().norms[0].train()
    torch.testing.assert_close(fast(x), copied(x))


def test_gradients_are_those_of_plain_execution_and_optimiser_steps_are_seen(planned: Make) -> None:
    torch.manual_seed(1)
    model, twin = Wide(), Wide()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(32, 16)
    fast = planned(model, x)
    for network, call in ((model, fast), (twin, twin)):
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            call(x).square().mean().backward()
            optimiser.step()
    assert len(fast.timeline()) > 0
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_autocast_and_inference_mode_reach_the_branches(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(32, 16)
    fast = planned(model)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        got, expected = fast(x), model(x)
        assert len(fast.timeline()) > 0
        assert got.dtype == expected.dtype
        assert got.is_inference()
        torch.testing.assert_close(got, expected)


def test_another_shape_or_type_is_never_wrong(planned: Make) -> None:
    model = Wide().eval()
    with torch.no_grad():
        fast = planned(model, torch.randn(32, 16))
        for num in (1, 7, 7, 7, 32, 0, 0, 0):
            x = torch.randn(num, 16)
            torch.testing.assert_close(fast(x), model(x))
        assert "inputs 7×16" in fast.explain()
        # Inputs seen once are not planned for.
        assert "inputs 1×16" not in fast.explain()
        wide = torch.randn(32, 16, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="dtype"):
            fast(wide)
        model.double()
        torch.testing.assert_close(fast(wide), model(wide))
        across = torch.randn(16, 32).t()
        model.float()
        for _ in range(3):
            torch.testing.assert_close(fast(across), model(across))


def test_a_part_replaced_after_planning_is_used(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    with torch.no_grad():
        fast = planned(model, x)
        model.stem = nn.Linear(16, 16)
        torch.testing.assert_close(fast(x), model(x))


def test_a_module_used_twice_has_one_set_of_weights(planned: Make) -> None:
    shared = nn.Linear(5, 5)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = shared, shared

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) + self.other(x * 2)

    model, x = Twice(), torch.randn(3, 5)
    fast = planned(model, x)
    fast(x).sum().backward()
    mine = shared.weight.grad
    shared.weight.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(mine, shared.weight.grad)


def test_inputs_written_to_are_written_once_even_if_they_share_memory(planned: Make) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            return x * y

    fast = planned(Writes(), (torch.zeros(4), torch.ones(4)))
    x, y = torch.zeros(4), torch.ones(4)
    assert torch.equal(fast(x, y), torch.ones(4))
    assert torch.equal(x, torch.ones(4))
    both = torch.zeros(4)
    assert torch.equal(fast(both, both), torch.ones(4))


def test_values_are_freed_after_their_last_use(four_lanes: Teams) -> None:
    model, x = RandomGraph(3, 25, writes=False).eval(), torch.randn(12, 12)
    with torch.no_grad():
        bound = BoundProgram(capture(model, (x,), {}), model)
        tasks = find_chains(bound.program)
        costs = [dict.fromkeys(list_widths(4), 1e-4) for _ in tasks]
        plan = plan_with(tasks, costs, [1 + n % 2 for n in range(len(tasks))], 4, 0.0)
        values = bound.collect_values([x])
        PythonExecutor(bound.program, tasks, plan, four_lanes).run(values)
    program = bound.program
    remaining = {number for number, value in enumerate(values) if value is not None}
    outputs = {out.value for out in program.outputs if hasattr(out, "value")}
    assert remaining - {*program.inputs, *program.state, *program.constants} == outputs


def test_another_batch_size_takes_the_plan_and_real_calls_settle_whether_it_stays() -> None:
    model = Wide().eval()
    with torch.no_grad(), malleable(model, torch.randn(64, 16), executor="python", keep=False) as fast:
        [entry] = fast._plans.values()
        planned_with = entry.decision.executor if entry.decision else None
        for _ in range(12):
            x = torch.randn(48, 16)
            torch.testing.assert_close(fast(x), model(x))
        assert len(fast._plans) == 2
        # Otherwise plain execution was faster.
        if planned_with is not None:
            other = list(fast._plans.values())[1]
            assert other._race is None
            assert other.decision is not None
            assert len(other.decision.times_s) == 2
            assert "plain" in other.decision.times_s
