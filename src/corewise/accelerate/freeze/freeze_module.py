"""Freeze a network for inference without a compiler: prepared weights, and fewer, larger operators.

Measured side: standard library and torch only, Python 3.9. Convolutions and linear layers call the operators
that torch's compiler would choose for the CPU. Their weights are in oneDNN's layout. The norm, the sum with a
shortcut and the activation are fused into the same pass over memory.
"""

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from corewise.accelerate.equivalence import copy_inputs, has_nan, require_comparable, require_equivalent, restore_module
from corewise.accelerate.fast_kernels.winograd_convolution import use_winograd
from corewise.accelerate.freeze import lstm_replacement
from corewise.accelerate.freeze.captured_forward import CapturedForward, capture_parts
from corewise.accelerate.freeze.lstm_joining import find_unused_name, join_lstms
from corewise.accelerate.freeze.packed_layers import (
    Activation,
    PreparedConvolution,
    PreparedLayer,
    PreparedLinear,
    refuse_conversion,
)
from corewise.accelerate.freeze.prepared_tree import PreparedTree, copy_tensors
from corewise.accelerate.freeze.weight_folding import fold_norms, has_hooks, is_standard_layer, trace_module
from corewise.accelerate.unsupported import Unsupported

DTYPES = (torch.float32, torch.bfloat16)
NOT_FASTER = "torch's own operators are as fast on this machine as prepared weights, for all layers of this module"
# The key of a node's metadata under which the shape of its value is stored.
SHAPE = "shape"
_SUMS = (operator.add, operator.iadd, torch.add)
_IN_PLACE_OPERATORS = (
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
    example_inputs: Union[Tensor, Sequence[Any], Mapping[str, Any]] = (),
    dtype: torch.dtype = torch.float32,
    *,
    winograd: Optional[bool] = None,
    example_kwargs: Optional[Mapping[str, Any]] = None,
) -> nn.Module:
    """Return a copy of a module for inference on CPUs that gives the same results up to rounding.

    Inputs of other sizes than the example's are supported as well.

    Args:
        module: A module in evaluation mode, with float32 weights on the CPU.
        example_inputs: A tensor, a tuple of inputs, or a mapping of keyword arguments, on which kernels are
            measured and results compared.
        dtype: float32, or bfloat16 for calls under `torch.autocast("cpu", torch.bfloat16)`.
        winograd: Use Winograd convolution for float32 layers of 3 x 3 and 5 x 5: all that support it (True),
            none (False), or those that are faster on the example (None).
        example_kwargs: Keyword arguments, if there are positional inputs too.

    Raises:
        Unsupported: The module cannot be frozen; the text says why.

    Example:
        fast = corewise.freeze(model.eval(), batch)
        fast = corewise.freeze(bert.eval(), {"input_ids": ids, "attention_mask": mask})
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"corewise.freeze takes a torch.nn.Module, not {type(module).__name__}")
    args, kwargs = _split_inputs(example_inputs, example_kwargs)
    made = prepare_network(module, args, dtype, winograd, kwargs)[0]
    # A traced network still shares weights with the module, whose later changes must have no effect. Modules that
    # torch.fx creates are in training mode.
    made = copy.deepcopy(made) if isinstance(made, fx.GraphModule) else made
    return made.eval().requires_grad_(False)


def _split_inputs(
    inputs: Union[Tensor, Sequence[Any], Mapping[str, Any]], named: Optional[Mapping[str, Any]]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the positional and the keyword arguments of the example."""
    if isinstance(inputs, Mapping):
        return (), {**inputs, **(named or {})}
    inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(
            "corewise.freeze takes example inputs as a tensor, a tuple or a mapping: freeze(model, (batch,))"
        )
    return tuple(inputs), dict(named or {})


def prepare_network(
    module: nn.Module,
    example_inputs: Sequence[Any],
    dtype: torch.dtype,
    winograd: Optional[bool] = None,
    example_kwargs: Optional[Mapping[str, Any]] = None,
) -> Tuple[nn.Module, int]:
    """Return a network with prepared weights and their number; raise Unsupported if there are none.

    torch.fx traces a module to one graph for inputs of all sizes. It does not support most modules of other
    libraries. Those are captured with torch.export, or run their code on prepared layers.
    """
    _refuse(module, dtype)
    args, kwargs = tuple(example_inputs), dict(example_kwargs or {})
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.no_grad(), autocast, restore_module(module):
        wanted = module(*copy_tensors(args), **copy_tensors(kwargs))
    require_comparable(wanted)
    problems: List[Unsupported] = []
    for prepare in (_prepare_traced, _prepare_captured):
        try:
            with restore_module(module), torch.no_grad():
                made, num_prepared = prepare(module, args, kwargs, dtype, winograd)
            with torch.no_grad(), autocast:
                with restore_module(made):
                    require_equivalent(wanted, made(*copy_tensors(args), **copy_tensors(kwargs)), dtype)
                _compare_on_fresh_inputs(module, made, args, kwargs, dtype)
            return made, num_prepared
        except Unsupported as problem:
            problems.append(problem)
    traced, captured = problems
    # The second attempt says more, unless there is nothing to prepare.
    raise traced if str(captured).endswith(_explain_nothing_prepared(module)) else captured


