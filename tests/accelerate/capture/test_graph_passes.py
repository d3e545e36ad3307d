"""Simplified graphs compute the same as the exported ones."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from corewise.accelerate.capture.graph_code import compile_graph
from corewise.accelerate.capture.graph_passes import check_operators, fold_constants, remove_idle_operators
from corewise.accelerate.capture.module_export import CaptureError, export_module

X = torch.randn(4, 6)


class Applies(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return (self.function(x),)


def simplify(function: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    """Return the compiled function of a simplified graph, and the names of its operators."""
    exported = export_module(Applies(function).eval(), (X,), {})
    graph = exported.graph
    check_operators(graph)
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    specs = list(zip(nodes, exported.graph_signature.input_specs, strict=True))
    constants = {n: exported.constants[s.target] for n, s in specs if s.kind.name == "CONSTANT_TENSOR"}
    inputs = [n for n, s in specs if s.kind.name == "USER_INPUT"]
    remove_idle_operators(graph)
    fold_constants(graph, constants, lambda node: True)
    run = compile_graph(graph, inputs, constants)
    names = [node.target._schema.name for node in graph.nodes if node.op == "call_function"]
    return run, names


def test_operators_without_effect_are_removed() -> None:
    def function(x: Any) -> Any:
        x = nn.functional.dropout(x.to(torch.float32).contiguous(), 0.5, training=False)
        return x[:, :].view(4, 6).expand(4, 6).detach() + 1

    run, names = simplify(function)
    assert names == ["aten::add"]
    torch.testing.assert_close(run(X), [X + 1])


def test_what_depends_on_constants_only_is_computed_once() -> None:
    def function(x: Any) -> Any:
        table = torch.zeros(6)
        table[::2] = torch.arange(3.0)
        return x * table.cos()

    run, names = simplify(function)
    assert names == ["aten::mul"]
    table = torch.tensor([0.0, 0, 1, 0, 2, 0])
    torch.testing.assert_close(run(X), [X * table.cos()])


def write_between(x: Any) -> Any:
    table = torch.zeros(6)
    first = x + table
    table += 1
    return first * (x + table)


def write_input(x: Any) -> Any:
    table = torch.ones(4, 6)
    table[0] = x[0]
    return table * 2 + x


def write_through_view(x: Any) -> Any:
    table = torch.ones(6)
    part = table[:3]
    before = x + table
    part.mul_(3.0)
    return before - (x * table)


@pytest.mark.parametrize("function", [write_between, write_input, write_through_view])
def test_constants_that_are_written_to_keep_their_order(function: Callable[[Any], Any]) -> None:
    run, _ = simplify(function)
    for _ in range(2):
        fresh = torch.randn(4, 6)
        torch.testing.assert_close(run(fresh.clone()), [function(fresh.clone())])


def test_a_constant_result_is_a_copy() -> None:
    run, names = simplify(lambda x: torch.arange(3.0) * 2)
    assert names == []
    run(X)[0].zero_()
    assert run(X)[0].tolist() == [0.0, 2.0, 4.0]


def test_random_numbers_and_data_dependent_sizes_are_refused() -> None:
    with pytest.raises(CaptureError, match="draws random numbers"):
        simplify(lambda x: x + torch.rand(6))
    with pytest.raises(CaptureError, match=r"depends on the data|torch\.export fails"):
        simplify(lambda x: torch.zeros(int(x.sum())))
