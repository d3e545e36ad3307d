"""Frozen LSTMs on the row-parallel kernel compute the same as torch's layers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.freeze.freeze_module import freeze, prepare_network
from corewise.accelerate.freeze.lstm_replacement import RowLstm
from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.registry import find_workload

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def kernel(need: Callable[[bool, str], None]) -> None:
    problem = explain_missing_native()
    need(not problem, f"the C++ executor: {problem}")


class Reader(nn.Module):
    """A layer with a zero or a given initial state."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 8, **options)

    def forward(self, x: Any, states: Any = None) -> Any:
        return self.layer(x, states)


class Backwards(nn.Module):
    """A layer whose input is flipped, and its rows flipped back."""

    def __init__(self, keeps: bool = False) -> None:
        super().__init__()
        self.layer, self.keeps = nn.LSTM(6, 8), keeps

    def forward(self, x: Any) -> Any:
        rows, (last, _) = self.layer(torch.flip(x, [0]))
        turned = torch.flip(rows, [0])
        return (turned, last, rows) if self.keeps else (turned, last)


def by_rows(frozen: nn.Module) -> list[RowLstm]:
    return [part for part in frozen.modules() if isinstance(part, RowLstm)]


def assert_same(frozen: nn.Module, module: nn.Module, *inputs: Any) -> None:
    with torch.inference_mode():
        one, other = (pytree.tree_leaves(run(*inputs)) for run in (module, frozen))
        for wanted, got in zip(one, other, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            assert got.stride() == wanted.stride()


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": False},
    {"batch_first": True},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_layer_runs_by_rows(options: dict[str, Any]) -> None:
    module = Reader(**options).eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    assert len(by_rows(frozen)) == 1
    for sizes in ((9, 20, 6), (3, 33, 6), (5, 1, 6)):
        assert_same(frozen, module, torch.randn(sizes))


def test_states_that_are_given_count() -> None:
    module = Reader().eval()
    states = (torch.randn(1, 20, 8), torch.randn(1, 20, 8))
    frozen = freeze(module, (torch.randn(9, 20, 6), states))
    assert len(by_rows(frozen)) == 1
    assert_same(frozen, module, torch.randn(9, 20, 6), (states[1], states[0]))


def test_packed_sequences_and_single_ones_go_through_the_layer_itself() -> None:
    module = Reader().eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    assert_same(frozen, module, torch.randn(9, 6))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 4, 6), torch.tensor([7, 5, 5, 2]))
    with torch.inference_mode():
        torch.testing.assert_close(frozen(packed)[0].data, module(packed)[0].data)


def test_flipped_inputs_are_read_from_the_last_step_on() -> None:
    module = Backwards().eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    [layer] = by_rows(frozen)
    assert layer.reverse
    assert not any(node.target is torch.flip for node in frozen.graph.nodes)
    assert_same(frozen, module, torch.randn(9, 20, 6))
    # This sequence has no batch dimension.
    assert_same(frozen, module, torch.randn(9, 6))


def test_rows_that_someone_reads_as_they_are_stay_so() -> None:
    module = Backwards(keeps=True).eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    assert [layer.reverse for layer in by_rows(frozen)] == [False]
    assert_same(frozen, module, torch.randn(9, 20, 6))


def test_the_ensemble_is_frozen_layer_by_layer() -> None:
    workload = find_workload("lstm_ensemble")
    module = build_network(workload.build_layers({**workload.parameters, "time_steps": 6}), 1).eval()
    frozen = freeze(module, (torch.randn(24, 6, 10),))
    assert [layer.reverse for layer in by_rows(frozen)].count(True) == 4
    assert len(by_rows(frozen)) == 8
    assert_same(frozen, module, torch.randn(9, 6, 10))


def test_model_and_copy_do_not_change_each_other() -> None:
    module = Reader().eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    x = torch.randn(9, 20, 6)
    with torch.inference_mode():
        before = frozen(x)[0]
    with torch.no_grad():
        module.layer.weight_hh_l0.mul_(2)
    with torch.inference_mode():
        assert torch.equal(frozen(x)[0], before)
        assert torch.equal(copy.deepcopy(frozen)(x)[0], before)


def test_what_is_prepared_keeps_its_numbers_when_the_model_is_converted() -> None:
    module = Reader().eval()
    x = torch.randn(9, 20, 6)
    made, num = prepare_network(module, (x,), torch.float32)
    with torch.inference_mode():
        wanted = module(x)[0]
        module.double()
        torch.testing.assert_close(made(x)[0], wanted, rtol=1e-4, atol=1e-5)
    assert num == 1


def test_wrong_inputs_raise_the_error_of_the_layer() -> None:
    module = Reader().eval()
    frozen = freeze(module, (torch.randn(9, 20, 6),))
    for run in (module, frozen):
        with pytest.raises(RuntimeError, match=r"input.size.*6"):
            run(torch.randn(9, 20, 5))


def test_layers_with_hooks_stay_as_they_are() -> None:
    module = nn.ModuleDict({"one": Reader(), "two": Reader()}).eval()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: Any) -> Any:
            return self.parts["one"](x)[0] + self.parts["two"](x)[0]

    calls: list[int] = []
    module["one"].layer.register_forward_hook(lambda *_: calls.append(1))
    frozen = freeze(Two().eval(), (torch.randn(9, 20, 6),))
    assert len(by_rows(frozen)) == 1
    calls.clear()
    frozen(torch.randn(9, 20, 6))
    assert calls == [1]
