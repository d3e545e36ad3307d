"""An exported graph with its recurrent layers cut along the batch, and what can follow cut along with them.

Measured side: standard library and torch only, Python 3.9. A recurrent layer is a long row of small steps:
threads that share one wait for each other at every step, while slices of its batch know nothing of each other
and stay in a core's own cache. The results are the same rows of numbers.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from corewise.dataflow.batch_rules import before, following, val, with_rows
from corewise.dataflow.recurrent import shapes_of

_aten = torch.ops.aten
_STATES = {  # recurrent layers, with the number of their states
    _aten.lstm.input: 2,
    _aten.gru.input: 1,
    _aten.rnn_tanh.input: 1,
    _aten.rnn_relu.input: 1,
}
_CHECKS = {_aten._assert_async.default, _aten._assert_async.msg}  # which raise, and give nothing
SLICE = "corewise_slice"  # where a node's number of slice is noted
ORIGIN = "corewise_origin"  # where the name of the node is noted that it is a slice of
MOST_ROWS, FEWEST_ROWS = 64, 16  # of a slice: more leave the cache, fewer leave vector units idle
MOST_ROWS_TRAINING = 128  # what is kept for the backward pass leaves the cache anyway
MOST_WEIGHT_BYTES = 512 * 1024  # every core reads all weights at every step: they must lie in its cache


def num_slices(num_rows: int, num_layers: int, num_cores: int, most_rows: int = MOST_ROWS) -> int:
    """Into how many slices a batch is cut where so many recurrent layers may run together; 1: not at all."""
    if num_cores < 2 or num_rows < 2 * FEWEST_ROWS:
        return 1
    fitting = -(-num_rows // most_rows)
    whole = -(-fitting // num_cores) * num_cores  # every core has as many of each layer
    if num_rows // whole >= FEWEST_ROWS:
        return whole
    needed = max(fitting, -(-num_cores // num_layers))
    return max(1, min(needed, num_rows // FEWEST_ROWS))


@dataclasses.dataclass(frozen=True)
class Slices:
    """A value in slices along one of its dimensions."""

    dim: int
    nodes: Tuple[Any, ...]


def borders_of(num_rows: int, num: int, num_lanes: int = 1) -> List[Tuple[int, int]]:
    """The first row of each slice and the one behind its last.

    Slices are as even as they can be in vectors of so many lanes, of two where there are enough.
    """
    fitting = [rows for rows in (2 * num_lanes, num_lanes) if num_lanes > 1 and num_rows >= rows * num]
    each = max(fitting, default=1)
    firsts = [(num_rows * i // num + each // 2) // each * each for i in range(num)]
    return list(zip(firsts, [*firsts[1:], num_rows]))


def cut(graph: Any, num_cores: int, *, is_training: bool, num_lanes: int = 1) -> int:
    """The number of slices the graph was cut into, where that is sound and likely to help; 0: it was not.

    num_lanes: of the vectors that rows fill, where a layer takes rows side by side.
    """
    nodes = list(graph.nodes)
    layers = [node for node in nodes if is_cuttable(node)]
    if not layers or any(writes(node) for node in nodes):
        return 0
    rows = {batch_rows(node) for node in layers}
    levels = _levels(nodes, layers)
    num_together = max(list(levels.values()).count(level) for level in set(levels.values()))
    if len(rows) != 1:
        return 0
    [num_rows] = rows
    most_rows = MOST_ROWS_TRAINING if is_training else MOST_ROWS
    num = num_slices(num_rows, num_together, num_cores, most_rows)
    if num < 2:
        return 0
    Cutting(graph, borders_of(num_rows, num, num_lanes), layers).run(nodes)
    return num


def is_cuttable(node: Any) -> bool:
    """Whether it is a recurrent layer whose rows know nothing of each other."""
    if node.op != "call_function" or node.target not in _STATES:
        return False
    x, _, params, _, _, dropout, train, *_ = node.args
    drops = bool(dropout) and bool(train)
    weight_bytes = sum(val(one).numel() * val(one).element_size() for one in params)
    whole = all(user.target is operator.getitem for user in node.users)
    return not drops and val(x).dim() == 3 and weight_bytes <= MOST_WEIGHT_BYTES and whole


def writes(node: Any) -> bool:
    """Whether it changes what it is given."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _batch_dim(node: Any) -> int:
    return 0 if node.args[8] else 1


def batch_rows(node: Any) -> int:
    """Of a recurrent layer's batch."""
    return int(val(node.args[0]).shape[_batch_dim(node)])


