"""An exported graph whose convolutions and linear layers take weights that were packed beforehand.

Measured side: standard library and torch only, Python 3.9. Plain execution brings a layer's weights into the
order its kernel reads them in at every call; at small batches that takes as long as the layer itself. A batch
norm that only scales and shifts what a convolution gives is folded into its weights. Nothing else is: a ReLU
within oneDNN's convolution would turn NaN into 0, which torch's does not. Where our kernels may run, those of
3 x 3 and 5 x 5 that have enough to do take Winograd's way.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Hashable, List, Mapping, Sequence, Tuple

import torch

from corewise.dataflow import winograd_rule
from corewise.dataflow.batch_rules import val
from corewise.dataflow.modes import current_modes
from corewise.dataflow.program import Pack

_aten = torch.ops.aten
PACKED = "corewise_packed"  # where a node is noted that is one of a layer's packed tensors
_KEPT = "corewise_kept"  # where placeholders are told apart: whether this is a parameter or buffer
_LEAST_WEIGHTS = 4096  # fewer are packed in no time
_LEAST_ROWS = 2  # of a linear layer: with one there is nothing to reuse weights for
_LEAST_ROWS_BESIDE_MKL, _LEAST_PRODUCTS_BESIDE_MKL = 16, 2**24  # on Intel's processors it is quick with less


class Layer:
    """One whose weights are packed: the nodes of what they are made of."""

    def __init__(
        self,
        sources: Sequence[Any],
        eps: float = 0.0,
        geometry: Tuple[Any, ...] = (),
        is_winograd: bool = False,
    ) -> None:
        self.sources, self.eps, self.geometry = tuple(sources), eps, geometry
        self.is_winograd = is_winograd
        self.results: List[Any] = []  # nodes of what is packed

    def key(self) -> Hashable:
        return (self.sources, self.eps, str(self.geometry), self.is_winograd)

    def pack(self, numbers: Mapping[Any, int]) -> Pack:
        """For a program in which nodes have these numbers of values."""
        [weight, *_] = self.results
        user = next(iter(weight.users))
        return Pack(
            results=tuple(numbers[node] for node in self.results),
            sources=tuple(None if node is None else numbers[node] for node in self.sources),
            eps=self.eps,
            geometry=self.geometry,
            input_size=tuple(int(size) for size in val(user.args[0]).shape),
            is_winograd=self.is_winograd,
        )


def why_not_packed() -> str:
    """Why weights are not packed in the present modes; empty where they may be."""
    if torch.is_grad_enabled():
        return "gradients are wanted"
    if current_modes().autocast is not None:
        return "autocast changes types"
    backend: Any = torch.backends.mkldnn
    if not backend.is_available() or not backend.enabled:
        return "there is no oneDNN, or it is turned off"
    if not _is_exact(backend):
        return "a lower precision of products was asked for"
    return ""


def _is_exact(backend: Any) -> bool:
    """Whether float32 is computed as such; newer versions of torch can be told otherwise for each kind."""
    parts = (torch.backends, backend, getattr(backend, "conv", None), getattr(backend, "matmul", None))
    if any(getattr(part, "fp32_precision", "none") not in ("none", "ieee") for part in parts):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was told so in two ways
        return False


def pack(graph: Any, inputs: Sequence[Any], num_cores: int, own_kernels: bool) -> int:
    """The number of layers that take packed weights afterwards; the graph writes to nothing it is given.

    inputs: nodes of what the caller brings, which is likely to be new at each call. own_kernels: whether
    convolutions may run on ours, which must be loaded.
    """
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for node in placeholders:
        node.meta[_KEPT] = node not in inputs
    packing = _Packing(graph, placeholders, num_cores if own_kernels else 0)
    for node in nodes:
        if node.target is _aten.conv2d.default:
            packing.convolution(node)
        elif node.target is _aten.linear.default:
            packing.linear(node)
    graph.lint()
    return packing.num


class _Packing:
    def __init__(self, graph: Any, placeholders: Sequence[Any], winograd_cores: int) -> None:
        self.graph, self.last = graph, placeholders[-1]
        self.winograd_cores = winograd_cores  # 0: our kernel must not run
        self.layers: Dict[Hashable, Layer] = {}
        self.num = 0

    def convolution(self, node: Any) -> None:
        """With the batch norm that alone follows it, if there is one."""
        x, weight, bias, *given, groups = _given(node, 7)
        stride, padding, dilation = ([one, one] if isinstance(one, int) else list(one) for one in given)
        is_fit = val(x).dim() == 4 and _is_last(val(x)) and _is_last(val(node))
        end, norm = _norm_after(node)
        are_few = end is node and _num_weights(weight) < _LEAST_WEIGHTS
        if not is_fit or are_few or not _are_weights(weight, bias) or not _is_float(x):
            return
        sources, geometry = (weight, bias, *norm[:4]), (padding, stride, dilation, groups)
        sizes = [int(size) for size in val(weight).shape]
        args: Tuple[Any, ...]
        if self.winograd_cores and _is_for_winograd(val(x).shape, sizes, geometry, self.winograd_cores):
            layer = Layer(sources, norm[4], geometry, is_winograd=True)
            packed, shift = self._packed(layer, [*sizes[:2], winograd_rule.NUM_POINTS], sizes[:1])
            args = (x, packed, shift, sizes[2], padding, None, False)
            self._replace(node, end, torch.ops.corewise.winograd_convolution.default, args, "winograd")
        else:
            packed, shift = self._packed(Layer(sources, norm[4], geometry), sizes, sizes[:1])
            args = (x, packed, shift, *geometry, "none", [], "")
            self._replace(node, end, torch.ops.mkldnn._convolution_pointwise.default, args)

    def linear(self, node: Any) -> None:
        """A linear layer on several rows."""
        x, weight, bias = _given(node, 3)
        rows = val(x).numel() // max(1, val(x).shape[-1])
        are_few = _num_weights(weight) < _LEAST_WEIGHTS or _is_quick_unpacked(rows, _num_weights(weight))
        if val(x).dim() < 2 or are_few or not _are_weights(weight, bias) or not _is_float(x):
            return
        [packed] = self._packed(Layer((weight,)), list(val(weight).shape))
        args: Tuple[Any, ...] = (x, packed, bias, "none", [], "")
        self._replace(node, node, torch.ops.mkldnn._linear_pointwise.default, args)

    def _packed(self, layer: Layer, *sizes: List[int]) -> List[Any]:
        """The nodes of its packed tensors, which have these sizes."""
        known = self.layers.setdefault(layer.key(), layer)
        if known is not layer:
            return known.results
        like = val(layer.sources[0])
        for size in sizes:
            with self.graph.inserting_after(self.last):
                node = self.graph.placeholder(f"packed_{len(self.layers)}_{len(layer.results)}")
            node.meta["val"] = like.new_empty(size)
            node.meta[PACKED] = layer
            layer.results.append(node)
            self.last = node
        return layer.results

    def _replace(self, first: Any, end: Any, target: Any, args: Any, word: str = "packed") -> None:
        name = f"{word}_{first.name}"
        with self.graph.inserting_before(first):
            new = self.graph.create_node("call_function", target, args, name=name)
        new.meta["val"] = torch.empty_like(val(end))
        end.replace_all_uses_with(new)
        self.graph.erase_node(end)
        if end is not first:
            self.graph.erase_node(first)
        self.num += 1


def _is_for_winograd(x: Sequence[int], weight: Sequence[int], geometry: Sequence[Any], cores: int) -> bool:
    padding, stride, dilation, groups = geometry
    has_form = winograd_rule.has_form(weight[:2], weight[2:], stride, dilation, groups)
    return has_form and winograd_rule.pays_prepared(x, weight, padding, cores)


def _is_quick_unpacked(rows: int, num_weights: int) -> bool:
    is_less = rows < _LEAST_ROWS_BESIDE_MKL or rows * num_weights < _LEAST_PRODUCTS_BESIDE_MKL
    return rows < _LEAST_ROWS or (is_less and _has_quick_mkl())


@functools.lru_cache(maxsize=1)
def _has_quick_mkl() -> bool:
    """Whether plain linear layers are MKL's, on a processor that it was written for."""
    try:
        with open("/proc/cpuinfo") as file:
            is_intels = any(line.startswith("vendor_id") and "GenuineIntel" in line for line in file)
    except OSError:
        return False
    return is_intels and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _given(node: Any, num: int) -> List[Any]:
    """All arguments, defaults among them."""
    rest = node.target._schema.arguments[len(node.args) : num]
    return [*node.args, *(node.kwargs.get(one.name, one.default_value) for one in rest)][:num]


