"""Capture the operators of a prepared module for one input signature, and fuse them around prepared layers.

Measured side: standard library and torch only, Python 3.9. During the export, stubs without memory stand in for
prepared layers, so all captured graphs and the module itself share the prepared weights.
"""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from corewise.accelerate.capture import graph_passes, lstm_kernel_rewrite
from corewise.accelerate.capture.export_stand_in import build_stand_in
from corewise.accelerate.capture.graph_code import compile_graph
from corewise.accelerate.capture.graph_nodes import get_arguments, get_value
from corewise.accelerate.capture.module_export import CaptureError, export_module
from corewise.accelerate.capture.module_state import ModuleState, TooManyAttributesError
from corewise.accelerate.capture.result_objects import TensorsOnly, UnknownResultError
from corewise.accelerate.fast_kernels.kernel_support import has_kernels
from corewise.accelerate.fast_kernels.winograd_convolution import MIN_SPEEDUP, WinogradConvolution, supports_layer
from corewise.accelerate.freeze import lstm_replacement
from corewise.accelerate.freeze.packed_layers import PreparedConvolution, PreparedLayer, PreparedLinear
from corewise.accelerate.freeze.prepared_tree import MAX_TIME_RATIO, compare_times
from corewise.accelerate.freeze.weight_folding import has_hooks

_aten = torch.ops.aten
_ACTIVATIONS: Mapping[Any, str] = {
    _aten.relu.default: "relu",
    _aten.relu_.default: "relu",
    _aten.sigmoid.default: "sigmoid",
    _aten.tanh.default: "tanh",
    _aten.silu.default: "swish",
    _aten.silu_.default: "swish",
    _aten.gelu.default: "gelu",
}
_SUMS = (_aten.add.Tensor, _aten.add_.Tensor)
# Operators that autocast runs in bfloat16.
_PRODUCTS = (
    *(_aten.matmul.default, _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default),
    *(_aten.linear.default, _aten.einsum.default, _aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default),
)
# Factors of the tanh approximation of GELU.
_GELU_CUBIC, _GELU_SCALE = 0.044715, 0.7978845608028654


@dataclasses.dataclass(frozen=True)
class CapturedGraph:
    """The operators of a module for one input signature.

    Attributes:
        run: Takes the flattened inputs and returns the tensors of the result.
        build_result: Builds the result around its tensors.
        num_operators: How many operators run.
        num_prepared: How many of them are layers with prepared weights, or LSTMs on our kernel.
        num_winograd: How many of them are Winograd convolutions.
    """

    run: Callable[..., List[Any]]
    build_result: Callable[[List[Any]], Any]
    num_operators: int
    num_prepared: int
    num_winograd: int


class LayerStub(nn.Module):
    """Stands in for a prepared layer during the export; its weight has a size but no memory."""

    def __init__(self, layer: PreparedLayer) -> None:
        super().__init__()
        self.prepared = _Holder(layer)
        vars(self).update(layer.settings)
        shape = tuple(layer.weight.shape)
        self.register_buffer("weight", torch.zeros(()).expand(shape))
        self.register_buffer("bias", None if layer.bias is None else torch.zeros(()).expand(shape[:1]))

    def forward(self, x: Tensor) -> Any:
        layer, weight, bias = self.prepared.layer, cast(Tensor, self.weight), cast(Optional[Tensor], self.bias)
        if isinstance(layer, PreparedConvolution):
            padding, stride, dilation, groups = cast(Any, layer.sizes)
            return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return functional.linear(x, weight, bias)


class _Holder:
    """Keeps a layer out of a module's submodules."""

    def __init__(self, layer: PreparedLayer) -> None:
        self.layer = layer


def capture_graph(
    module: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype, winograd: Optional[bool]
) -> CapturedGraph:
    """Capture what a prepared module does with inputs like these; raise CaptureError with the reason if impossible."""
    hooked = [name for name, part in module.named_modules() if name and has_hooks(part)]
    if hooked:
        raise CaptureError(f"{hooked[0]} has hooks")
    skeleton = build_stand_in(module)
    if skeleton is None:
        raise CaptureError("parts of it are not built from their attributes")
    _insert_stubs(skeleton)
    wrapper = TensorsOnly(skeleton).eval()
    replaces_lstms = any(isinstance(part, lstm_replacement.RowLstm) for part in module.modules())
    try:
        before = ModuleState(module)
    except TooManyAttributesError as problem:
        raise CaptureError(str(problem)) from problem
    try:
        exported = export_module(wrapper, args, kwargs)
    except UnknownResultError as problem:
        raise CaptureError(str(problem)) from problem
    finally:
        # The module's code may change objects that stand-in and module share.
        before.restore()
    try:
        return _GraphFreezer(exported, wrapper, dtype, winograd, replaces_lstms).freeze()
    except CaptureError:
        raise
    # The module's own code remains.
    except Exception as problem:
        raise CaptureError(f"rewriting its graph fails: {type(problem).__name__}: {problem}") from problem


