"""Cut the recurrent layers of an exported graph, and operators around them, along the batch.

Measured side: standard library and torch only, Python 3.9. A recurrent layer is a long sequence of small
steps. Threads that share it synchronize at every step. Slices of its batch are independent and fit a core's
cache. The results are the same rows of numbers.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.graph_nodes import get_value, is_mutating
from corewise.accelerate.capture.recurrent_shapes import infer_shapes
from corewise.accelerate.malleable.capture.batch_rules import find_cut_dim, find_source, resize_args

_aten = torch.ops.aten
# Recurrent operators, with their number of states.
_NUM_STATES = {_aten.lstm.input: 2, _aten.gru.input: 1, _aten.rnn_tanh.input: 1, _aten.rnn_relu.input: 1}
# Operators that may raise and return nothing: they stay although nothing uses them.
_ASSERTIONS = {_aten._assert_async.default, _aten._assert_async.msg}
# Key in a node's metadata: the number of the slice that the node belongs to.
SLICE_META = "corewise_slice"
# Key in a node's metadata: the name of the uncut node that the node is a slice of.
ORIGIN_META = "corewise_origin"
# Rows of a slice. More do not fit the cache of a core; fewer leave vector units idle.
MAX_SLICE_ROWS, MIN_SLICE_ROWS = 64, 16
# Rows of a slice in training. Saved activations do not fit the cache anyway.
MAX_SLICE_ROWS_TRAINING = 128
# Largest weights that are cut. Every core reads all weights at every step, so they must fit its cache.
MAX_WEIGHT_BYTES = 512 * 1024


def count_slices(num_rows: int, num_layers: int, num_cores: int, max_rows: int = MAX_SLICE_ROWS) -> int:
    """Compute into how many slices to cut a batch; 1 means that it is not cut.

    Args:
        num_layers: recurrent layers that may run at the same time.
    """
    if num_cores < 2 or num_rows < 2 * MIN_SLICE_ROWS:
        return 1
    fitting = -(-num_rows // max_rows)
    # Every core gets the same number of slices of each layer.
    whole = -(-fitting // num_cores) * num_cores
    if num_rows // whole >= MIN_SLICE_ROWS:
        return whole
    needed = max(fitting, -(-num_cores // num_layers))
    return max(1, min(needed, num_rows // MIN_SLICE_ROWS))


@dataclasses.dataclass(frozen=True)
class Slices:
    """A value in slices along one of its dimensions."""

    dim: int
    nodes: Tuple[Any, ...]


def compute_slice_bounds(num_rows: int, num: int, num_lanes: int = 1) -> List[Tuple[int, int]]:
    """Compute the first row of each slice and the row after its last.

    Slices are as even as possible in units of `num_lanes` rows, or twice as many where there are enough rows.
    """
    fitting = [rows for rows in (2 * num_lanes, num_lanes) if num_lanes > 1 and num_rows >= rows * num]
    each = max(fitting, default=1)
    firsts = [(num_rows * i // num + each // 2) // each * each for i in range(num)]
    return list(zip(firsts, [*firsts[1:], num_rows]))


def cut_batch(graph: Any, num_cores: int, *, is_training: bool, num_lanes: int = 1) -> int:
    """Cut the graph along the batch where that is sound and likely faster; return the number of slices or 0.

    Args:
        num_lanes: rows that fill one vector, for kernels that process rows side by side.
    """
    nodes = list(graph.nodes)
    layers = [node for node in nodes if is_cuttable(node)]
    if not layers or any(is_mutating(node) for node in nodes):
        return 0
    rows = {count_batch_rows(node) for node in layers}
    levels = _compute_levels(nodes, layers)
    num_together = max(list(levels.values()).count(level) for level in set(levels.values()))
    if len(rows) != 1:
        return 0
    [num_rows] = rows
    most_rows = MAX_SLICE_ROWS_TRAINING if is_training else MAX_SLICE_ROWS
    num = count_slices(num_rows, num_together, num_cores, most_rows)
    if num < 2:
        return 0
    BatchCutter(graph, compute_slice_bounds(num_rows, num, num_lanes), layers).run(nodes)
    return num


def is_cuttable(node: Any) -> bool:
    """Return whether the node is a recurrent layer whose rows are independent."""
    if node.op != "call_function" or node.target not in _NUM_STATES:
        return False
    x, _, params, _, _, dropout, train, *_ = node.args
    drops = bool(dropout) and bool(train)
    weight_bytes = sum(get_value(one).numel() * get_value(one).element_size() for one in params)
    whole = all(user.target is operator.getitem for user in node.users)
    return not drops and get_value(x).dim() == 3 and weight_bytes <= MAX_WEIGHT_BYTES and whole


def _get_batch_dim(node: Any) -> int:
    return 0 if node.args[8] else 1


def count_batch_rows(node: Any) -> int:
    """Return the batch size of a recurrent layer."""
    return int(get_value(node.args[0]).shape[_get_batch_dim(node)])


def _compute_levels(nodes: Sequence[Any], layers: Sequence[Any]) -> Dict[Any, int]:
    """Count the recurrent layers on the longest path to each; layers of one level may run together."""
    depth: Dict[Any, int] = {}
    wanted = set(layers)
    for node in nodes:
        deepest = max((depth[one] for one in node.all_input_nodes), default=0)
        depth[node] = deepest + (node in wanted)
    return {node: depth[node] for node in layers}


class BatchCutter:
    """Rewrites a graph node by node; slices are concatenated again where a node needs the whole value."""

    def __init__(self, graph: Any, borders: Sequence[Tuple[int, int]], layers: Sequence[Any]) -> None:
        self.graph, self.borders, self.layers = graph, borders, set(layers)
        self.cuts: Dict[Any, Slices] = {}
        self.wholes: Dict[Any, Any] = {}
        self.layer_results: Dict[Any, List[Tuple[int, Tuple[Any, ...]]]] = {}

    def run(self, nodes: Sequence[Any]) -> None:
        """Cut these nodes, which are all nodes of the graph, and remove those that became unused."""
        roots = self.find_roots(nodes)
        for node in nodes:
            if node in self.layers:
                self._cut_layer(node)
            elif node.target is operator.getitem and node.args[0] in self.layer_results:
                dim, parts = self.layer_results[node.args[0]][node.args[1]]
                self.cuts[node] = Slices(dim, parts)
            elif not (node.op == "call_function" and self._cut_along(node)):
                self._join_inputs(node)
            if node in roots and node not in self.cuts:
                self._cut_value(node, roots[node])
        # torch marks recurrent layers as random, so its dead-code elimination would keep them.
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users and node.target not in _ASSERTIONS:
                self.graph.erase_node(node)
        self.graph.lint()

    def should_cut(self, node: Any) -> bool:
        """Return whether to cut a node that could be cut."""
        return True

    def find_roots(self, nodes: Sequence[Any]) -> Dict[Any, int]:
        """Find where to start: follow the batch of each recurrent layer back as far as possible."""
        roots: Dict[Any, int] = {}
        for layer in (node for node in nodes if node in self.layers):
            node, dim = layer.args[0], _get_batch_dim(layer)
            while True:
                source = find_source(node, dim)
                if source is None:
                    break
                node, dim = source
            roots.setdefault(node, dim)
        return roots

    def _cut_value(self, node: Any, dim: int) -> Slices:
        """Create views of a value, one for each slice."""
        with self._place_after(node):
            views = self._create_views(node, dim)
        self.cuts[node] = Slices(dim, tuple(views))
        self.wholes[node] = node
        return self.cuts[node]

    def _get_slices(self, node: Any, dim: int, user: Any) -> Optional[Slices]:
        """Return the value's slices along this dimension, or None where it is cut along another one."""
        slices = self.cuts.get(node)
        if slices is None:
            with self.graph.inserting_before(user):
                views = self._create_views(node, dim)
            return Slices(dim, tuple(views))
        return slices if slices.dim == dim else None

    def _separate_views(self, slices: Slices, layer: Any) -> Slices:
        """Give the layer separate views where slices are our views, so that layers share no call."""
        whole = slices.nodes[0].args[0]
        views = [(_aten.slice.Tensor, (whole, slices.dim, a, b)) for a, b in self.borders]
        are_views = [(node.target, node.args) for node in slices.nodes] == views
        if not are_views or not slices.nodes[0].users:
            return slices
        with self.graph.inserting_before(layer):
            return Slices(slices.dim, tuple(self._create_views(whole, slices.dim)))

    def _create_views(self, node: Any, dim: int) -> List[Any]:
        if node.target is _aten.zeros.default and all(type(size) is int for size in node.args[0]):
            # Every slice creates its zeros, so that it waits for nothing.
            return [
                self._add_call(_aten.zeros.default, (self._compute_size(node, dim, i),), i, kwargs=node.kwargs)
                for i in range(len(self.borders))
            ]
        return [self._add_call(_aten.slice.Tensor, (node, dim, a, b), part=i) for i, (a, b) in enumerate(self.borders)]

    def _compute_size(self, node: Any, dim: int, part: int) -> List[int]:
        first, last = self.borders[part]
        return [last - first if i == dim else size for i, size in enumerate(node.args[0])]

    def _place_after(self, node: Any) -> Any:
        if node.op == "placeholder":
            last = [one for one in self.graph.nodes if one.op == "placeholder"][-1]
            return self.graph.inserting_after(last)
        return self.graph.inserting_after(node)

    def _cut_layer(self, node: Any) -> None:
        num_states, dim = _NUM_STATES[node.target], _get_batch_dim(node)
        x, states, *rest = node.args
        states = list(states) if num_states == 2 else [states]
        xs = self._get_slices(self._prepare_operand(x, dim, node), dim, node)
        assert xs is not None
        xs = self._separate_views(xs, node)
        cut_states = [self._get_slices(self._prepare_operand(one, 1, node), 1, node) for one in states]
        parts: List[Tuple[Any, ...]] = []
        with self.graph.inserting_before(node):
            for i in range(len(self.borders)):
                own_states = [each.nodes[i] for each in cut_states if each is not None]
                args = (xs.nodes[i], own_states if num_states == 2 else own_states[0], *rest)
                layer = self._add_call(node.target, args, part=i, shapes=infer_shapes)
                results = range(len(get_value(layer)))
                parts.append(tuple(self._add_call(operator.getitem, (layer, one), part=i) for one in results))
        columns = list(zip(*parts))
        self.layer_results[node] = [(dim if one == 0 else 1, column) for one, column in enumerate(columns)]

    def _prepare_operand(self, node: Any, dim: int, user: Any) -> Any:
        """Return the node itself, or the whole value where it is cut along another dimension."""
        slices = self.cuts.get(node)
        return node if slices is None or slices.dim == dim else self._build_whole(node, user)

    def _cut_along(self, node: Any) -> bool:
        """Replace the node by one for each slice of its inputs; return whether that was possible."""
        cut_inputs = [one for one in node.all_input_nodes if one in self.cuts]
        if not cut_inputs:
            return False
        rule = find_cut_dim(node, {one: self.cuts[one].dim for one in cut_inputs})
        if rule is None or not self.should_cut(node):
            return False
        calls: List[Any] = []
        # Result values by number of rows. Slices of equal size share them.
        values_by_size: Dict[int, Any] = {}
        with self.graph.inserting_before(node):
            for i, (first, last) in enumerate(self.borders):
                slices = {one: self.cuts[one].nodes[i] for one in cut_inputs}
                args = resize_args(node, _map_nodes(node.args, _build_replacement(slices)), rule, last - first)
                call = self._add_call(node.target, args, i, values_by_size.get(last - first), node.kwargs)
                values_by_size.setdefault(last - first, _build_constant(get_value(call)))
                call.meta[ORIGIN_META] = node.name
                calls.append(call)
            if isinstance(get_value(node), torch.Tensor):
                self.cuts[node] = Slices(rule, tuple(calls))
            else:
                self.layer_results[node] = self._unpack_results(calls, rule)
        return True

    def _unpack_results(self, calls: Sequence[Any], dim: int) -> List[Tuple[int, Tuple[Any, ...]]]:
        """Return the results of each slice's call, which are several."""
        return [
            (dim, tuple(self._add_call(operator.getitem, (call, one), part=i) for i, call in enumerate(calls)))
            for one in range(len(get_value(calls[0])))
        ]

    def _join_inputs(self, node: Any) -> None:
        for one in list(node.all_input_nodes):
            if one in self.cuts:
                node.replace_input_with(one, self._build_whole(one, node))

    def _build_whole(self, node: Any, user: Any) -> Any:
        if node not in self.wholes:
            with self.graph.inserting_before(user):
                self.wholes[node] = self._join_slices(self.cuts[node], _sort_dims_by_stride(get_value(node)))
        return self.wholes[node]

    def _join_slices(self, slices: Slices, order: List[int]) -> Any:
        """Concatenate slices; the result has the memory order of the uncut value."""
        if order == sorted(order):
            return self._add_call(_aten.cat.default, (list(slices.nodes), slices.dim))
        parts = [self._add_call(_aten.permute.default, (one, order), part=i) for i, one in enumerate(slices.nodes)]
        whole = self._add_call(_aten.cat.default, (parts, order.index(slices.dim)))
        return self._add_call(_aten.permute.default, (whole, [order.index(dim) for dim in range(len(order))]))

    def _add_call(
        self,
        target: Any,
        args: Tuple[Any, ...],
        part: Optional[int] = None,
        shapes: Optional[Callable[..., Any]] = None,
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        """Add a node; `part` is the number of the slice it belongs to."""
        node = add_call(self.graph, target, args, shapes, kwargs)
        if part is not None:
            node.meta[SLICE_META] = part
        return node


def add_call(
    graph: Any,
    target: Any,
    args: Tuple[Any, ...],
    shapes: Optional[Callable[..., Any]] = None,
    kwargs: Optional[Dict[str, Any]] = None,
) -> Any:
    """Add a node and its value; `shapes` computes the value where running the operator would be slow."""
    node = graph.call_function(target, args, kwargs)
    vals = _map_nodes(args, get_value)
    with torch.no_grad():
        node.meta["val"] = shapes(target, *vals) if shapes else target(*vals, **(kwargs or {}))
    return node


def _sort_dims_by_stride(tensor: torch.Tensor) -> List[int]:
    """Sort the dimensions by stride, the largest first."""
    strides = tensor.stride()
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _build_constant(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _build_replacement(others: Dict[Any, Any]) -> Callable[[Any], Any]:
    return lambda node: others.get(node, node)


def _map_nodes(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every node of nested arguments."""
    if isinstance(tree, torch.fx.Node):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map_nodes(branch, change) for branch in tree)
    return tree