def _norm_after(node: Any) -> Tuple[Any, Tuple[Any, Any, Any, Any, float]]:
    """Where the layer ends, and what its batch norm scales and shifts by."""
    [user, *others] = list(node.users) or [None]
    if others or user is None or user.target is not _aten.batch_norm.default or user.args[0] is not node:
        return node, (None, None, None, None, 0.0)
    _, weight, bias, mean, variance, training, _, eps, _ = user.args
    given = [one for one in (weight, bias, mean, variance) if one is not None]
    if training or mean is None or variance is None or not all(map(_is_kept, given)):
        return node, (None, None, None, None, 0.0)
    return user, (weight, bias, mean, variance, float(eps))


def _are_weights(weight: Any, bias: Any) -> bool:
    return _is_kept(weight) and (bias is None or _is_kept(bias))


def _num_weights(node: Any) -> int:
    return int(val(node).numel()) if isinstance(node, torch.fx.Node) else 0


def _is_kept(node: Any) -> bool:
    """Whether it is a parameter or buffer as it is; what an operator made of one is new at each call."""
    return isinstance(node, torch.fx.Node) and node.meta.get(_KEPT, False) and _is_float(node)


def _is_float(node: Any) -> bool:
    return bool(val(node).dtype == torch.float32)


def _is_last(value: torch.Tensor) -> bool:
    """Whether channels come last in memory: oneDNN's results are so, whatever it is given."""
    return value.is_contiguous(memory_format=torch.channels_last)