def _compare_on_fresh_inputs(
    module: nn.Module, made: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> None:
    """Compare results on other values of the same sizes; values that the module itself refuses prove nothing."""
    fresh, named = pytree.tree_map_only(Tensor, _draw_like, (args, dict(kwargs)))
    with restore_module(module), restore_module(made):
        try:
            wanted = module(*copy_tensors(fresh), **copy_tensors(named))
        except Exception:
            return
        if not has_nan(wanted):
            require_equivalent(wanted, made(*copy_tensors(fresh), **copy_tensors(named)), dtype)


def _draw_like(tensor: Tensor) -> Tensor:
    """Draw values like those of a tensor: of the same spread, or the same numbers in another order."""
    generator = torch.Generator().manual_seed(0)
    if tensor.is_floating_point() and tensor.numel() > 1:
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor.dtype)
        return torch.empty_like(tensor).copy_(noise * tensor.std() + tensor.mean())
    order = torch.randperm(tensor.numel(), generator=generator)
    return torch.empty_like(tensor).copy_(tensor.reshape(-1)[order].reshape(tensor.shape))


def _prepare_captured(
    module: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype, winograd: Optional[bool]
) -> Tuple[nn.Module, int]:
    """Prepare layers in a copy of the module, and capture its operators for the example."""
    if "forward" in vars(module):
        raise Unsupported("freezing full: the module's forward was replaced; its class must define it")
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with autocast:
        tree = PreparedTree(module, args, kwargs, dtype)
        forward = CapturedForward(tree.module, dtype, winograd)
        forward.plain_layers = tree.plain_layers
        try:
            graph = forward.capture(args, kwargs)
            if graph is None and tree.num_prepared:
                forward.captured_parts = capture_parts(tree.module, args, kwargs, dtype, winograd)
        except Exception as problem:
            message = str(problem).strip().splitlines() or [type(problem).__name__]
            raise Unsupported(f"freezing full: its code fails with prepared layers: {message[0]}") from problem
    # The graph alone saves the overhead of the module's code.
    if not forward.num_prepared and not (graph is not None and tree.has_fast_layers):
        reason = NOT_FASTER if tree.has_fast_layers else _explain_nothing_prepared(module)
        raise Unsupported(f"freezing full: {reason}")
    vars(tree.module)["forward"] = forward
    vars(tree.module)["explain"] = forward.explain
    # Graphs hold weights that a conversion would miss.
    vars(tree.module)["_apply"] = refuse_conversion
    return tree.module, forward.num_prepared


def _prepare_traced(
    module: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype, winograd: Optional[bool]
) -> Tuple[nn.Module, int]:
    """Trace the module with torch.fx, and replace its layers by prepared ones."""
    inputs = _order_arguments(module, args, kwargs)
    with torch.autocast("cpu", enabled=False):
        network = trace_module(module, "freezing full")
        fold_norms(network)
        _remove_idle_modules(network)
        try:
            with torch.no_grad():
                _ShapeRecorder(network).run(*copy_inputs(inputs))
        # The graph holds for other inputs than these.
        except Exception as problem:
            raise Unsupported(f"freezing full: the graph of torch.fx fails on the example: {problem}") from problem
        num_lstms = _prepare_lstms(network, dtype)
        preparing = _LayerPreparation(network, dtype)
        num_prepared = num_lstms + preparing.run()
        if not num_prepared:
            raise Unsupported(f"freezing full: {_explain_nothing_prepared(module)}")
        if dtype == torch.float32 and winograd is not False:
            use_winograd(network, preparing.convolutions, inputs, is_measured=winograd is None)
    return network, num_prepared


