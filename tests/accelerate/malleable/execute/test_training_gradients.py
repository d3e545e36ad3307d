"""Training by a plan: branches' backward passes on their lanes, gradients equal to plain torch's."""

import copy
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.accelerate.sample_models import Lstms, RandomGraph, Wide
from torch import Tensor, nn

from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.python_training import PythonTraining
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.training_order import build_backward_plan, find_training_obstacle
from corewise.accelerate.malleable.module_wrapper import malleable
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask
from corewise.accelerate.malleable.plan.task_merging import find_chains

CPUS = sorted(os.sched_getaffinity(0))[:2] * 2
Make = Callable[..., "Trained"]


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    """Use one thread per product: at equal widths, gradients must be bit-identical."""
    width = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(width)


class Trained:
    """A module that runs by a plan, forward and backward."""

    def __init__(self, executor: type, module: nn.Module, teams: Teams, *inputs: Any) -> None:
        captured = capture(module, inputs, {})
        self.module, self.bound = module, BoundProgram(captured, module)
        tasks = find_chains(captured.program)
        self.executor = executor(captured.program, tasks, dealt_out(tasks), teams)

    def __call__(self, *inputs: Any) -> Any:
        values = self.bound.collect_values(list(inputs))
        self.executor.run(values)
        return self.bound.build_result(values)


def dealt_out(tasks: tuple[OperatorTask, ...]) -> LanePlan:
    lanes = (Lane(0, 2), Lane(0, 1), Lane(1, 1))
    return LanePlan(lanes, tuple(LaneStep(n, n % 3, task.needs) for n, task in enumerate(tasks)), 0.0)


