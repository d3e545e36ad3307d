"""A network made ready for inference without a compiler: weights laid out once, and fewer, larger operators.

Measured side: standard library and torch only, Python 3.9. Convolutions and linear layers become calls of the
operators that torch's compiler would choose for the CPU: their weights lie as oneDNN wants them, and the norm
before, the sum with a shortcut and the activation behind are part of the same pass over memory.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from corewise.runtimes.base import Infeasible
from corewise.runtimes.torch import row_lstms
from corewise.runtimes.torch.freezing import computes_as_torchs, fold_norms, has_hooks, traced
from corewise.runtimes.torch.joined_lstms import join_lstms, unused_name
from corewise.runtimes.torch.prepared_layers import Activation, Prepared, PreparedConvolution, PreparedLinear
from corewise.runtimes.torch.same_results import copied, left_alone, require_same
from corewise.runtimes.torch.winograd import use_winograd

DTYPES = (torch.float32, torch.bfloat16)
SHAPE = "shape"  # where a node keeps that of its value
_SUMS = (operator.add, operator.iadd, torch.add)
_WRITING = (
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod),
    *(operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
    *(operator.imatmul, operator.setitem),
)
_FUNCTIONS: Mapping[Any, str] = {
    torch.relu: "relu",
    functional.relu: "relu",
    "relu": "relu",
    "relu_": "relu",
    torch.sigmoid: "sigmoid",
    "sigmoid": "sigmoid",
    torch.tanh: "tanh",
    "tanh": "tanh",
    functional.silu: "swish",
    functional.gelu: "gelu",
}
_MODULES: Mapping[type, str] = {
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.SiLU: "swish",
    nn.GELU: "gelu",
}


def freeze(
    module: nn.Module,
    example_inputs: Union[Tensor, Sequence[Any]],
    dtype: torch.dtype = torch.float32,
    *,
    winograd: Optional[bool] = None,
) -> nn.Module:
    """A copy of an evaluating module for inference on CPUs, of the same results up to rounding.

    In bfloat16 it is called under `torch.autocast("cpu", torch.bfloat16)`, as the module itself would be.
    Other sizes of inputs than the example's are computed right too. Convolutions of 3 x 3 and 5 x 5
    in float32 take Winograd's way where it is measured to be quicker for the example; `winograd` says that
    all take it that can, or none. Infeasible says why there is no such copy; one reason is that results for
    the example differ: torch.fx does not see all that a module may do.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"corewise.freeze takes a torch.nn.Module, not {type(module).__name__}")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if not isinstance(inputs, (tuple, list)):
        raise TypeError("example inputs are given in order: corewise.freeze(model, (batch,))")
    _refuse(module, dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        with left_alone(module):
            wanted = module(*copied(inputs))
        with left_alone(module), torch.autocast("cpu", enabled=False):
            made = copy.deepcopy(prepare(module, inputs, dtype, winograd)[0])  # neither changes the other
        with left_alone(made):
            got = made(*copied(inputs))
    require_same(wanted, got)
    return made.eval().requires_grad_(False)  # parts that torch.fx has made are said to train


def prepare(
    module: nn.Module, example_inputs: Sequence[Any], dtype: torch.dtype, winograd: Optional[bool] = None
) -> Tuple[nn.Module, int]:
    """That copy, and how many weights were prepared; Infeasible with the reason where there are none."""
    _refuse(module, dtype)
    network = traced(module, "freezing full")
    fold_norms(network)
    _leave_out_idle(network)
    with torch.no_grad():
        _Shapes(network).run(*copied(example_inputs))
    num_lstms = _prepare_lstms(network, dtype)
    preparing = _Preparing(network, dtype)
    num_prepared = num_lstms + preparing.run()
    if not num_prepared:
        raise Infeasible(f"freezing full: {_why_nothing(module)}")
    if dtype == torch.float32 and winograd is not False:
        use_winograd(network, preparing.convolutions, example_inputs, is_measured=winograd is None)
    return network, num_prepared


def _refuse(module: nn.Module, dtype: torch.dtype) -> None:
    if any(part.training for part in module.modules()):
        raise Infeasible("freezing full: the module, or a part of it, trains; call eval() on it first")
    for weight in module.parameters():
        if weight.device.type != "cpu":
            raise Infeasible(f"freezing full: weights are prepared on the CPU; one is on {weight.device}")
        if weight.is_floating_point() and weight.dtype not in (torch.float32, dtype):
            raise Infeasible(f"freezing full: the module is {weight.dtype}; give it in float32")
    if dtype not in DTYPES:
        raise Infeasible(f"freezing full: weights are prepared in float32 or bfloat16, not in {dtype}")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise Infeasible("freezing full: this torch was built without oneDNN, which weights are prepared for")
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise Infeasible("freezing full: this CPU lacks the instructions oneDNN asks for in bfloat16")


def _leave_out_idle(network: fx.GraphModule) -> None:
    """Modules that do nothing in inference stand between an operator and what could be part of it."""
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        called = modules.get(str(node.target)) if node.op == "call_module" else None
        is_idle = isinstance(called, (nn.Identity, nn.Dropout, nn.Dropout2d)) and not has_hooks(called)
        if is_idle and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            network.graph.erase_node(node)


def _prepare_lstms(network: fx.GraphModule, dtype: torch.dtype) -> int:
    """How many LSTMs run on the kernel of our own, or where that is not to be had, as parts of wider ones."""
    modules = dict(network.named_modules())
    calls = [(node, modules.get(str(node.target))) for node in network.graph.nodes]
    is_written_to = any(_writes(node, module) for node, module in calls)
    if dtype == torch.float32 and row_lstms.can_take_over(network):
        return row_lstms.take_over(network, may_turn=not is_written_to)
    return 0 if is_written_to else join_lstms(network)


def _why_nothing(module: nn.Module) -> str:
    if any(isinstance(part, (nn.Conv2d, nn.Linear)) for part in module.modules()):
        return (
            "none of its convolutions and linear layers can be prepared: torch.fx does not look into layers "
            "of torch.nn that have some within; those with hooks or other padding than zeros stay as they are"
        )
    return (
        "it has no convolution of images, linear layer or LSTM without projections, whose weights could be "
        "prepared; without a C++ compiler, or in bfloat16, small LSTMs over one input alone"
    )


class _Preparing:
    """Rewrites a traced network, whose nodes know the shapes of their values."""

    def __init__(self, network: fx.GraphModule, dtype: torch.dtype) -> None:
        self.network, self.dtype = network, dtype
        self.modules: Dict[str, nn.Module] = dict(network.named_modules())
        self.order = {node: place for place, node in enumerate(network.graph.nodes)}
        self.prepared: Dict[fx.Node, Prepared] = {}
        self.convolutions: Dict[str, nn.Conv2d] = {}  # what was prepared, by the name of what it became

    def run(self) -> int:
        for node in list(self.network.graph.nodes):
            self._prepare(node)
        may_sum = not any(map(self._is_seen_to_change, self.network.graph.nodes))
        for node in list(self.prepared):
            if may_sum:  # where a value changes, it matters when it is read
                self._take_in_sum(node)
            self._take_in_activation(node)
        for node, layer in self.prepared.items():
            if isinstance(layer, PreparedConvolution) and len(node.args) > 1:
                layer.overwrites = self._is_last_reader(node, cast(fx.Node, node.args[1]))
        self.network.delete_all_unused_submodules()
        self.network.graph.lint()
        self.network.recompile()
        return len(self.prepared)

    def _prepare(self, node: fx.Node) -> None:
        layer, shape = self._called(node), _shape_of(node.args[0] if node.args else None)
        made: Optional[Prepared] = None
        if shape is None or len(node.args) != 1 or node.kwargs or not _is_plain(layer):
            return
        if isinstance(layer, nn.Conv2d) and len(shape) == 4 and _has_plain_padding(layer):
            made = PreparedConvolution(layer, shape, self.dtype)
        elif isinstance(layer, nn.Linear) and len(shape) > 1:
            made = PreparedLinear(layer, shape, self.dtype)
        if made is not None:
            name = unused_name(self.network, f"prepared_{len(self.prepared)}")
            self.network.add_submodule(name, made)
            node.target = name
            if isinstance(layer, nn.Conv2d):
                self.convolutions[name] = layer
            self.modules[name] = self.prepared[node] = made

    def _take_in_sum(self, node: fx.Node) -> None:
        """The sum of this convolution with a value that is there before it, where nobody else reads it."""
        user = _only_user(node)
        if user is None or user.target not in _SUMS or len(user.args) != 2 or user.kwargs:
            return
        [other] = [one for one in user.args if one is not node] or [node]
        fits = isinstance(other, fx.Node) and other is not node and _shape_of(other) == _shape_of(node)
        if not fits or not isinstance(self.prepared[node], PreparedConvolution):
            return
        if self.order[cast(fx.Node, other)] < self.order[node]:
            node.args = (*node.args, other)
            self._replace(user, node)

    def _is_seen_to_change(self, node: fx.Node) -> bool:
        """Whether it writes to a value that someone else reads too, or that may be part of another."""
        if not _writes(node, self._called(node)):
            return False
        changed = node.args[0] if node.args else None
        return not (isinstance(changed, fx.Node) and changed in self.prepared and len(changed.users) == 1)

    def _take_in_activation(self, node: fx.Node) -> None:
        user = _only_user(node)
        found = None if user is None else self._activation(user)
        is_sum = len(node.args) > 1
        if user is not None and found is not None and not (is_sum and found[0] != "relu"):
            self.prepared[node].activation = found
            self._replace(user, node)

    def _activation(self, node: fx.Node) -> Optional[Activation]:
        module = self._called(node)
        name = None if module is None or has_hooks(module) else _MODULES.get(type(module))
        how = getattr(module, "approximate", "none")
        if name is None and node.op in ("call_function", "call_method"):
            name, how = _FUNCTIONS.get(node.target), str(node.kwargs.get("approximate", "none"))
        if name is None or len(node.args) != 1:
            return None
        return (name, how) if name == "gelu" else (name, None)

    def _is_last_reader(self, node: fx.Node, other: fx.Node) -> bool:
        """Whether the value is one of our own, and all others that read it have done so, and kept no view."""
        if other not in self.prepared or _only_once(node.args, other) is False:
            return False
        readers = [user for user in other.users if user is not node]
        return all(user in self.prepared and self.order[user] < self.order[node] for user in readers)

    def _replace(self, gone: fx.Node, by: fx.Node) -> None:
        gone.replace_all_uses_with(by)
        self.network.graph.erase_node(gone)

    def _called(self, node: fx.Node) -> Optional[nn.Module]:
        return self.modules.get(str(node.target)) if node.op == "call_module" else None


def _writes(node: fx.Node, module: Optional[nn.Module]) -> bool:
    """Whether the node works in place, or may."""
    if node.op == "call_module":
        return bool(getattr(module, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    is_named_so = name.endswith("_") and not name.endswith("__")
    is_asked = (
        any(one is True for one in (*node.args[1:], node.kwargs.get("inplace"))) or "out" in node.kwargs
    )
    return is_named_so or is_asked or node.target in _WRITING


def _only_user(node: fx.Node) -> Optional[fx.Node]:
    users: List[fx.Node] = list(node.users)
    return users[0] if len(users) == 1 else None


def _only_once(args: Sequence[Any], wanted: fx.Node) -> bool:
    return sum(one is wanted for one in args) == 1


class _Shapes(fx.Interpreter):
    """Runs a network once and notes the shapes of its values.

    As torch's own ShapeProp, which imports an algebra system for it: half a second in every rank.
    """

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            n.meta[SHAPE] = tuple(value.shape)
        return value


def _shape_of(node: Any) -> Optional[Tuple[int, ...]]:
    """The shape of a node's value, None where it is no tensor."""
    found = node.meta.get(SHAPE) if isinstance(node, fx.Node) else None
    return cast(Optional[Tuple[int, ...]], found)


def _is_plain(layer: Optional[nn.Module]) -> bool:
    """Whether nothing else happens where the layer is called."""
    return layer is not None and computes_as_torchs(layer) and not has_hooks(layer)


def _has_plain_padding(layer: nn.Conv2d) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