def _order_arguments(module: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tuple[Any, ...]:
    """Return the arguments in the order of forward; raise Unsupported unless all are given."""
    if not kwargs:
        return args
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(names) < len(parameters) or set(names[len(args) :]) != set(kwargs):
        raise Unsupported("freezing full: torch.fx traces only calls with all arguments of forward")
    return (*args, *(kwargs[name] for name in names[len(args) :]))


def _refuse(module: nn.Module, dtype: torch.dtype) -> None:
    if any(part.training for part in module.modules()):
        raise Unsupported("freezing full: the module, or a part of it, is in training mode; call eval() on it first")
    for weight in module.parameters():
        if weight.device.type != "cpu":
            raise Unsupported(f"freezing full: weights are prepared on the CPU; one is on {weight.device}")
        if weight.is_floating_point() and weight.dtype not in (torch.float32, dtype):
            raise Unsupported(f"freezing full: the module is {weight.dtype}; convert it to float32 first")
    if dtype not in DTYPES:
        raise Unsupported(f"freezing full: weights are prepared in float32 or bfloat16, not in {dtype}")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise Unsupported("freezing full: weights are prepared for oneDNN, and this torch was built without it")
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise Unsupported(
            "freezing full: oneDNN needs AVX-512 or later for bfloat16, which this CPU lacks; use float32"
        )


def _remove_idle_modules(network: fx.GraphModule) -> None:
    """Remove modules that do nothing in inference, because they prevent fusion."""
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        called = modules.get(str(node.target)) if node.op == "call_module" else None
        is_idle = isinstance(called, (nn.Identity, nn.Dropout, nn.Dropout2d)) and not has_hooks(called)
        if is_idle and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            network.graph.erase_node(node)


def _prepare_lstms(network: fx.GraphModule, dtype: torch.dtype) -> int:
    """Run LSTMs on our kernel, or join them into wider ones without it; return how many."""
    modules = dict(network.named_modules())
    calls = [(node, modules.get(str(node.target))) for node in network.graph.nodes]
    writes_in_place = any(_is_in_place(node, module) for node, module in calls)
    if dtype == torch.float32 and lstm_replacement.can_replace_lstms(network):
        return lstm_replacement.replace_lstms(network, may_remove_flips=not writes_in_place)
    return 0 if writes_in_place else join_lstms(network)


def _explain_nothing_prepared(module: nn.Module) -> str:
    if any(isinstance(part, (nn.Conv2d, nn.Linear)) for part in module.modules()):
        return (
            "none of its convolutions and linear layers can be prepared: torch.fx does not trace composite "
            "layers of torch.nn, and layers with hooks or other padding than zeros are not supported"
        )
    return (
        "it has no 2-D convolution, linear layer or LSTM without projections, whose weights could be "
        "prepared; without a C++ compiler, or in bfloat16, LSTMs are joined only if several read one input"
    )


class _LayerPreparation:
    """Replaces layers of a traced network, with recorded shapes, by prepared ones.

    `convolutions` holds the original layers by the name of the prepared ones.
    """

    def __init__(self, network: fx.GraphModule, dtype: torch.dtype) -> None:
        self.network, self.dtype = network, dtype
        self.modules: Dict[str, nn.Module] = dict(network.named_modules())
        self.order = {node: place for place, node in enumerate(network.graph.nodes)}
        self.prepared: Dict[fx.Node, PreparedLayer] = {}
        self.convolutions: Dict[str, nn.Conv2d] = {}

    def run(self) -> int:
        for node in list(self.network.graph.nodes):
            self._prepare(node)
        # A fused sum reads its value earlier, which matters if the value changes.
        can_fuse_sums = not any(map(self._is_visible_write, self.network.graph.nodes))
        for node in list(self.prepared):
            if can_fuse_sums:
                self._fuse_sum(node)
            self._fuse_activation(node)
        for node, layer in self.prepared.items():
            if isinstance(layer, PreparedConvolution) and len(node.args) > 1:
                layer.overwrites = self._is_last_reader(node, cast(fx.Node, node.args[1]))
        self.network.delete_all_unused_submodules()
        self.network.graph.lint()
        self.network.recompile()
        return len(self.prepared)

    def _prepare(self, node: fx.Node) -> None:
        layer, shape = self._find_module(node), _read_shape(node.args[0] if node.args else None)
        made: Optional[PreparedLayer] = None
        if shape is None or len(node.args) != 1 or node.kwargs or not _is_plain(layer):
            return
        if isinstance(layer, nn.Conv2d) and len(shape) == 4 and _has_plain_padding(layer):
            made = PreparedConvolution(layer, shape, self.dtype)
        elif isinstance(layer, nn.Linear) and len(shape) > 1:
            made = PreparedLinear(layer, shape, self.dtype)
        if made is not None:
            name = find_unused_name(self.network, f"prepared_{len(self.prepared)}")
            self.network.add_submodule(name, made)
            node.target = name
            if isinstance(layer, nn.Conv2d):
                self.convolutions[name] = layer
            self.modules[name] = self.prepared[node] = made

    def _fuse_sum(self, node: fx.Node) -> None:
        """Fuse the sum with an earlier value if the sum is the only reader of this convolution."""
        user = _find_only_user(node)
        if user is None or user.target not in _SUMS or len(user.args) != 2 or user.kwargs:
            return
        [other] = [one for one in user.args if one is not node] or [node]
        fits = isinstance(other, fx.Node) and other is not node and _read_shape(other) == _read_shape(node)
        if not fits or not isinstance(self.prepared[node], PreparedConvolution):
            return
        if self.order[cast(fx.Node, other)] < self.order[node]:
            node.args = (*node.args, other)
            self._replace(user, node)

    def _is_visible_write(self, node: fx.Node) -> bool:
        """Return whether it writes to a value that has other readers, or that may be a view."""
        if not _is_in_place(node, self._find_module(node)):
            return False
        changed = node.args[0] if node.args else None
        return not (isinstance(changed, fx.Node) and changed in self.prepared and len(changed.users) == 1)

    def _fuse_activation(self, node: fx.Node) -> None:
        """Fuse the activation that is the only reader of this layer; after a sum only ReLU can be."""
        user = _find_only_user(node)
        activation = None if user is None else self._find_activation(user)
        is_sum = len(node.args) > 1
        if user is not None and activation is not None and not (is_sum and activation[0] != "relu"):
            self.prepared[node].activation = activation
            self._replace(user, node)

    def _find_activation(self, node: fx.Node) -> Optional[Activation]:
        module = self._find_module(node)
        name = None if module is None or has_hooks(module) else _MODULES.get(type(module))
        approximation = getattr(module, "approximate", "none")
        if name is None and node.op in ("call_function", "call_method"):
            name, approximation = _FUNCTIONS.get(node.target), str(node.kwargs.get("approximate", "none"))
        if name is None or len(node.args) != 1:
            return None
        return (name, approximation) if name == "gelu" else (name, None)

    def _is_last_reader(self, node: fx.Node, other: fx.Node) -> bool:
        """Return whether a prepared layer computed the value, and all other readers are earlier ones."""
        if other not in self.prepared or _is_used_once(node.args, other) is False:
            return False
        readers = [user for user in other.users if user is not node]
        return all(user in self.prepared and self.order[user] < self.order[node] for user in readers)

    def _replace(self, node: fx.Node, replacement: fx.Node) -> None:
        node.replace_all_uses_with(replacement)
        self.network.graph.erase_node(node)

    def _find_module(self, node: fx.Node) -> Optional[nn.Module]:
        return self.modules.get(str(node.target)) if node.op == "call_module" else None


def _is_in_place(node: fx.Node, module: Optional[nn.Module]) -> bool:
    """Return whether the node writes to its input, or may."""
    if node.op == "call_module":
        return bool(getattr(module, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    has_in_place_name = name.endswith("_") and not name.endswith("__")
    has_in_place_option = (
        any(one is True for one in (*node.args[1:], node.kwargs.get("inplace"))) or "out" in node.kwargs
    )
    return has_in_place_name or has_in_place_option or node.target in _IN_PLACE_OPERATORS


def _find_only_user(node: fx.Node) -> Optional[fx.Node]:
    users: List[fx.Node] = list(node.users)
    return users[0] if len(users) == 1 else None


def _is_used_once(args: Sequence[Any], wanted: fx.Node) -> bool:
    return sum(one is wanted for one in args) == 1


class _ShapeRecorder(fx.Interpreter):
    """Runs a network once and records the shapes of its values.

    torch's ShapeProp does the same, but imports sympy, which takes half a second in every rank.
    """

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            n.meta[SHAPE] = tuple(value.shape)
        return value


def _read_shape(node: Any) -> Optional[Tuple[int, ...]]:
    """Return the shape of a node's value; None if it is no tensor."""
    shape = node.meta.get(SHAPE) if isinstance(node, fx.Node) else None
    return cast(Optional[Tuple[int, ...]], shape)


def _is_plain(layer: Optional[nn.Module]) -> bool:
    """Return whether the layer computes as torch's own and has no hooks."""
    return layer is not None and is_standard_layer(layer) and not has_hooks(layer)


def _has_plain_padding(layer: nn.Conv2d) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
