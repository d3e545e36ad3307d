"""Replace convolutions and linear layers of an exported graph by operators on prepacked weights.

Measured side: standard library and torch only, Python 3.9. Plain execution reorders a layer's weights for its
kernel at every call; at small batches that takes as long as the layer. A batch norm in evaluation mode is
folded into the convolution before it. A ReLU is not: oneDNN's fused ReLU turns NaN into 0, torch's does not.
Where our kernels may run, large enough 3 x 3 and 5 x 5 convolutions use Winograd convolution.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Hashable, List, Mapping, Sequence, Tuple

import torch

from corewise.accelerate.capture.graph_nodes import get_arguments, get_value
from corewise.accelerate.capture.program import Pack
from corewise.accelerate.capture.torch_modes import read_modes
from corewise.accelerate.fast_kernels import winograd_rule

_aten = torch.ops.aten
# Key in a node's metadata: the layer of which the node is a packed tensor.
PACKED_META = "corewise_packed"
# Key in a placeholder's metadata: whether it is a parameter or buffer.
_STATE_META = "corewise_state"
# Layers with fewer weights gain nothing: reordering them is fast.
_MIN_WEIGHTS = 4096
# Minimum number of rows of a linear layer. A single row reuses no weight.
_MIN_ROWS = 2
# With MKL on Intel processors, plain linear layers with fewer rows or products are fast enough.
_MIN_ROWS_WITH_MKL, _MIN_PRODUCTS_WITH_MKL = 16, 2**24


class PackingError(Exception):
    """Raised with the reason if weights cannot be packed."""


class PackedLayer:
    """A layer with packed weights, and the nodes that they are computed from."""

    def __init__(
        self, sources: Sequence[Any], eps: float = 0.0, geometry: Tuple[Any, ...] = (), is_winograd: bool = False
    ) -> None:
        self.sources, self.eps, self.geometry = tuple(sources), eps, geometry
        self.is_winograd = is_winograd
        # Nodes of the packed tensors.
        self.results: List[Any] = []

    def build_key(self) -> Hashable:
        return (self.sources, self.eps, str(self.geometry), self.is_winograd)

    def pack(self, numbers: Mapping[Any, int]) -> Pack:
        """Build the Pack for a program in which nodes have these value numbers."""
        [weight, *_] = self.results
        user = next(iter(weight.users))
        return Pack(
            results=tuple(numbers[node] for node in self.results),
            sources=tuple(None if node is None else numbers[node] for node in self.sources),
            eps=self.eps,
            geometry=self.geometry,
            input_size=tuple(int(size) for size in get_value(user.args[0]).shape),
            is_winograd=self.is_winograd,
        )


def explain_unpacked() -> str:
    """Explain why weights are not packed in the current modes; empty if they may be."""
    if torch.is_grad_enabled():
        return "gradients are enabled"
    if read_modes().autocast is not None:
        return "autocast is active"
    backend: Any = torch.backends.mkldnn
    if not backend.is_available() or not backend.enabled:
        return "oneDNN is missing or disabled"
    if not _is_exact(backend):
        return "a reduced float32 precision is set"
    return ""


def _is_exact(backend: Any) -> bool:
    """Return whether float32 is computed in full precision; newer torch sets it for each type of layer."""
    parts = (torch.backends, backend, getattr(backend, "conv", None), getattr(backend, "matmul", None))
    if any(getattr(part, "fp32_precision", "none") not in ("none", "ieee") for part in parts):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    # The old and the new setting contradict each other.
    except RuntimeError:
        return False


def pack_layers(graph: Any, inputs: Sequence[Any], num_cores: int, own_kernels: bool) -> int:
    """Pack layers of a graph without writes; return the number of layers with packed weights.

    Args:
        inputs: nodes of the caller's inputs, which are new at each call.
        own_kernels: convolutions may run on our kernel, which must be loaded.
    """
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for node in placeholders:
        node.meta[_STATE_META] = node not in inputs
    packing = _WeightPacker(graph, placeholders, num_cores if own_kernels else 0)
    for node in nodes:
        if node.target is _aten.conv2d.default:
            packing.pack_convolution(node)
        elif node.target is _aten.linear.default:
            packing.pack_linear(node)
    graph.lint()
    return packing.num


class _WeightPacker:
    def __init__(self, graph: Any, placeholders: Sequence[Any], winograd_cores: int) -> None:
        self.graph, self.last = graph, placeholders[-1]
        # 0 if our kernel must not run.
        self.winograd_cores = winograd_cores
        self.layers: Dict[Hashable, PackedLayer] = {}
        self.num = 0

    def pack_convolution(self, node: Any) -> None:
        """Pack a convolution, and fold the batch norm that alone follows it."""
        x, weight, bias, *settings, groups = get_arguments(node, 7)
        stride, padding, dilation = ([one, one] if isinstance(one, int) else list(one) for one in settings)
        is_supported = (
            get_value(x).dim() == 4 and _is_channels_last(get_value(x)) and _is_channels_last(get_value(node))
        )
        end, norm = _find_batch_norm(node)
        are_few = end is node and _count_weights(weight) < _MIN_WEIGHTS
        if not is_supported or are_few or not _has_stable_weights(weight, bias) or not _is_float(x):
            return
        sources, geometry = (weight, bias, *norm[:4]), (padding, stride, dilation, groups)
        sizes = [int(size) for size in get_value(weight).shape]
        args: Tuple[Any, ...]
        if self.winograd_cores and _supports_winograd(get_value(x).shape, sizes, geometry, self.winograd_cores):
            layer = PackedLayer(sources, norm[4], geometry, is_winograd=True)
            packed, shift = self._add_packed(layer, [*sizes[:2], winograd_rule.NUM_POINTS], sizes[:1])
            args = (x, packed, shift, sizes[2], padding, None, False)
            self._replace(node, end, torch.ops.corewise.winograd_convolution.default, args, "winograd")
        else:
            packed, shift = self._add_packed(PackedLayer(sources, norm[4], geometry), sizes, sizes[:1])
            args = (x, packed, shift, *geometry, "none", [], "")
            self._replace(node, end, torch.ops.mkldnn._convolution_pointwise.default, args)

    def pack_linear(self, node: Any) -> None:
        """Pack a linear layer on several rows."""
        x, weight, bias = get_arguments(node, 3)
        rows = get_value(x).numel() // max(1, get_value(x).shape[-1])
        are_few = _count_weights(weight) < _MIN_WEIGHTS or _is_fast_unpacked(rows, _count_weights(weight))
        if get_value(x).dim() < 2 or are_few or not _has_stable_weights(weight, bias) or not _is_float(x):
            return
        [packed] = self._add_packed(PackedLayer((weight,)), list(get_value(weight).shape))
        args: Tuple[Any, ...] = (x, packed, bias, "none", [], "")
        self._replace(node, node, torch.ops.mkldnn._linear_pointwise.default, args)

    def _add_packed(self, layer: PackedLayer, *sizes: List[int]) -> List[Any]:
        """Return the placeholders of the layer's packed tensors, which have these sizes."""
        shared = self.layers.setdefault(layer.build_key(), layer)
        if shared is not layer:
            return shared.results
        reference = get_value(layer.sources[0])
        for size in sizes:
            with self.graph.inserting_after(self.last):
                node = self.graph.placeholder(f"packed_{len(self.layers)}_{len(layer.results)}")
            node.meta["val"] = reference.new_empty(size)
            node.meta[PACKED_META] = layer
            layer.results.append(node)
            self.last = node
        return layer.results

    def _replace(self, first: Any, end: Any, target: Any, args: Any, prefix: str = "packed") -> None:
        name = f"{prefix}_{first.name}"
        with self.graph.inserting_before(first):
            new = self.graph.create_node("call_function", target, args, name=name)
        new.meta["val"] = torch.empty_like(get_value(end))
        end.replace_all_uses_with(new)
        self.graph.erase_node(end)
        if end is not first:
            self.graph.erase_node(first)
        self.num += 1


