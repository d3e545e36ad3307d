"""Capture a model's operators as a Program with torch.export.

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

from corewise.accelerate.fast_kernels.wide_lstm import count_vector_lanes
from corewise.accelerate.malleable.capture import (
    batch_cuts,
    layer_joining,
    lstm_kernel_rewrite,
    operator_effects,
    weight_packing,
    whole_batch_cuts,
)
from corewise.accelerate.malleable.capture.call_order import find_required_order
from corewise.accelerate.malleable.capture.export_silence import export_quietly
from corewise.accelerate.malleable.capture.export_stand_in import build_stand_in, patch_this_thread
from corewise.accelerate.malleable.capture.module_state import ModuleState, TooManyAttributesError
from corewise.accelerate.malleable.capture.program import Call, Pack, Program, Ref, list_values
from corewise.accelerate.malleable.capture.recurrent_shapes import infer_shapes_quickly
from corewise.accelerate.malleable.result_objects import UNKNOWN_RESULT, expand_results_of


class CaptureError(Exception):
    """Raised with the reason if a model's operators cannot be captured."""


@dataclasses.dataclass(frozen=True)
class CapturedProgram:
    """A program with the structure of its inputs and outputs."""

    program: Program
    # The tree structure of (args, kwargs).
    in_spec: Any
    out_spec: Any
    # Values among inputs and state that the program writes to.
    written_values: Tuple[int, ...]
    # Equal for programs of equal operators, shapes and types.
    fingerprint: str
    # One for each call. Equal for equal operators on equal shapes.
    call_signatures: Tuple[str, ...]
    # Of a program in slices: for each call the call of the uncut program that it is a slice of.
    origins: Tuple[Optional[int], ...] = ()
    # Builds the program in slices. Holds the exported graph.
    cut: Optional[Callable[[], Optional[CapturedProgram]]] = None

    @functools.cached_property
    def in_slices(self) -> Optional[CapturedProgram]:
        """The program cut along the batch, or None; built on first access."""
        return self.cut() if self.cut is not None else None


def capture(
    module: torch.nn.Module,
    args: Tuple[Any, ...],
    kwargs: Mapping[str, Any],
    num_cores: int = 1,
    packs: bool = False,
    own_kernels: bool = False,
    winograd: bool = True,
) -> CapturedProgram:
    """Capture the operators that the module runs for inputs like these, in its current mode.

    For several cores, recurrent layers are cut along their batch. A program without such layers stays uncut;
    without gradients it is also offered in slices.

    Args:
        packs: weights may be packed beforehand. Only the native executor checks them; Winograd needs this.
        own_kernels: layers may run on our kernels, which must be loaded. Else small LSTMs are joined.
        winograd: convolutions may run on our kernel.

    Raises:
        CaptureError: with the reason.
    """
    try:
        before = ModuleState(module)
    except TooManyAttributesError as problem:
        raise CaptureError(str(problem)) from problem
    try:
        exported = _export_module(module, args, kwargs)
    finally:
        # Export runs the module's Python code, which may change its attributes.
        before.restore()
    is_training = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
    can_join = num_cores > 1 and not own_kernels
    num_joined = layer_joining.join_layers(exported.graph, num_cores) if can_join else 0
    num_lanes = count_vector_lanes() if own_kernels else 1
    num_slices = 0
    if num_cores > 1:
        num_slices = batch_cuts.cut_batch(exported.graph, num_cores, is_training=is_training, num_lanes=num_lanes)
    num_own = lstm_kernel_rewrite.replace_lstms(exported.graph) if own_kernels else 0
    if packs and not _GraphReader(exported).read().written_values:
        weight_packing.pack_layers(exported.graph, _find_input_nodes(exported), num_cores, own_kernels and winograd)
    captured = _GraphReader(exported).read()
    program = dataclasses.replace(captured.program, num_joined_lstms=num_joined, num_own_lstms=num_own)
    captured = dataclasses.replace(captured, program=program)
    if not num_slices:
        can_cut = num_cores > 1 and not torch.is_grad_enabled()
        uncut = captured
        return dataclasses.replace(
            uncut, cut=(lambda: _cut_along_batch(exported, uncut, num_cores)) if can_cut else None
        )
    slices = _collect_notes(exported.graph, captured.program, batch_cuts.SLICE_META)
    program = dataclasses.replace(captured.program, is_cut=True, slices=slices if num_slices % num_cores == 0 else ())
    return dataclasses.replace(captured, program=program)


