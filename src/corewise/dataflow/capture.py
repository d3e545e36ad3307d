"""A model's operators as a Program, by torch.export, or the reason why that cannot be.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch

from corewise.dataflow import batch_cuts, layer_joins, operators, packing, row_lstms, whole_cuts
from corewise.dataflow.mirror import mirrored, patching_this_thread
from corewise.dataflow.module_state import ModuleState, TooMuchToWatch
from corewise.dataflow.order import order_to_keep
from corewise.dataflow.program import Call, Pack, Program, Ref, values_in
from corewise.dataflow.quiet import quiet_export
from corewise.dataflow.recurrent import quick_shapes
from corewise.dataflow.wide_lstm import vector_lanes


class CannotCapture(Exception):
    """Why a model's operators cannot be known beforehand."""


@dataclasses.dataclass(frozen=True)
class Captured:
    """A program with the shape of what goes in and comes out."""

    program: Program
    in_spec: Any  # of (args, kwargs)
    out_spec: Any
    written: Tuple[int, ...]  # values among inputs and state that the program writes to
    fingerprint: str  # equal for programs of equal operators, shapes and types
    kinds: Tuple[str, ...]  # of calls: equal for equal operators on equal shapes
    origins: Tuple[Optional[int], ...] = ()  # of one in slices: calls of the uncut program that its are of
    cut: Optional[Callable[[], Optional[Captured]]] = None  # makes it; holds all that export gave

    @functools.cached_property
    def in_slices(self) -> Optional[Captured]:
        """The same cut along the batch, where that can be; made when first asked for."""
        return self.cut() if self.cut is not None else None


def capture(
    module: torch.nn.Module,
    args: Tuple[Any, ...],
    kwargs: Mapping[str, Any],
    num_cores: int = 1,
    packs: bool = False,
    own_kernels: bool = False,
    winograd: bool = True,
) -> Captured:
    """The operators the module runs for inputs like these, in its present mode.

    For several cores recurrent layers are cut along their batch, so that each core has slices of its own.
    What has none of these comes uncut, and where no gradients are wanted, in slices as well. own_kernels:
    whether layers may run on ours, which must be loaded; where not, small LSTMs over one input are joined.
    packs: whether weights may be packed beforehand, which then only the native executor can look at; our
    kernel's convolutions need it. winograd: whether these may run on ours, too.
    """
    try:
        before = ModuleState(module)
    except TooMuchToWatch as problem:
        raise CannotCapture(str(problem)) from problem
    try:
        exported = _export(module, args, kwargs)
    finally:
        before.restore()  # export runs the module's Python code
    trains = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
    may_join = num_cores > 1 and not own_kernels
    num_joined = layer_joins.join(exported.graph, num_cores) if may_join else 0
    num_lanes = vector_lanes() if own_kernels else 1
    num_slices = 0
    if num_cores > 1:
        num_slices = batch_cuts.cut(exported.graph, num_cores, is_training=trains, num_lanes=num_lanes)
    num_own = row_lstms.take_over(exported.graph) if own_kernels else 0
    if packs and not _Reading(exported).captured().written:
        packing.pack(exported.graph, _inputs(exported), num_cores, own_kernels and winograd)
    captured = _Reading(exported).captured()
    captured = dataclasses.replace(
        captured, program=dataclasses.replace(captured.program, num_joined=num_joined, num_own=num_own)
    )
    if not num_slices:
        may_cut = num_cores > 1 and not torch.is_grad_enabled()
        uncut = captured
        return dataclasses.replace(
            uncut, cut=(lambda: _in_slices(exported, uncut, num_cores)) if may_cut else None
        )
    slices = _noted(exported.graph, captured.program, batch_cuts.SLICE)
    program = dataclasses.replace(
        captured.program, is_cut=True, slices=slices if num_slices % num_cores == 0 else ()
    )
    return dataclasses.replace(captured, program=program)


def _noted(graph: Any, program: Program, what: str) -> Tuple[Any, ...]:
    """Of each call what its node has noted."""
    found = {node.name: node.meta.get(what) for node in graph.nodes if node.op == "call_function"}
    return tuple(found[call.name] for call in program.calls)


def _inputs(exported: Any) -> List[Any]:
    """The nodes of what the caller brings."""
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    kinds = [spec.kind.name for spec in exported.graph_signature.input_specs]
    return [node for node, kind in zip(placeholders, kinds) if kind == "USER_INPUT"]


def _in_slices(exported: Any, uncut: Captured, num_cores: int) -> Optional[Captured]:
    """The program cut along the batch from its inputs on; the exported graph is another one afterwards."""
    if uncut.written or any(call.is_random for call in uncut.program.calls):
        return None
    graph = exported.graph
    try:
        with quiet_export():
            num = whole_cuts.cut_inputs(graph, _inputs(exported), num_cores)
        if not num:
            return None
        captured = _Reading(exported).captured()
    except Exception:  # a rule that does not hold for these arguments: the uncut program is there
        return None
    slices = _noted(graph, captured.program, batch_cuts.SLICE)
    numbers = {call.name: number for number, call in enumerate(uncut.program.calls)}
    origins = tuple(
        numbers.get(noted or call.name)
        for noted, call in zip(_noted(graph, captured.program, batch_cuts.ORIGIN), captured.program.calls)
    )
    program = dataclasses.replace(captured.program, is_cut=True, num_slices=num, slices=slices)
    return dataclasses.replace(captured, program=program, origins=origins)