def _supports_winograd(x: Sequence[int], weight: Sequence[int], geometry: Sequence[Any], cores: int) -> bool:
    padding, stride, dilation, groups = geometry
    has_form = winograd_rule.supports_winograd(weight[:2], weight[2:], stride, dilation, groups)
    return has_form and winograd_rule.is_worthwhile_prepared(x, weight, padding, cores)


def _is_fast_unpacked(rows: int, num_weights: int) -> bool:
    is_less = rows < _MIN_ROWS_WITH_MKL or rows * num_weights < _MIN_PRODUCTS_WITH_MKL
    return rows < _MIN_ROWS or (is_less and _has_fast_mkl())


@functools.lru_cache(maxsize=1)
def _has_fast_mkl() -> bool:
    """Return whether plain linear layers use MKL on an Intel processor."""
    try:
        with open("/proc/cpuinfo") as file:
            is_intels = any(line.startswith("vendor_id") and "GenuineIntel" in line for line in file)
    except OSError:
        return False
    return is_intels and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _find_batch_norm(node: Any) -> Tuple[Any, Tuple[Any, Any, Any, Any, float]]:
    """Find the last node of the layer, and its batch norm's weight, bias, mean, variance and eps."""
    [user, *others] = list(node.users) or [None]
    if others or user is None or user.target is not _aten.batch_norm.default or user.args[0] is not node:
        return node, (None, None, None, None, 0.0)
    _, weight, bias, mean, variance, training, _, eps, _ = user.args
    tensors = [one for one in (weight, bias, mean, variance) if one is not None]
    if training or mean is None or variance is None or not all(map(_is_state, tensors)):
        return node, (None, None, None, None, 0.0)
    return user, (weight, bias, mean, variance, float(eps))