def _collect_notes(graph: Any, program: Program, key: str) -> Tuple[Any, ...]:
    """Collect for each call an entry of its node's metadata."""
    notes = {node.name: node.meta.get(key) for node in graph.nodes if node.op == "call_function"}
    return tuple(notes[call.name] for call in program.calls)


def _find_input_nodes(exported: Any) -> List[Any]:
    """Find the nodes of the caller's inputs."""
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    categories = [spec.kind.name for spec in exported.graph_signature.input_specs]
    return [node for node, category in zip(placeholders, categories) if category == "USER_INPUT"]


def _cut_along_batch(exported: Any, uncut: CapturedProgram, num_cores: int) -> Optional[CapturedProgram]:
    """Cut the program along the batch from its inputs on. Changes the exported graph."""
    if uncut.written_values or any(call.is_random for call in uncut.program.calls):
        return None
    graph = exported.graph
    try:
        with export_quietly():
            num = whole_batch_cuts.cut_inputs(graph, _find_input_nodes(exported), num_cores)
        if not num:
            return None
        captured = _GraphReader(exported).read()
    # A rule does not hold for these arguments. The uncut program remains.
    except Exception:
        return None
    slices = _collect_notes(graph, captured.program, batch_cuts.SLICE_META)
    numbers = {call.name: number for number, call in enumerate(uncut.program.calls)}
    origins = tuple(
        numbers.get(noted or call.name)
        for noted, call in zip(_collect_notes(graph, captured.program, batch_cuts.ORIGIN_META), captured.program.calls)
    )
    program = dataclasses.replace(captured.program, is_cut=True, num_slices=num, slices=slices)
    return dataclasses.replace(captured, program=program, origins=origins)


def separate_inputs(leaves: Sequence[Any], module: torch.nn.Module) -> List[Any]:
    """Copy inputs that occur twice or belong to the module: export would treat both as one."""
    used_ids = {id(one) for one in (*module.parameters(), *module.buffers())}
    used_ids.update(id(one) for part in module.modules() for one in vars(part).values())
    separated = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            leaf = _copy_tensor(leaf) if id(leaf) in used_ids else leaf
            used_ids.add(id(leaf))
        separated.append(leaf)
    return separated


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides."""
    copy = tensor.detach().clone()
    if copy.stride() != tensor.stride():
        view_args = (tensor.storage_offset(), tensor.shape, tensor.stride())
        memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        copy = torch.empty(0, dtype=tensor.dtype).set_(memory, *view_args)
    return copy.requires_grad_(tensor.requires_grad)


def _export_module(module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    used_modules: List[int] = []
    stand_in = build_stand_in(module)
    # Other threads may call the module during the export.
    if stand_in is not None:
        module_ids = {id(part) for part in module.modules()}
        try:
            exported = _run_export(stand_in, args, kwargs, module_ids, used_modules)
            if not used_modules and not _has_tensors_of(module, exported.constants.values()):
                return exported
        except CaptureError:
            if not used_modules:
                raise
    # The module's code reaches its submodules through references that the stand-in lacks.
    return _run_export(module, args, kwargs)


def _run_export(
    module: torch.nn.Module,
    args: Tuple[Any, ...],
    kwargs: Mapping[str, Any],
    watched: Collection[int] = (),
    used_modules: Optional[List[int]] = None,
) -> Any:
    """Run torch.export; add the ids of `watched` modules that the module's code calls to `used_modules`."""
    eager = torch.autocast("cpu", enabled=False)
    own_thread = patch_this_thread(watched, [] if used_modules is None else used_modules)
    try:
        with export_quietly(), own_thread, eager, infer_shapes_quickly():
            try:
                return torch.export.export(module, args, dict(kwargs), strict=False)
            except RuntimeError as problem:
                if UNKNOWN_RESULT not in str(problem):
                    raise
            with expand_results_of(module):
                return torch.export.export(module, args, dict(kwargs), strict=False)
    except Exception as problem:
        raise CaptureError(f"torch.export fails: {_format_first_line(problem)}") from problem


