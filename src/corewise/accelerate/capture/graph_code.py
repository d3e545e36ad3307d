"""Write a graph as one Python function that frees values after their last use.

Measured side: standard library and torch only, Python 3.9. A call through torch's Python functions costs less than
one through an operator object: 0.8 against 1.4 microseconds for a sum.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, Mapping, Sequence

import torch

_aten = torch.ops.aten
# Functions that take the same arguments as the operators.
_FUNCTIONS: Mapping[Any, Any] = {
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.matmul.default: torch.matmul,
    _aten.bmm.default: torch.bmm,
    _aten.layer_norm.default: torch.layer_norm,
    _aten.transpose.int: torch.transpose,
    _aten.permute.default: torch.permute,
    _aten.reshape.default: torch.reshape,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.tanh.default: torch.tanh,
    _aten.view.default: torch.Tensor.view,
    _aten.linear.default: torch._C._nn.linear,
    _aten.gelu.default: torch._C._nn.gelu,
    _aten.scaled_dot_product_attention.default: torch._C._nn.scaled_dot_product_attention,
}


def compile_graph(graph: Any, inputs: Sequence[Any], constants: Mapping[Any, Any]) -> Callable[..., List[Any]]:
    """Compile a graph to a function of its inputs that returns the list of its results.

    Args:
        inputs: The placeholders of the inputs, in order.
        constants: The values of the other placeholders.
    """
    writer = _GraphWriter(inputs, constants)
    for node in graph.nodes:
        writer.write_node(node)
    # Values are freed where their last reader is done.
    space: Dict[str, Any] = dict(writer.space)
    arguments = ", ".join(writer.names[node] for node in inputs)
    source = f"def run({arguments}):\n" + "\n".join(f"    {line}" for line in writer.lines)
    exec(compile(source, "<frozen graph>", "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


class _GraphWriter:
    def __init__(self, inputs: Sequence[Any], constants: Mapping[Any, Any]) -> None:
        self.constants = constants
        # Values of all names that the function reads.
        self.space: Dict[str, Any] = {}
        self.names: Dict[Any, str] = {node: f"i{place}" for place, node in enumerate(inputs)}
        self.lines: List[str] = []
        self.num_left: Dict[Any, int] = {}

    def write_node(self, node: Any) -> None:
        self.num_left[node] = len(node.users)
        if node.op == "placeholder":
            if node in self.constants:
                self.names[node] = self._bind("c", self.constants[node])
            return
        if node.op == "output":
            self.lines.append(f"return [{', '.join(self._write_output(one) for one in node.args[0])}]")
            return
        name = self.names[node] = f"t{len(self.names)}"
        if node.target is operator.getitem:
            call = f"{self.names[node.args[0]]}[{node.args[1]}]"
        else:
            words = [self._write(argument) for argument in node.args]
            words += [f"{key}={self._write(argument)}" for key, argument in node.kwargs.items()]
            call = f"{self._bind_target(node.target)}({', '.join(words)})"
        self.lines.append(f"{name} = {call}" if node.users else call)
        self._free(node)

    def _free(self, node: Any) -> None:
        freed = []
        for each in node.all_input_nodes:
            self.num_left[each] -= 1
            if not self.num_left[each] and each.op != "placeholder":
                freed.append(self.names[each])
        if freed:
            self.lines.append(f"del {', '.join(freed)}")

    def _write_output(self, one: Any) -> str:
        # A caller may write to what it receives.
        if isinstance(one, torch.fx.Node) and one in self.constants:
            return f"{self.names[one]}.clone()"
        return self._write(one)

    def _bind_target(self, target: Any) -> str:
        if isinstance(target, torch._ops.OpOverload):
            target = _FUNCTIONS.get(target, target._op)
        return self._bind("f", target)

    def _bind(self, prefix: str, thing: Any) -> str:
        name = f"{prefix}{len(self.space)}"
        self.space[name] = thing
        return name

    def _write(self, argument: Any) -> str:
        if isinstance(argument, torch.fx.Node):
            return self.names[argument]
        if isinstance(argument, list):
            return f"[{', '.join(map(self._write, argument))}]"
        if isinstance(argument, tuple):
            return f"({''.join(f'{self._write(one)}, ' for one in argument)})"
        if argument is None or isinstance(argument, (bool, int, str)):
            return repr(argument)
        return self._bind("c", argument)