def _has_stable_weights(weight: Any, bias: Any) -> bool:
    return _is_state(weight) and (bias is None or _is_state(bias))


def _count_weights(node: Any) -> int:
    return int(get_value(node).numel()) if isinstance(node, torch.fx.Node) else 0


def _is_state(node: Any) -> bool:
    """Return whether it is a parameter or buffer itself; computed weights are new at each call."""
    return isinstance(node, torch.fx.Node) and node.meta.get(_STATE_META, False) and _is_float(node)


def _is_float(node: Any) -> bool:
    return bool(get_value(node).dtype == torch.float32)


def _is_channels_last(value: torch.Tensor) -> bool:
    """Return whether channels come last in memory, as in all results of oneDNN."""
    return value.is_contiguous(memory_format=torch.channels_last)


def pack_weights(pack: Pack, values: Mapping[int, torch.Tensor]) -> List[torch.Tensor]:
    """Build the tensors of a pack."""
    sources = [None if value is None else values[value] for value in pack.sources]
    weight = sources[0]
    assert weight is not None
    if not pack.is_convolution:
        num_rows = torch.Size(pack.input_size[:-1]).numel()
        return [torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)]
    _, bias, scale, shift, mean, variance = sources
    if mean is not None and variance is not None:
        factor = (variance.double() + pack.eps).rsqrt()
        factor = factor if scale is None else factor * scale.double()
        centered = mean.double().neg() if bias is None else bias.double() - mean.double()
        shifted = centered * factor if shift is None else centered * factor + shift.double()
        weight = (weight * factor.float().view(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
        bias = shifted.float()
        if not all(bool(torch.isfinite(one).all()) for one in (factor, weight, bias)):
            raise PackingError("the batch norm has scales that are not finite")
    elif bias is None:
        bias = weight.new_zeros(len(weight))
    if pack.is_winograd:
        return [torch.ops.corewise.winograd_weight(weight), bias]
    padding, stride, dilation, groups = pack.geometry
    size = list(pack.input_size)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, size)
    return [packed, bias]