def _has_tensors_of(module: torch.nn.Module, constants: Iterable[Any]) -> bool:
    tensor_ids = {id(one) for one in (*module.parameters(), *module.buffers())}
    return any(id(one) in tensor_ids for one in constants)


def _format_first_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


class _GraphReader:
    """Converts an exported graph to a Program."""

    def __init__(self, exported: Any) -> None:
        self.exported = exported
        # Value number of each node.
        self.numbers: Dict[Any, int] = {}
        # Value numbers of nodes that return several values.
        self.spread: Dict[Any, List[int]] = {}
        self.num_values = 0
        self.calls: List[Call] = []
        # Storages of each value.
        self.memories: Dict[int, FrozenSet[int]] = {}
        self.touched: List[FrozenSet[int]] = []
        self.written: List[FrozenSet[int]] = []
        self.call_signatures: List[str] = []

    def read(self) -> CapturedProgram:
        inputs, state, constants = self._read_placeholders()
        outputs: Tuple[Any, ...] = ()
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                self._read_call(node)
            elif node.op == "output":
                outputs = self._read_outputs(node)
            elif node.op != "placeholder":
                raise CaptureError("it contains a nested graph: a loop, a branch, or a grad or autocast context")
        if not self.calls:
            raise CaptureError("it runs no operator")
        order = find_required_order(self.touched, self.written, [call.is_random for call in self.calls])
        program = Program(
            calls=tuple(self.calls),
            num_values=self.num_values,
            inputs=inputs,
            state=state,
            constants=constants,
            outputs=outputs,
            order=order,
            packs=self._collect_packs(),
        )
        changed = frozenset().union(*self.written) if self.written else frozenset()
        self._refuse_written_constants(constants)
        external = [*inputs, *state]
        return CapturedProgram(
            program=program,
            in_spec=self.exported.call_spec.in_spec,
            out_spec=self.exported.call_spec.out_spec,
            written_values=tuple(v for v in external if self.memories.get(v, frozenset()) & changed),
            fingerprint=_compute_fingerprint(self.exported.graph),
            call_signatures=tuple(self.call_signatures),
        )

    def _collect_packs(self) -> Tuple[Pack, ...]:
        noted_layers = [
            node.meta[weight_packing.PACKED_META] for node in self.numbers if weight_packing.PACKED_META in node.meta
        ]
        layers = {layer.build_key(): layer for layer in noted_layers}
        return tuple(layer.pack(self.numbers) for layer in layers.values())

    def _refuse_written_constants(self, constants: Mapping[int, Any]) -> None:
        for call, written in zip(self.calls, self.written):
            if operator_effects.has_content_writes(call.target) and any(
                self.memories[one] & written for one in constants
            ):
                raise CaptureError("it writes to a tensor that is neither a parameter, a buffer nor an input")

    def _read_placeholders(self) -> Tuple[Tuple[int, ...], Dict[int, str], Dict[int, Any]]:
        nodes = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        inputs, state, constants = [], {}, {}
        for node in nodes:
            self.numbers[node] = self._add_value(node.meta.get("val"))
        # Placeholders of packed weights follow those of the signature.
        for node, spec in zip(nodes, self.exported.graph_signature.input_specs):
            value = self.numbers[node]
            category = spec.kind.name
            if category == "USER_INPUT":
                inputs.append(value)
            elif category in ("PARAMETER", "BUFFER"):
                state[value] = spec.target
            elif category == "CONSTANT_TENSOR":
                constants[value] = self.exported.constants[spec.target]
            else:
                raise CaptureError(f"it takes a {category.lower().replace('_', ' ')} ({spec.target})")
        return tuple(inputs), state, constants

    def _add_value(self, val: Any) -> int:
        number, self.num_values = self.num_values, self.num_values + 1
        self.memories[number] = frozenset(_list_storages(val))
        return number

    def _read_call(self, node: Any) -> None:
        if node.target is operator.getitem and node.args[0] in self.spread:
            self.numbers[node] = self.spread[node.args[0]][node.args[1]]
            return
        if not operator_effects.has_schema(node.target):
            raise CaptureError(f"{node.name} is not an operator of torch ({_get_target_name(node.target)})")
        if not operator_effects.has_known_effects(node.target):
            raise CaptureError(f"the side effects of the custom operator {node.target._schema.name} are unknown")
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(f"{node.name} depends on the data")
        args, kwargs = self._convert_argument(node.args), self._convert_argument(node.kwargs)
        val = node.meta.get("val")
        has_several_results = isinstance(val, (tuple, list))
        results = tuple(self._add_value(one) for one in (val if has_several_results else (val,)))
        if has_several_results:
            self.spread[node] = list(results)
        else:
            self.numbers[node] = results[0]
        if operator_effects.is_identity_call(node.target, node.args, node.kwargs):
            self.memories[results[0]] |= self.memories[args[0].value]
        is_random = operator_effects.uses_generator(node.target, node.args, node.kwargs)
        call = Call(node.name, node.target, args, kwargs, results, has_several_results, is_random)
        self._note_memory(call, operator_effects.find_written(node.target, args, kwargs))
        self.calls.append(call)
        self.call_signatures.append(
            f"{node.target} {_describe_tree(node.args)} {_describe_tree(node.kwargs)} {_describe_tree(val)}"
        )

    def _note_memory(self, call: Call, written: Sequence[Any]) -> None:
        touched: Set[int] = set()
        for leaf in (*list_values((call.args, tuple(call.kwargs.values()))), *call.results):
            touched |= self.memories[leaf]
        self.touched.append(frozenset(touched))
        self.written.append(frozenset(m for leaf in list_values(tuple(written)) for m in self.memories[leaf]))

    def _convert_argument(self, tree: Any) -> Any:
        if isinstance(tree, torch.fx.Node):
            if tree not in self.numbers:
                raise CaptureError(f"{tree.name} returns several values but is used as one")
            return Ref(self.numbers[tree])
        if isinstance(tree, (list, tuple)):
            converted = [self._convert_argument(branch) for branch in tree]
            return converted if isinstance(tree, list) else tuple(converted)
        if isinstance(tree, Mapping):
            return {key: self._convert_argument(branch) for key, branch in tree.items()}
        if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError("a shape in it depends on the data")
        return tree

    def _read_outputs(self, node: Any) -> Tuple[Any, ...]:
        specs = self.exported.graph_signature.output_specs
        outputs = []
        for one, spec in zip(node.args[0], specs):
            if spec.kind.name != "USER_OUTPUT":
                raise CaptureError(f"it gives a {spec.kind.name.lower().replace('_', ' ')} ({spec.target})")
            outputs.append(self._convert_argument(one))
        return tuple(outputs)


