"""Simplify an exported graph: remove operators without effect, and compute what depends on constants only.

Measured side: standard library and torch only, Python 3.9. The order of the remaining operators does not change, so
writes in place stay correct.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Set

import torch

from corewise.accelerate.capture import operator_effects
from corewise.accelerate.capture.graph_nodes import is_mutating
from corewise.accelerate.capture.module_export import CaptureError

# Larger results are computed at every call: bytes of one result, and of all together.
_MAX_FOLDED_BYTES, _MAX_ALL_FOLDED_BYTES = 2**26, 2**28
# They return their first argument if its type and sizes stay the same.
_CONVERSIONS = ("aten::to", "aten::contiguous", "aten::expand", "aten::slice", "aten::view", "aten::reshape")
_ALIASES = ("aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh")
_ASSERTIONS = (
    "aten::_assert_tensor_metadata",
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::sym_constrain_range",
)


# Key in a node's metadata: the module's code switches autocast off for it.
WITHOUT_AUTOCAST_META = "corewise_without_autocast"


def inline_contexts(graph_module: Any) -> int:
    """Put the operators of grad contexts, and of contexts without autocast, into the graph; return how many contexts.

    Without gradients, and outside of autocast, such contexts have no effect.
    """
    graph = graph_module.graph
    num_inlined = 0
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        place = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}.get(name)
        if place is None or (name == "wrap_with_autocast" and node.args[2]):
            continue
        part_node, *inputs = node.args[place:]
        part = getattr(graph_module, part_node.target)
        num_inlined += 1 + inline_contexts(part)
        _copy_nodes(graph, node, part.graph, inputs, is_autocast=name == "wrap_with_autocast")
        graph.erase_node(node)
        if not part_node.users:
            graph.erase_node(part_node)
    return num_inlined


def _copy_nodes(graph: Any, node: Any, part: Any, inputs: Any, is_autocast: bool) -> None:
    """Copy the nodes of a part before the node that calls it, and let them replace its results."""
    placeholders = [each for each in part.nodes if each.op == "placeholder"]
    copies: Dict[Any, Any] = dict(zip(placeholders, inputs))
    with graph.inserting_before(node):
        results = graph.graph_copy(part, copies)
    for original, copied in copies.items():
        if is_autocast and original not in placeholders:
            copied.meta[WITHOUT_AUTOCAST_META] = True
    for user in list(node.users):
        if isinstance(results, (tuple, list)) and user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(results)


def check_operators(graph: Any) -> None:
    """Raise CaptureError if the graph has operators whose replay may differ from the module."""
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node.target is operator.getitem:
            continue
        if node.op != "call_function":
            raise CaptureError("it contains a nested graph: a loop, a branch, or a grad or autocast context")
        if not operator_effects.has_schema(node.target):
            raise CaptureError(f"{node.name} is not an operator of torch")
        if not operator_effects.has_known_effects(node.target):
            raise CaptureError(f"the side effects of the custom operator {node.target._schema.name} are unknown")
        if operator_effects.uses_generator(node.target, node.args, node.kwargs):
            raise CaptureError(f"it draws random numbers ({node.target._schema.name})")
        leaves = [node.meta.get("val"), *_list_leaves((node.args, node.kwargs))]
        if any(isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)) for leaf in leaves):
            raise CaptureError(f"a shape in it depends on the data ({node.name})")


def remove_idle_operators(graph: Any, keeps_casts: bool = False) -> int:
    """Remove operators that return their input, and assertions; return how many.

    keeps_casts: Types at run time may differ from those in the graph, so conversions stay.
    """
    num_removed = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        name = node.target._schema.name
        if name in _ASSERTIONS and not node.users:
            graph.erase_node(node)
            num_removed += 1
        elif _is_idle(node, name) and not (keeps_casts and name == "aten::to"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            num_removed += 1
    return num_removed


def _is_idle(node: Any, name: str) -> bool:
    if not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    if operator_effects.is_identity_call(node.target, node.args, node.kwargs) or name in _ALIASES:
        return True
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if name not in _CONVERSIONS or not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    is_copy = name == "aten::to" and any(argument is True for argument in _list_leaves((node.args, node.kwargs)))
    is_same = (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
    return is_same and before.device == after.device and not is_copy


class MemoryUse:
    """Which memory each value of a graph lies in, and which nodes touch and write it."""

    def __init__(self, graph: Any) -> None:
        self.memories: Dict[Any, FrozenSet[int]] = {}
        self.writers: Dict[int, List[Any]] = {}
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            own = set(_list_storages(node.meta.get("val")))
            if node.op == "call_function" and operator_effects.has_schema(node.target):
                if operator_effects.is_identity_call(node.target, node.args, node.kwargs):
                    own |= self.memories[node.args[0]]
                if operator_effects.has_content_writes(node.target):
                    for written in _list_nodes(operator_effects.find_written(node.target, node.args, node.kwargs)):
                        for memory in self.memories[written]:
                            self.writers.setdefault(memory, []).append(node)
            self.memories[node] = frozenset(own)

    def list_touched(self, node: Any) -> Set[int]:
        """List the memories that a node reads, writes or returns."""
        touched = set(self.memories[node])
        for each in node.all_input_nodes:
            touched |= self.memories[each]
        return touched

    def forget_writer(self, node: Any) -> None:
        """Forget what a node writes that is removed from the graph."""
        for memory, writers in list(self.writers.items()):
            if node in writers:
                self.writers[memory] = [each for each in writers if each is not node]
                if not self.writers[memory]:
                    del self.writers[memory]

    def is_written(self, node: Any) -> bool:
        """Return whether a node of the graph writes to the memory of this value."""
        return any(memory in self.writers for memory in self.memories[node])


def fold_constants(graph: Any, constants: Dict[Any, Any], is_usable: Callable[[Any], bool]) -> int:
    """Compute nodes that depend on constants only; add their values to `constants`, and return how many.

    Args:
        constants: The tensors of placeholders that are the same at every call.
        is_usable: Whether a placeholder's value may be computed with.
    """
    memory = MemoryUse(graph)
    usable = {node for node in constants if is_usable(node)}
    foldable = _find_foldable(graph, usable, memory)
    values: Dict[Any, Any] = {node: constants[node] for node in usable}
    num_bytes = 0
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for node in graph.nodes:
            if node in foldable:
                args, kwargs = _replace_nodes(node.args, values), _replace_nodes(node.kwargs, values)
                values[node] = node.target(*args, **kwargs)
                num_bytes += sum(_count_bytes(each) for each in _list_leaves(values[node]))
                if num_bytes > _MAX_ALL_FOLDED_BYTES:
                    return 0
    num_folded = 0
    for node in reversed(list(graph.nodes)):
        if node not in foldable:
            continue
        if not node.users:
            graph.erase_node(node)
            num_folded += 1
        elif isinstance(values[node], torch.Tensor):
            _turn_into_constant(graph, node, values[node], constants)
            num_folded += 1
    return num_folded


def _turn_into_constant(graph: Any, node: Any, value: Any, constants: Dict[Any, Any]) -> None:
    with graph.inserting_before(next(iter(graph.nodes))):
        constant = graph.placeholder(f"folded_{len(constants)}")
    constant.meta["val"] = node.meta.get("val")
    constants[constant] = value
    node.replace_all_uses_with(constant)
    graph.erase_node(node)


def _find_foldable(graph: Any, usable: Set[Any], memory: MemoryUse) -> Set[Any]:
    """Find nodes that give the same at every call: they neither read inputs nor memory that others write."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    foldable = {node for node in calls if _is_small(node)}
    while True:
        kept = {node for node in foldable if all(each in foldable or each in usable for each in node.all_input_nodes)}
        # A memory is constant if only constant nodes write to it, before all other nodes read it.
        fixed = {m for m, writers in memory.writers.items() if all(writer in kept for writer in writers)}
        for node in graph.nodes:
            if node not in kept:
                last_writes = {m: memory.places[memory.writers[m][-1]] for m in memory.list_touched(node) & fixed}
                fixed -= {m for m, place in last_writes.items() if place > memory.places[node]}
        changing = set(memory.writers) - fixed
        kept = {node for node in kept if not memory.list_touched(node) & changing}
        # Constants of the module are not written to.
        protected = {m for node in usable for m in memory.memories[node]}
        kept = {node for node in kept if not (is_mutating(node) and memory.list_touched(node) & protected)}
        if kept == foldable:
            return foldable
        foldable = kept


def _is_small(node: Any) -> bool:
    return sum(_count_bytes(each) for each in _list_leaves(node.meta.get("val"))) <= _MAX_FOLDED_BYTES


def _count_bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _list_storages(val: Any) -> Iterator[int]:
    for each in _list_leaves(val):
        if isinstance(each, torch.Tensor):
            yield each.untyped_storage()._cdata


def _list_nodes(tree: Any) -> Iterator[Any]:
    return (leaf for leaf in _list_leaves(tree) if isinstance(leaf, torch.fx.Node))


def _list_leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _list_leaves(branch)
    elif isinstance(tree, Mapping):
        yield from _list_leaves(list(tree.values()))
    else:
        yield tree


def _replace_nodes(tree: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(tree, torch.fx.Node):
        return values[tree]
    if isinstance(tree, (list, tuple)):
        replaced = [_replace_nodes(branch, values) for branch in tree]
        return replaced if isinstance(tree, list) else tuple(replaced)
    if isinstance(tree, Mapping):
        return {key: _replace_nodes(branch, values) for key, branch in tree.items()}
    return tree