def apart(leaves: Sequence[Any], module: torch.nn.Module) -> List[Any]:
    """The inputs, copied where one comes twice or is the module's own: export would take both for one."""
    seen = {id(one) for one in (*module.parameters(), *module.buffers())}
    seen.update(id(one) for part in module.modules() for one in vars(part).values())
    found = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            leaf = _copied(leaf) if id(leaf) in seen else leaf
            seen.add(id(leaf))
        found.append(leaf)
    return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """An equal tensor in memory of its own, its elements as far apart."""
    copy = tensor.detach().clone()
    if copy.stride() != tensor.stride():
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        copy = torch.empty(0, dtype=tensor.dtype).set_(memory, *place)
    return copy.requires_grad_(tensor.requires_grad)


def _export(module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    met: List[int] = []
    stand_in = mirrored(module)
    if stand_in is not None:  # other threads may call the module meanwhile
        own = {id(part) for part in module.modules()}
        try:
            exported = _exported(stand_in, args, kwargs, own, met)
            if not met and not _holds_tensors_of(module, exported.constants.values()):
                return exported
        except CannotCapture:
            if not met:
                raise
    return _exported(module, args, kwargs)  # its code reaches its parts by ways of its own


def _exported(
    module: torch.nn.Module,
    args: Tuple[Any, ...],
    kwargs: Mapping[str, Any],
    watched: Collection[int] = (),
    met: Optional[List[int]] = None,
) -> Any:
    """What export gives; adds to `met` the ids of modules among `watched` that the module's code uses."""
    eager = torch.autocast("cpu", enabled=False)
    own_thread = patching_this_thread(watched, [] if met is None else met)
    try:
        with quiet_export(), own_thread, eager, quick_shapes():
            return torch.export.export(module, args, dict(kwargs), strict=False)
    except Exception as problem:
        raise CannotCapture(f"torch.export cannot take it: {_first_line(problem)}") from problem


def _holds_tensors_of(module: torch.nn.Module, constants: Iterable[Any]) -> bool:
    own = {id(one) for one in (*module.parameters(), *module.buffers())}
    return any(id(one) in own for one in constants)


def _first_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


class _Reading:
    """Turns an exported graph into a Program."""

    def __init__(self, exported: Any) -> None:
        self.exported = exported
        self.numbers: Dict[Any, int] = {}  # value number of a node
        self.spread: Dict[Any, List[int]] = {}  # value numbers of a node that returns several
        self.num_values = 0
        self.calls: List[Call] = []
        self.memories: Dict[int, FrozenSet[int]] = {}  # value number to the storages it lies in
        self.touched: List[FrozenSet[int]] = []
        self.written: List[FrozenSet[int]] = []
        self.kinds: List[str] = []

    def captured(self) -> Captured:
        inputs, state, constants = self._placeholders()
        outputs: Tuple[Any, ...] = ()
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = self._outputs(node)
            elif node.op != "placeholder":
                raise CannotCapture(
                    "it holds a graph within the graph: a loop, a branch, or a grad or autocast context"
                )
        if not self.calls:
            raise CannotCapture("it runs no operator")
        order = order_to_keep(self.touched, self.written, [call.is_random for call in self.calls])
        program = Program(
            calls=tuple(self.calls),
            num_values=self.num_values,
            inputs=inputs,
            state=state,
            constants=constants,
            outputs=outputs,
            order=order,
            packs=self._packs(),
        )
        changed = frozenset().union(*self.written) if self.written else frozenset()
        self._refuse_written_constants(constants)
        brought = [*inputs, *state]
        return Captured(
            program=program,
            in_spec=self.exported.call_spec.in_spec,
            out_spec=self.exported.call_spec.out_spec,
            written=tuple(v for v in brought if self.memories.get(v, frozenset()) & changed),
            fingerprint=_fingerprint(self.exported.graph),
            kinds=tuple(self.kinds),
        )

    def _packs(self) -> Tuple[Pack, ...]:
        noted = [node.meta[packing.PACKED] for node in self.numbers if packing.PACKED in node.meta]
        layers = {layer.key(): layer for layer in noted}
        return tuple(layer.pack(self.numbers) for layer in layers.values())

    def _refuse_written_constants(self, constants: Mapping[int, Any]) -> None:
        for call, written in zip(self.calls, self.written):
            if operators.changes_contents(call.target) and any(
                self.memories[one] & written for one in constants
            ):
                raise CannotCapture(
                    "it writes to a tensor that is neither a parameter, a buffer nor an input"
                )

    def _placeholders(self) -> Tuple[Tuple[int, ...], Dict[int, str], Dict[int, Any]]:
        nodes = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        inputs, state, constants = [], {}, {}
        for node in nodes:
            self.numbers[node] = self._new_value(node.meta.get("val"))
        for node, spec in zip(nodes, self.exported.graph_signature.input_specs):  # packed weights come behind
            value = self.numbers[node]
            kind = spec.kind.name
            if kind == "USER_INPUT":
                inputs.append(value)
            elif kind in ("PARAMETER", "BUFFER"):
                state[value] = spec.target
            elif kind == "CONSTANT_TENSOR":
                constants[value] = self.exported.constants[spec.target]
            else:
                raise CannotCapture(f"it takes a {kind.lower().replace('_', ' ')} ({spec.target})")
        return tuple(inputs), state, constants

    def _new_value(self, val: Any) -> int:
        number, self.num_values = self.num_values, self.num_values + 1
        self.memories[number] = frozenset(_storages(val))
        return number

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem and node.args[0] in self.spread:
            self.numbers[node] = self.spread[node.args[0]][node.args[1]]
            return
        if not operators.is_known(node.target):
            raise CannotCapture(f"{node.name} is not an operator of torch ({_name(node.target)})")
        if not operators.is_torchs_own(node.target):
            raise CannotCapture(
                f"nothing tells what the custom operator {node.target._schema.name} does besides"
            )
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CannotCapture(f"{node.name} depends on the data")
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        val = node.meta.get("val")
        spreads = isinstance(val, (tuple, list))
        results = tuple(self._new_value(one) for one in (val if spreads else (val,)))
        if spreads:
            self.spread[node] = list(results)
        else:
            self.numbers[node] = results[0]
        if operators.passes_on(node.target, node.args, node.kwargs):
            self.memories[results[0]] |= self.memories[args[0].value]
        is_random = operators.draws(node.target, node.args, node.kwargs)
        call = Call(node.name, node.target, args, kwargs, results, spreads, is_random)
        self._note_memory(call, operators.written(node.target, args, kwargs))
        self.calls.append(call)
        self.kinds.append(
            f"{node.target} {_described(node.args)} {_described(node.kwargs)} {_described(val)}"
        )

    def _note_memory(self, call: Call, written: Sequence[Any]) -> None:
        touched: Set[int] = set()
        for leaf in (*values_in((call.args, tuple(call.kwargs.values()))), *call.results):
            touched |= self.memories[leaf]
        self.touched.append(frozenset(touched))
        self.written.append(frozenset(m for leaf in values_in(tuple(written)) for m in self.memories[leaf]))

    def _argument(self, tree: Any) -> Any:
        if isinstance(tree, torch.fx.Node):
            if tree not in self.numbers:
                raise CannotCapture(f"{tree.name} is used as a whole, not by its parts")
            return Ref(self.numbers[tree])
        if isinstance(tree, (list, tuple)):
            made = [self._argument(branch) for branch in tree]
            return made if isinstance(tree, list) else tuple(made)
        if isinstance(tree, Mapping):
            return {key: self._argument(branch) for key, branch in tree.items()}
        if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CannotCapture("a shape in it depends on the data")
        return tree

    def _outputs(self, node: Any) -> Tuple[Any, ...]:
        specs = self.exported.graph_signature.output_specs
        found = []
        for one, spec in zip(node.args[0], specs):
            if spec.kind.name != "USER_OUTPUT":
                raise CannotCapture(f"it gives a {spec.kind.name.lower().replace('_', ' ')} ({spec.target})")
            found.append(self._argument(one))
        return tuple(found)


def _storages(val: Any) -> Iterator[int]:
    if isinstance(val, torch.Tensor):
        yield val.untyped_storage()._cdata
    elif isinstance(val, (tuple, list)):
        for one in val:
            yield from _storages(one)


def _described(tree: Any) -> str:
    """Shapes, types and constants, without the names of values."""
    if isinstance(tree, torch.fx.Node):
        return _described(tree.meta.get("val"))
    if isinstance(tree, torch.Tensor):
        return f"{tuple(tree.shape)} {tree.dtype} {tree.stride()}"
    if isinstance(tree, Mapping):
        return str({key: _described(branch) for key, branch in tree.items()})
    if isinstance(tree, (list, tuple)):
        return f"[{', '.join(map(_described, tree))}]"
    return repr(tree)


def _name(target: Any) -> str:
    return getattr(target, "__name__", None) or str(target)


def _fingerprint(graph: Any) -> str:
    lines = []
    for node in graph.nodes:
        val = node.meta.get("val")
        kinds = [
            f"{tuple(one.shape)}{one.dtype}{tuple(one.stride())}"
            for one in (val if isinstance(val, (tuple, list)) else (val,))
            if isinstance(one, torch.Tensor)
        ]
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {kinds}")
    return "\n".join(lines)