def _list_storages(val: Any) -> Iterator[int]:
    if isinstance(val, torch.Tensor):
        yield val.untyped_storage()._cdata
    elif isinstance(val, (tuple, list)):
        for one in val:
            yield from _list_storages(one)


def _describe_tree(tree: Any) -> str:
    """Describe shapes, types and constants, without the names of values."""
    if isinstance(tree, torch.fx.Node):
        return _describe_tree(tree.meta.get("val"))
    if isinstance(tree, torch.Tensor):
        return f"{tuple(tree.shape)} {tree.dtype} {tree.stride()}"
    if isinstance(tree, Mapping):
        return str({key: _describe_tree(branch) for key, branch in tree.items()})
    if isinstance(tree, (list, tuple)):
        return f"[{', '.join(map(_describe_tree, tree))}]"
    return repr(tree)


def _get_target_name(target: Any) -> str:
    return getattr(target, "__name__", None) or str(target)


def _compute_fingerprint(graph: Any) -> str:
    lines = []
    for node in graph.nodes:
        val = node.meta.get("val")
        tensors = [
            f"{tuple(one.shape)}{one.dtype}{tuple(one.stride())}"
            for one in (val if isinstance(val, (tuple, list)) else (val,))
            if isinstance(one, torch.Tensor)
        ]
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {tensors}")
    return "\n".join(lines)