@pytest.fixture(params=["native", "python"])
def trained(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Build modules that train by a plan, on C++ threads and on Python threads."""
    if request.param == "native":
        request.getfixturevalue("native")
    teams = Teams(CPUS[:2])
    executor = NativeExecutor if request.param == "native" else PythonTraining
    yield lambda module, *inputs: Trained(executor, module, teams, *inputs)
    teams.release()


def gradients(run: Callable[..., Any], module: nn.Module, *inputs: Tensor) -> list[Tensor | None]:
    """Compute gradients of all parameters and inputs, for a loss with different weights of all elements."""
    module.zero_grad()
    for one in inputs:
        one.grad = None
    weighed(run(*inputs)).backward()
    return [one.grad for one in [*module.parameters(), *inputs]]


def weighed(result: Any) -> Tensor:
    tensors = torch.utils._pytree.tree_leaves(result)
    floats = [one for one in tensors if isinstance(one, Tensor) and one.requires_grad]
    return torch.stack([(one * torch.linspace(1, 2, one.numel()).view_as(one)).sum() for one in floats]).sum()


def assert_same(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


class Residuals(nn.Module):
    """Branches with normalisation and in-place activation, one shared module, a value used many times."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stem = torch.tanh(self.shared(x))
        joined = sum((self.shared(branch(stem)) + stem for branch in self.branches), stem)
        return joined, stem, joined.argmax(1)


@pytest.mark.parametrize("make_model", [Wide, Lstms, Residuals])
def test_gradients_are_bit_equal_to_plain_ones(trained: Make, make_model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    model = make_model()
    x = {Wide: (6, 16), Lstms: (5, 2, 8), Residuals: (6, 8)}[make_model]
    shape = x
    inputs = torch.randn(shape, requires_grad=True)
    planned = trained(model, inputs)
    assert planned.executor.training_obstacle == ""
    twin = copy.deepcopy(model)
    for _ in range(3):
        expected = gradients(twin, twin, inputs)
        assert_same(gradients(planned, model, inputs), expected)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, other)
    assert planned.executor.backward_spans


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_have_the_gradients_of_plain_execution(trained: Make, seed: int) -> None:
    model = RandomGraph(seed, 20, writes=seed % 3 == 2)
    x = torch.randn(12, 12, requires_grad=True)
    planned = trained(model, x)
    try:
        expected = gradients(model, model, x)
    # It overwrites a tensor that the backward pass needs.
    except RuntimeError as problem:
        with pytest.raises(RuntimeError, match=str(problem)[:60]):
            gradients(planned, model, x)
        return
    for one, other in zip(gradients(planned, model, x), expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_add_up_over_several_calls_and_steps(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16)
    twin = copy.deepcopy(model)
    planned = trained(model, x)
    ours, plain = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        for run, optimizer in ((planned, ours), (twin, plain)):
            optimizer.zero_grad()
            (run(x).sum() + run(2 * x).square().sum()).backward()
            optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_second_backward_needs_retain_graph_as_in_plain_torch(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16)
    planned = trained(model, x)
    loss = planned(x).sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    assert_same(list(first), list(second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


class Heads(nn.Module):
    """Three results: two with separate autograd graphs, one that shares graphs with both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Wide(), Wide()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = self.left(x).tanh(), self.right(x).tanh()
        return left, right, (left * right).exp()


def test_results_with_separate_histories_are_differentiated_one_after_the_other(trained: Make) -> None:
    model, x = Heads(), torch.randn(4, 16)
    actual = []
    for run in (trained(model, x), model):
        left, right, both = run(x)
        left.sum().backward()
        right.square().sum().backward()
        actual.append([one.grad for one in model.parameters()])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            both.sum().backward()
        model.zero_grad()
    assert_same(*actual)


def test_planning_calls_no_gradient_hook() -> None:
    model, x = Wide(), torch.randn(4, 16)
    hooked: list[Tensor] = []
    model.stem.weight.register_hook(hooked.append)
    torch.set_num_threads(2)
    fast = malleable(model, x, executor="python", planning_s=0.05, keep=False)
    assert not hooked
    fast(x).sum().backward()
    assert len(hooked) == 1
    fast.close()


def test_gradients_of_gradients_are_those_of_plain_execution(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16, requires_grad=True)
    planned = trained(model, x)

    def penalty(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        [slope] = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), list(model.parameters())[:-1]))

    torch.testing.assert_close(penalty(planned), penalty(model))


def test_only_wanted_gradients_come_back(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16, requires_grad=True)
    model.stem.weight.requires_grad_(False)
    planned = trained(model, x)
    expected = gradients(model, model, x)
    assert_same(gradients(planned, model, x), expected)
    [slope] = torch.autograd.grad(planned(x).sum(), x)
    [plain] = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(slope, plain)


def test_parameters_hooks_run_once_with_the_whole_gradient(trained: Make) -> None:
    model, x = Residuals(), torch.randn(6, 8)
    seen: list[Tensor] = []
    model.shared.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    done: list[bool] = []
    model.shared.weight.register_post_accumulate_grad_hook(lambda _: done.append(True))
    planned = trained(model, x)
    weighed(planned(x)).backward()
    assert len(seen) == 1
    assert done == [True]
    assert torch.equal(seen[0], model.shared.weight.grad)  # type: ignore[arg-type]


def test_unused_outputs_and_results_without_gradient_are_as_in_plain_torch(trained: Make) -> None:
    model, x = Residuals().eval(), torch.randn(6, 8)
    planned = trained(model, x)
    joined, stem, best = planned(x)
    assert joined.requires_grad
    assert stem.requires_grad
    assert not best.requires_grad
    stem.sum().backward()
    assert model.branches[0][0].weight.grad is None  # type: ignore[index]
    actual = model.shared.weight.grad
    model.zero_grad()
    model(x)[1].sum().backward()
    assert actual is not None
    assert torch.equal(actual, model.shared.weight.grad)


def test_dropout_masks_are_drawn_in_program_order(trained: Make) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([branch(x) for branch in self.branches])

    model, x = Dropping().train(), torch.randn(6, 8, requires_grad=True)
    planned = trained(model, x)
    torch.manual_seed(3)
    expected = gradients(model, model, x)
    torch.manual_seed(3)
    assert_same(gradients(planned, model, x), expected)


def test_an_error_in_backward_is_plain_torchs(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16)
    planned = trained(model, x)
    loss = planned(x).sum()
    with torch.no_grad():
        model.branches[1][2].weight.mul_(2)  # type: ignore[index,union-attr]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_after_closing_runs_on_the_caller(trained: Make) -> None:
    model, x = Wide(), torch.randn(4, 16)
    planned = trained(model, x)
    expected = gradients(model, model, x.requires_grad_())
    x.grad = None
    model.zero_grad()
    loss = weighed(planned(x))
    planned.executor.teams.release()
    loss.backward()
    assert_same([one.grad for one in [*model.parameters(), x]], expected)


def test_several_threads_train_at_once(trained: Make) -> None:
    models = [Wide() for _ in range(3)]
    x = torch.randn(4, 16)
    expected = [_plain(model, x) for model in models]
    planned = [trained(model, x) for model in models]
    wrong: list[int] = []

    def train(number: int) -> None:
        for _ in range(10):
            models[number].zero_grad()
            planned[number](x).sum().backward()
            actual = [one.grad for one in models[number].parameters()]
            if not all(torch.equal(a, b) for a, b in zip(actual, expected[number], strict=True)):  # type: ignore[arg-type]
                wrong.append(number)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _plain(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).sum(), list(model.parameters())))


def test_writes_under_old_names_are_differentiated_as_a_whole() -> None:
    class Writing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            base = x * 2
            view = base.view(-1)
            base.add_(x.sum())
            return view.exp()

    program = capture(Writing(), (torch.randn(3, 3),), {}).program
    tasks = tuple(OperatorTask((n,), ()) for n in range(len(program.calls)))
    assert "writes to memory" in find_training_obstacle(program, tasks)


def test_a_plan_backwards_runs_each_task_after_those_that_needed_it() -> None:
    plan = LanePlan((Lane(0, 2), Lane(0, 1)), (LaneStep(0, 0, ()), LaneStep(1, 1, (0,)), LaneStep(2, 0, (0, 1))), 1.0)
    assert [(s.task, s.after) for s in build_backward_plan(plan).steps] == [(2, ()), (1, (2,)), (0, (1, 2))]


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_malleable_model_trains_like_the_model(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "native":
        request.getfixturevalue("native")
    model, x = Residuals(), torch.randn(6, 8)
    twin = copy.deepcopy(model)
    torch.set_num_threads(2)
    with malleable(model, x, executor=executor, cpus=CPUS[:2], planning_s=0.2, keep=False, run="planned") as fast:
        for _ in range(3):
            for run, module in ((fast, model), (twin, twin)):
                module.zero_grad()
                weighed(run(x)).backward()
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4, msg=name)
        assert fast.timeline()