def _levels(nodes: Sequence[Any], layers: Sequence[Any]) -> Dict[Any, int]:
    """How many recurrent layers lie before each, at most: those of one level may run together."""
    depth: Dict[Any, int] = {}
    wanted = set(layers)
    for node in nodes:
        deepest = max((depth[one] for one in node.all_input_nodes), default=0)
        depth[node] = deepest + (node in wanted)
    return {node: depth[node] for node in layers}


class Cutting:
    """Rewrites a graph node by node; what was cut is put together again where someone needs it whole."""

    def __init__(self, graph: Any, borders: Sequence[Tuple[int, int]], layers: Sequence[Any]) -> None:
        self.graph, self.borders, self.layers = graph, borders, set(layers)
        self.cuts: Dict[Any, Slices] = {}
        self.wholes: Dict[Any, Any] = {}
        self.layer_results: Dict[Any, List[Tuple[int, Tuple[Any, ...]]]] = {}

    def run(self, nodes: Sequence[Any]) -> None:
        """Cuts these nodes, all that the graph has, and takes out what nobody needs any more."""
        roots = self.roots(nodes)
        for node in nodes:
            if node in self.layers:
                self._cut_layer(node)
            elif node.target is operator.getitem and node.args[0] in self.layer_results:
                dim, parts = self.layer_results[node.args[0]][node.args[1]]
                self.cuts[node] = Slices(dim, parts)
            elif not (node.op == "call_function" and self._cut_along(node)):
                self._give_wholes(node)
            if node in roots and node not in self.cuts:
                self._slice(node, roots[node])
        for node in reversed(list(self.graph.nodes)):  # torch takes recurrent layers for random: it kept them
            if node.op == "call_function" and not node.users and node.target not in _CHECKS:
                self.graph.erase_node(node)
        self.graph.lint()

    def may_cut(self, node: Any) -> bool:
        """Whether a node that could be cut is to be."""
        return True

    def roots(self, nodes: Sequence[Any]) -> Dict[Any, int]:
        """Where to begin: as far before each recurrent layer as its batch can be followed."""
        found: Dict[Any, int] = {}
        for layer in (node for node in nodes if node in self.layers):
            node, dim = layer.args[0], _batch_dim(layer)
            while True:
                source = before(node, dim)
                if source is None:
                    break
                node, dim = source
            found.setdefault(node, dim)
        return found

    def _slice(self, node: Any, dim: int) -> Slices:
        """A value's slices: views of it."""
        with self._after(node):
            made = self._views(node, dim)
        self.cuts[node] = Slices(dim, tuple(made))
        self.wholes[node] = node
        return self.cuts[node]

    def _sliced(self, node: Any, dim: int, user: Any) -> Optional[Slices]:
        """The value's slices along this dimension, None where it is cut along another."""
        known = self.cuts.get(node)
        if known is None:
            with self.graph.inserting_before(user):
                made = self._views(node, dim)
            return Slices(dim, tuple(made))
        return known if known.dim == dim else None

    def _own_views(self, slices: Slices, layer: Any) -> Slices:
        """The slices, or views of the layer's own where they are our views: layers then share no call."""
        whole = slices.nodes[0].args[0]
        views = [(_aten.slice.Tensor, (whole, slices.dim, a, b)) for a, b in self.borders]
        are_views = [(node.target, node.args) for node in slices.nodes] == views
        if not are_views or not slices.nodes[0].users:
            return slices
        with self.graph.inserting_before(layer):
            return Slices(slices.dim, tuple(self._views(whole, slices.dim)))

    def _views(self, node: Any, dim: int) -> List[Any]:
        if node.target is _aten.zeros.default and all(type(size) is int for size in node.args[0]):
            return [  # each has its own: there is nothing to wait for
                self._call(_aten.zeros.default, (self._size(node, dim, i),), i, kwargs=node.kwargs)
                for i in range(len(self.borders))
            ]
        return [
            self._call(_aten.slice.Tensor, (node, dim, a, b), part=i) for i, (a, b) in enumerate(self.borders)
        ]

    def _size(self, node: Any, dim: int, part: int) -> List[int]:
        first, last = self.borders[part]
        return [last - first if i == dim else size for i, size in enumerate(node.args[0])]

    def _after(self, node: Any) -> Any:
        if node.op == "placeholder":
            last = [one for one in self.graph.nodes if one.op == "placeholder"][-1]
            return self.graph.inserting_after(last)
        return self.graph.inserting_after(node)

    def _cut_layer(self, node: Any) -> None:
        num_states, dim = _STATES[node.target], _batch_dim(node)
        x, states, *rest = node.args
        states = list(states) if num_states == 2 else [states]
        xs = self._sliced(self._usable(x, dim, node), dim, node)
        assert xs is not None
        xs = self._own_views(xs, node)
        cut_states = [self._sliced(self._usable(one, 1, node), 1, node) for one in states]
        parts: List[Tuple[Any, ...]] = []
        with self.graph.inserting_before(node):
            for i in range(len(self.borders)):
                own = [each.nodes[i] for each in cut_states if each is not None]
                args = (xs.nodes[i], own if num_states == 2 else own[0], *rest)
                layer = self._call(node.target, args, part=i, shapes=shapes_of)
                results = range(len(val(layer)))
                parts.append(tuple(self._call(operator.getitem, (layer, one), part=i) for one in results))
        columns = list(zip(*parts))
        self.layer_results[node] = [(dim if one == 0 else 1, column) for one, column in enumerate(columns)]

    def _usable(self, node: Any, dim: int, user: Any) -> Any:
        """The node itself, or it put together where it is cut along another dimension."""
        known = self.cuts.get(node)
        return node if known is None or known.dim == dim else self._whole(node, user)

    def _cut_along(self, node: Any) -> bool:
        """True when the node was replaced by one for each slice of what it takes."""
        taken = [one for one in node.all_input_nodes if one in self.cuts]
        if not taken:
            return False
        rule = following(node, {one: self.cuts[one].dim for one in taken})
        if rule is None or not self.may_cut(node):
            return False
        made: List[Any] = []
        alike: Dict[int, Any] = {}  # what a slice of so many rows gives
        with self.graph.inserting_before(node):
            for i, (first, last) in enumerate(self.borders):
                own = {one: self.cuts[one].nodes[i] for one in taken}
                args = with_rows(node, _mapped(node.args, _replacing(own)), rule, last - first)
                call = self._call(node.target, args, i, alike.get(last - first), node.kwargs)
                alike.setdefault(last - first, _always(val(call)))
                call.meta[ORIGIN] = node.name
                made.append(call)
            if isinstance(val(node), torch.Tensor):
                self.cuts[node] = Slices(rule, tuple(made))
            else:
                self.layer_results[node] = self._taken_apart(made, rule)
        return True

    def _taken_apart(self, calls: Sequence[Any], dim: int) -> List[Tuple[int, Tuple[Any, ...]]]:
        """The several results of each slice's call."""
        return [
            (dim, tuple(self._call(operator.getitem, (call, one), part=i) for i, call in enumerate(calls)))
            for one in range(len(val(calls[0])))
        ]

    def _give_wholes(self, node: Any) -> None:
        for one in list(node.all_input_nodes):
            if one in self.cuts:
                node.replace_input_with(one, self._whole(one, node))

    def _whole(self, node: Any, user: Any) -> Any:
        if node not in self.wholes:
            with self.graph.inserting_before(user):
                self.wholes[node] = self._joined(self.cuts[node], _order_in_memory(val(node)))
        return self.wholes[node]

    def _joined(self, slices: Slices, order: List[int]) -> Any:
        """The slices as one, its elements in the order in memory that the node's had."""
        if order == sorted(order):
            return self._call(_aten.cat.default, (list(slices.nodes), slices.dim))
        parts = [
            self._call(_aten.permute.default, (one, order), part=i) for i, one in enumerate(slices.nodes)
        ]
        whole = self._call(_aten.cat.default, (parts, order.index(slices.dim)))
        return self._call(_aten.permute.default, (whole, [order.index(dim) for dim in range(len(order))]))

    def _call(
        self,
        target: Any,
        args: Tuple[Any, ...],
        part: Optional[int] = None,
        shapes: Optional[Callable[..., Any]] = None,
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        """A new node; `part` is the number of the slice it belongs to."""
        node = new_call(self.graph, target, args, shapes, kwargs)
        if part is not None:
            node.meta[SLICE] = part
        return node


def new_call(
    graph: Any,
    target: Any,
    args: Tuple[Any, ...],
    shapes: Optional[Callable[..., Any]] = None,
    kwargs: Optional[Dict[str, Any]] = None,
) -> Any:
    """A new node that knows its value; `shapes` tells it where the operator itself would take long."""
    node = graph.call_function(target, args, kwargs)
    vals = _mapped(args, val)
    with torch.no_grad():
        node.meta["val"] = shapes(target, *vals) if shapes else target(*vals, **(kwargs or {}))
    return node


def _order_in_memory(tensor: torch.Tensor) -> List[int]:
    """The dimensions, those whose elements lie farthest apart first."""
    strides = tensor.stride()
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _replacing(others: Dict[Any, Any]) -> Callable[[Any], Any]:
    return lambda node: others.get(node, node)


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments with every node changed."""
    if isinstance(tree, torch.fx.Node):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(branch, change) for branch in tree)
    return tree