def _insert_stubs(skeleton: nn.Module) -> None:
    stubs: Dict[int, nn.Module] = {}
    for part in list(skeleton.modules()):
        # The forward of a part with its own graphs; the class has the code.
        if hasattr(vars(part).get("forward"), "run_module"):
            del vars(part)["forward"]
        for name, child in list(part._modules.items()):
            if isinstance(child, PreparedLayer):
                part._modules[name] = stubs.setdefault(id(child), LayerStub(child))
            elif isinstance(child, lstm_replacement.RowLstm) and not child.reverse:
                part._modules[name] = child.layer


class _GraphFreezer:
    """Rewrites one exported graph."""

    def __init__(
        self, exported: Any, wrapper: TensorsOnly, dtype: torch.dtype, winograd: Optional[bool], replaces_lstms: bool
    ) -> None:
        self.replaces_lstms = replaces_lstms
        self.exported, self.wrapper, self.dtype, self.winograd = exported, wrapper, dtype, winograd
        self.graph = exported.graph
        self.inputs: List[Any] = []
        # The tensors of other placeholders.
        self.constants: Dict[Any, Any] = {}
        # Placeholders of weights that are prepared, and names of those that are not.
        self.layers: Dict[Any, PreparedLayer] = {}
        self.stub_biases: Set[Any] = set()
        self.owners: Dict[Any, nn.Module] = {}
        # The prepared layer that each rewritten node calls.
        self.calls: Dict[Any, PreparedLayer] = {}
        self.num_winograd = 0
        self.memory: graph_passes.MemoryUse
        self.places: Dict[Any, int] = {}

    def freeze(self) -> CapturedGraph:
        graph_passes.inline_contexts(self.exported.graph_module)
        graph_passes.check_operators(self.graph)
        self._read_placeholders()
        self._refuse_writes_to_state()
        is_float = self.dtype == torch.float32
        graph_passes.remove_idle_operators(self.graph, keeps_casts=not is_float)
        is_usable = lambda node: node not in self.layers and node not in self.stub_biases  # noqa: E731
        graph_passes.fold_constants(self.graph, self.constants, is_usable)
        _replace_tanh_gelus(self.graph)
        self._call_prepared_layers()
        num_prepared = len(self.calls)
        if is_float:
            self._use_winograd()
            num_prepared += self._replace_lstms()
        else:
            self._keep_float32_products()
        self.graph.eliminate_dead_code(_has_effects)
        self._remove_unused_placeholders()
        run = compile_graph(self.graph, self.inputs, self.constants)
        num = sum(node.op == "call_function" for node in self.graph.nodes)
        return CapturedGraph(run, self.wrapper.holder.template.build, num, num_prepared, self.num_winograd)

    def _read_placeholders(self) -> None:
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, self.exported.graph_signature.input_specs):
            category = spec.kind.name
            if category == "USER_INPUT":
                self.inputs.append(node)
            elif category in ("PARAMETER", "BUFFER"):
                path, _, name = spec.target.rpartition(".")
                owner = self.wrapper.get_submodule(path)
                self.constants[node] = getattr(owner, name)
                self.owners[node] = owner
                if isinstance(owner, LayerStub) and name == "weight":
                    self.layers[node] = owner.prepared.layer
                elif isinstance(owner, LayerStub):
                    self.stub_biases.add(node)
            elif category == "CONSTANT_TENSOR":
                self.constants[node] = self.exported.constants[spec.target]
            else:
                raise CaptureError(f"it takes a {category.lower().replace('_', ' ')} ({spec.target})")
        for spec in self.exported.graph_signature.output_specs:
            if spec.kind.name != "USER_OUTPUT":
                raise CaptureError(f"it gives a {spec.kind.name.lower().replace('_', ' ')} ({spec.target})")

    def _refuse_writes_to_state(self) -> None:
        memory = graph_passes.MemoryUse(self.graph)
        if any(memory.is_written(node) for node in self.constants):
            raise CaptureError("its forward writes to its parameters, buffers or constants")

    def _call_prepared_layers(self) -> None:
        self.memory = graph_passes.MemoryUse(self.graph)
        self.places = dict(self.memory.places)
        has_convolutions = False
        for node in list(self.graph.nodes):
            if node.target not in (_aten.linear.default, _aten.conv2d.default):
                continue
            layer = self._find_layer(node)
            if layer is None:
                continue
            x, end = node.args[0], node
            layer = _copy_layer(layer)
            if isinstance(layer, PreparedConvolution):
                has_convolutions = True
                end, layer = self._fold_norm(end, layer)
            end, other = self._find_sum(end)
            end = self._fuse_activation(end, layer, other)
            self._insert_call(node, end, layer, x, other)
        unfinished = [node for node in self.graph.nodes if any(each in self.layers for each in node.all_input_nodes)]
        if unfinished:
            raise CaptureError(f"{unfinished[0].name} reads the weight of a layer outside the layer")
        if has_convolutions:
            # Results of prepared convolutions have their channels last in memory.
            for node in self.graph.nodes:
                if node.target is _aten.view.default:
                    node.target = _aten.reshape.default
                elif node.target is _aten.as_strided.default:
                    raise CaptureError("it depends on the memory layout of its values (as_strided)")

    def _find_layer(self, node: Any) -> Optional[PreparedLayer]:
        weight = node.args[1]
        if weight in self.layers:
            return self.layers[weight]
        if weight not in self.constants:
            return None
        if node.target is _aten.conv2d.default:
            return self._prepare_convolution(node)
        # The tree has decided on linear layers. Weights that are used otherwise are decided on here.
        return None if isinstance(self.owners.get(weight), nn.Linear) else self._prepare_linear(node)

    def _prepare_convolution(self, node: Any) -> Optional[PreparedLayer]:
        """Prepare a convolution that is not faster alone, but may be together with its norm and activation."""
        x, weight, bias, *settings = get_arguments(node, 7)
        value, constant = get_value(x), self.constants[weight]
        follower = _find_only_user(node)
        is_followed = follower is not None and (follower.target is _aten.batch_norm.default or follower in self._sums())
        is_supported = value.dim() == 4 and value.dtype == constant.dtype == torch.float32 and value.numel()
        if not is_followed or not is_supported or (bias is not None and bias not in self.constants):
            return None
        plain = _build_convolution(constant, None if bias is None else self.constants[bias], *settings)
        made = PreparedConvolution(plain, value.shape, self.dtype)
        sample = torch.randn(value.shape).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            once = plain(sample)
            # The norm, or the sum, is another pass over the result.
            ratio = compare_times(lambda: plain(sample).add_(once), lambda: made(sample))
        return made if self.dtype != torch.float32 or ratio < MAX_TIME_RATIO else None

    def _sums(self) -> Set[Any]:
        return {node for node in self.graph.nodes if node.target in _SUMS}

    def _prepare_linear(self, node: Any) -> Optional[PreparedLayer]:
        x, weight, bias = get_arguments(node, 3)
        value, constant = get_value(x), self.constants[weight]
        is_supported = constant.dtype == torch.float32 and constant.dim() == 2 and value.dim() > 1 and value.numel()
        if not is_supported or value.dtype != torch.float32 or (bias is not None and bias not in self.constants):
            return None
        shift = None if bias is None else self.constants[bias]
        made = PreparedLinear(cast(Any, SimpleNamespace(weight=constant, bias=shift)), value.shape, self.dtype)
        sample = torch.randn(value.shape)
        if self.dtype == torch.float32:
            ratio = compare_times(lambda: functional.linear(sample, constant, shift), lambda: made(sample))
            return made if ratio < MAX_TIME_RATIO else None
        return made

    def _fold_norm(self, node: Any, layer: PreparedConvolution) -> Tuple[Any, PreparedConvolution]:
        user = _find_only_user(node)
        if user is None or user.target is not _aten.batch_norm.default or user.args[0] is not node:
            return node, layer
        _, weight, bias, mean, variance, training, _, eps, _ = user.args
        given = [None if one is None else self.constants.get(one, user) for one in (weight, bias, mean, variance)]
        if training or mean is None or variance is None or any(one is user for one in given):
            return node, layer
        plain = layer.weight.to_dense() if layer.weight.is_mkldnn else layer.weight
        shift = None if layer.bias is None else layer.bias.float()
        fuse: Any = nn.utils.fusion.fuse_conv_bn_weights
        fused = fuse(plain.float(), shift, *given[2:], eps, *given[:2])
        made = PreparedConvolution(_describe_convolution(layer, *fused), get_value(node.args[0]).shape, self.dtype)
        return user, made

    def _find_sum(self, node: Any) -> Tuple[Any, Any]:
        """Find the sum with another value that is the only reader of a layer.

        The fused sum reads that value earlier, so nothing may write to it.
        """
        user = _find_only_user(node)
        is_sum = user is not None and user.target in _SUMS and len(user.args) == 2 and not user.kwargs
        if not is_sum or self.dtype != torch.float32:
            return node, None
        others = [one for one in user.args if one is not node]
        # A sum in place changes the other value.
        if len(others) != 1 or (user.target is _aten.add_.Tensor and user.args[0] is not node):
            return node, None
        [other] = others
        value = get_value(other) if isinstance(other, torch.fx.Node) else None
        fits = isinstance(value, Tensor) and value.shape == get_value(node).shape and value.dtype == torch.float32
        if not fits or other not in self.places or self.memory.is_written(other):
            return node, None
        # The fused layer runs at the place of its first operator.
        start = node.args[0] if node.target is _aten.batch_norm.default else node
        return (user, other) if self.places[other] < self.places[start] else (node, None)

    def _fuse_activation(self, node: Any, layer: PreparedLayer, other: Any) -> Any:
        user = _find_only_user(node)
        name = None if user is None else _ACTIVATIONS.get(user.target)
        if user is None or name is None or len(user.args) != 1:
            return node
        if other is not None and (name != "relu" or isinstance(layer, PreparedLinear)):
            return node
        approximation = str(user.kwargs.get("approximate", "none")) if name == "gelu" else None
        layer.activation = (name, approximation)
        return user

    def _insert_call(self, node: Any, end: Any, layer: PreparedLayer, x: Any, other: Any) -> None:
        with self.graph.inserting_before(node):
            if isinstance(layer, PreparedLinear) and self.dtype == torch.float32:
                new = self._call_linear(layer, x, other)
            else:
                new = self.graph.create_node("call_function", layer.forward, (x,) if other is None else (x, other))
        new.meta["val"] = get_value(end)
        self.calls[new] = layer
        self._replace_chain(node, end, new)

    def _replace_chain(self, node: Any, end: Any, new: Any) -> None:
        """Replace nodes, each the only reader of the one before, from the layer to its last fused operator."""
        chain = [node]
        while chain[-1] is not end:
            chain.append(_find_only_user(chain[-1]))
        end.replace_all_uses_with(new)
        self.places[new], self.memory.memories[new] = self.places[node], self.memory.memories[end]
        for each in reversed(chain):
            self.memory.forget_writer(each)
            self.graph.erase_node(each)

    def _call_linear(self, layer: PreparedLinear, x: Any, other: Any) -> Any:
        name, approximation = layer.activation
        weight = self._add_constant(layer.weight)
        bias = None if layer.bias is None else self._add_constant(layer.bias)
        operator = torch.ops.mkldnn._linear_pointwise
        if other is not None:
            return self.graph.create_node("call_function", operator.binary, (x, other, weight, bias, "add"))
        args: Tuple[Any, ...] = (x, weight, bias, name, [], approximation or "")
        return self.graph.create_node("call_function", operator.default, args)

    def _add_constant(self, value: Any) -> Any:
        with self.graph.inserting_before(next(iter(self.graph.nodes))):
            node = self.graph.placeholder(f"packed_{len(self.constants)}")
        self.constants[node] = value
        return node

    def _use_winograd(self) -> None:
        for node, layer in self.calls.items():
            if self.winograd is False or type(layer) is not PreparedConvolution or not has_kernels():
                continue
            plain = layer.weight.to_dense() if layer.weight.is_mkldnn else layer.weight
            described = _describe_convolution(layer, plain, layer.bias)
            if supports_layer(described):
                faster = WinogradConvolution(described, layer)
                if self.winograd or _is_faster(faster, layer, [get_value(each).shape for each in node.args]):
                    node.target = faster.forward
                    self.num_winograd += 1

    def _replace_lstms(self) -> int:
        """Run LSTMs on our kernel, as the prepared module does."""
        return lstm_kernel_rewrite.replace_lstms(self.graph) if self.replaces_lstms else 0

    def _keep_float32_products(self) -> None:
        """Compute products in float32 that depend on numbers such as positions only, not on inputs or layers.

        Modules may switch autocast off for these only if it is on, which the graph does not show.
        """
        values = [(node, node.meta.get("val")) for node in self.inputs]
        dependent: Set[Any] = {n for n, value in values if isinstance(value, Tensor) and value.is_floating_point()}
        for node in self.graph.nodes:
            if node in self.calls or any(each in dependent for each in node.all_input_nodes):
                dependent.add(node)
            is_exact = node not in dependent or graph_passes.WITHOUT_AUTOCAST_META in node.meta
            if is_exact and node.op == "call_function" and node.target in _PRODUCTS:
                node.target = functools.partial(_call_without_autocast, node.target)

    def _remove_unused_placeholders(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and node not in self.inputs and not node.users:
                self.constants.pop(node, None)
                self.graph.erase_node(node)


def _call_without_autocast(target: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return target(*args, **kwargs)


def _is_faster(one: PreparedConvolution, other: PreparedConvolution, shapes: Sequence[Any]) -> bool:
    """Measure whether one convolution is faster than the other by enough, on images with channels last."""
    images = [torch.randn(shape).contiguous(memory_format=torch.channels_last) for shape in shapes]
    return compare_times(lambda: other(*images), lambda: one(*images)) <= 1 / MIN_SPEEDUP


def _copy_layer(layer: PreparedLayer) -> PreparedLayer:
    """Copy a layer that shares the weights, and may get another activation."""
    new = object.__new__(type(layer))
    vars(new).update(vars(layer))
    return new


def _describe_convolution(layer: PreparedConvolution, weight: Tensor, bias: Optional[Tensor]) -> nn.Conv2d:
    """Build the plain layer of a prepared one, with these weights."""
    padding, stride, dilation, groups = cast(Any, layer.sizes)
    return _build_convolution(weight, bias, stride, padding, dilation, groups)


def _build_convolution(
    weight: Tensor, bias: Optional[Tensor], stride: Any, padding: Any, dilation: Any, groups: int
) -> nn.Conv2d:
    pairs = [(one, one) if isinstance(one, int) else tuple(one) for one in (stride, padding, dilation)]
    channels = (weight.shape[1] * groups, weight.shape[0])
    make: Any = nn.Conv2d
    plain: nn.Conv2d = make(*channels, tuple(weight.shape[2:]), *pairs, groups, bias is not None, device="meta")
    plain.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return plain.eval()


def _find_only_user(node: Any) -> Any:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _has_effects(node: Any) -> bool:
    """Return whether a node without readers must stay."""
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _replace_tanh_gelus(graph: Any) -> None:
    """Replace the tanh approximation of GELU, written as eight operators, by torch's operator."""
    for node in list(graph.nodes):
        x = _match_tanh_gelu(node)
        if x is not None:
            with graph.inserting_before(node):
                new = graph.create_node("call_function", _aten.gelu.default, (x,), {"approximate": "tanh"})
            new.meta["val"] = get_value(node)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    graph.eliminate_dead_code(_has_effects)


def _match_tanh_gelu(node: Any) -> Any:
    """Return x if the node is 0.5 x (1 + tanh(s (x + c x^3)))."""
    for half, one_plus in _list_pairs(node, _aten.mul.Tensor):
        x = _match_scalar(half, _aten.mul.Tensor, 0.5)
        curve = _match_scalar(one_plus, _aten.add.Tensor, 1.0)
        if x is None or curve is None or curve.target is not _aten.tanh.default:
            continue
        inner = _match_scalar(curve.args[0], _aten.mul.Tensor, _GELU_SCALE)
        for first, second in _list_pairs(inner, _aten.add.Tensor):
            power = _match_scalar(second, _aten.mul.Tensor, _GELU_CUBIC)
            if first is x and power is not None and power.target is _aten.pow.Tensor_Scalar and power.args == (x, 3.0):
                return x
    return None


def _list_pairs(node: Any, target: Any) -> Sequence[Tuple[Any, Any]]:
    """List both orders of the arguments of an operator on two values."""
    is_call = isinstance(node, torch.fx.Node) and node.target is target and len(node.args) == 2 and not node.kwargs
    return [tuple(node.args), tuple(reversed(node.args))] if is_call else []


def _match_scalar(node: Any, target: Any, wanted: float) -> Any:
    """Return the other value of an operator with this number."""
    for one, two in _list_pairs(node, target):
        if isinstance(one, torch.fx.Node) and isinstance(two, (int, float)) and abs(two - wanted) < 1e-9:
            return one
    return None
