"""Run a prepared module through captured graphs, one for each input signature.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
from typing import Any, Dict, Hashable, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.export_silence import wait_for_export
from corewise.accelerate.capture.input_signature import explain_unsupported_inputs, flatten_inputs
from corewise.accelerate.capture.module_export import CaptureError, separate_inputs
from corewise.accelerate.capture.module_state import ModuleState, TooManyAttributesError
from corewise.accelerate.capture.result_objects import ResultTemplate, UnknownResultError
from corewise.accelerate.capture.torch_modes import explain_interception, get_autocast_dtype
from corewise.accelerate.equivalence import is_equivalent
from corewise.accelerate.freeze.captured_graph import CapturedGraph, capture_graph
from corewise.accelerate.freeze.lstm_replacement import RowLstm
from corewise.accelerate.freeze.packed_layers import PreparedLayer
from corewise.accelerate.freeze.prepared_tree import compare_times, copy_tensors

# Maximum number of input signatures with a graph. Others run the prepared module.
MAX_SIGNATURES = 8
# Seconds after which no further part of a module is captured.
MAX_PARTS_S = 30.0
# No further capture is tried after this many failed ones.
MAX_FAILURES = 3
# A graph that takes longer than this multiple of the module's time is not kept. It runs fewer operators, so
# a smaller difference is noise.
MAX_TIME_RATIO = 1.1
# Seconds for comparing both.
MAX_MEASURING_S = 0.25
# Signatures that are remembered although they have no graph.
_MAX_SEEN = 1000
# A signature is captured at this call. A capture takes about a second.
CALLS_BEFORE_CAPTURE = 2


class CapturedForward:
    """The forward of a frozen module: a captured graph where there is one, else the prepared module's code."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, winograd: Optional[bool]) -> None:
        self._module, self._dtype, self._winograd = module, dtype, winograd
        # Names of parts that run through graphs, if the whole module does not.
        self.captured_parts: List[str] = []
        # Names of layers that are not prepared, with the reason.
        self.plain_layers: Dict[str, str] = {}
        # What a call changes in the module.
        self._changes: List[str] = []
        self._graphs: Dict[Hashable, Optional[CapturedGraph]] = {}
        self._num_calls: Dict[Hashable, int] = {}
        # Why signatures have no graph.
        self._reasons: Dict[Hashable, str] = {}
        self._guard = threading.RLock()
        self._is_short = dtype != torch.float32
        # Tools such as generate() read the arguments of forward.
        self.__signature__ = inspect.signature(type(module).forward.__get__(module))
        self.__name__ = "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_short and get_autocast_dtype() is None:
            with torch.autocast("cpu", self._dtype):
                return self(*args, **kwargs)
        # An export in another thread would record our operators.
        wait_for_export()
        leaves, nesting = flatten_inputs(args, kwargs)
        graph = None
        if not self._module.training:
            key = (nesting, get_autocast_dtype(), tuple(map(_describe_leaf, leaves)))
            graph = self._graphs.get(key, _UNKNOWN)
            if graph is _UNKNOWN:
                graph = self._meet(key, leaves, args, kwargs)
        if graph is None or explain_interception():
            return self.run_module(*args, **kwargs)
        with torch.no_grad():
            return graph.build_result(graph.run(*leaves))

    def run_module(self, *args: Any, **kwargs: Any) -> Any:
        """Run the prepared module's own code."""
        with torch.no_grad():
            return type(self._module).forward(self._module, *args, **kwargs)

    def _meet(self, key: Hashable, leaves: Any, args: Any, kwargs: Any) -> Any:
        """Count a call with a signature without a graph; capture one if it comes again."""
        # Objects such as caches have no signature.
        if explain_interception() or explain_unsupported_inputs(leaves):
            return None
        with self._guard:
            num = self._num_calls[key] = self._num_calls.get(key, 0) + 1
            if len(self._num_calls) > _MAX_SEEN:
                self._num_calls.clear()
            num_graphs = sum(graph is not None for graph in self._graphs.values())
            num_failed = len(self._graphs) - num_graphs
            if num < CALLS_BEFORE_CAPTURE or num_graphs >= MAX_SIGNATURES or num_failed >= MAX_FAILURES:
                return None
            return self.capture(args, kwargs)

    def capture(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Optional[CapturedGraph]:
        """Capture a graph for inputs like these, compare its results with the module's, and keep the faster."""
        leaves, nesting = flatten_inputs(args, kwargs)
        key = (nesting, get_autocast_dtype(), tuple(map(_describe_leaf, leaves)))
        with self._guard:
            try:
                graph: Optional[CapturedGraph] = self._capture(leaves, args, kwargs)
                self._reasons.pop(key, None)
            except CaptureError as problem:
                graph, self._reasons[key] = None, str(problem)
            self._graphs[key] = graph
        return graph

    def _capture(self, leaves: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> CapturedGraph:
        reason = explain_unsupported_inputs(leaves)
        if reason:
            raise CaptureError(reason)
        autocast = get_autocast_dtype()
        if autocast is not None and autocast != self._dtype:
            raise CaptureError("autocast is active")
        flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        # Calls may write to their inputs.
        separate = separate_inputs(copy_tensors([_detach(leaf) for leaf in flat]), self._module)
        given, named = pytree.tree_unflatten(separate, spec)
        wanted = self._run_unchanged(given, named)
        graph = capture_graph(self._module, given, named, self._dtype, self._winograd)
        with torch.no_grad():
            try:
                graph = self._keep_types(graph, wanted)
                got = graph.build_result(graph.run(*copy_tensors(separate)))
            # A fused operator does not support these values.
            except (RuntimeError, TypeError, ValueError, IndexError, UnknownResultError) as problem:
                raise CaptureError(f"its captured operators fail: {problem}") from problem
            if not is_equivalent(wanted, got, self._dtype):
                raise CaptureError("its captured operators give another result")
            captured = graph
            ratio = compare_times(
                lambda: type(self._module).forward(self._module, *given, **named),
                lambda: captured.build_result(captured.run(*separate)),
                MAX_MEASURING_S,
            )
            if ratio > MAX_TIME_RATIO:
                raise CaptureError("its captured operators are slower than its code")
        return graph

    def _run_unchanged(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the module's result; raise CaptureError if a call changes the module."""
        try:
            before = ModuleState(self._module)
        except TooManyAttributesError as problem:
            raise CaptureError(str(problem)) from problem
        try:
            wanted = self.run_module(*copy_tensors(args), **copy_tensors(dict(kwargs)))
            # A later call may find what an earlier one has left, and change nothing.
            self._changes = self._changes or before.find_changes()
        finally:
            before.restore()
        if self._changes:
            raise CaptureError(f"its forward changes attributes ({', '.join(self._changes[:3])})")
        return wanted

    def _keep_types(self, graph: CapturedGraph, wanted: Any) -> CapturedGraph:
        """Build results as the module's code returns them under autocast: the graph was captured in float32."""
        if not self._is_short:
            return graph
        template = ResultTemplate(wanted)
        types = tuple(one.dtype for one in template.take_tensors())

        def build_converted(tensors: List[Any]) -> Any:
            return template.build([one if one.dtype == dtype else one.to(dtype) for one, dtype in zip(tensors, types)])

        return dataclasses.replace(graph, build_result=build_converted)

    def explain(self) -> str:
        """Describe what is prepared and captured, and what runs as before, with the reasons."""
        with self._guard:
            lines = [f"{self.num_prepared} layers have prepared weights"]
            for graph in self._graphs.values():
                if graph is not None:
                    lines.append(f"a captured graph of {graph.num_operators} operators runs for one input signature")
            lines += [f"the module's code runs for one input signature: {reason}" for reason in self._reasons.values()]
            if self.captured_parts:
                more = f" and {len(self.captured_parts) - 3} more" if len(self.captured_parts) > 3 else ""
                lines.append(f"captured graphs run in its parts {', '.join(self.captured_parts[:3])}{more}")
            by_reason: Dict[str, List[str]] = {}
            for name, reason in self.plain_layers.items():
                by_reason.setdefault(reason, []).append(name)
            for reason, names in by_reason.items():
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"not prepared, because {reason}: {', '.join(names[:3])}{more}")
        return "\n".join(lines)

    @property
    def num_prepared(self) -> int:
        """Number of prepared layers."""
        num_layers = sum(isinstance(part, (PreparedLayer, RowLstm)) for part in self._module.modules())
        return max([num_layers, *(graph.num_prepared for graph in self._graphs.values() if graph is not None)])

    @property
    def num_winograd(self) -> int:
        """Number of Winograd convolutions in the largest graph."""
        return max([0, *(graph.num_winograd for graph in self._graphs.values() if graph is not None)])

    def __deepcopy__(self, memo: Dict[int, Any]) -> CapturedForward:
        import copy

        new = object.__new__(CapturedForward)
        memo[id(self)] = new
        vars(new).update(vars(self))
        new._module, new._guard = copy.deepcopy(self._module, memo), threading.RLock()
        # Graphs hold weights of this copy. Those are constants, so both may run them.
        new._graphs, new._num_calls, new._reasons = dict(self._graphs), {}, dict(self._reasons)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("prepared weights cannot be saved: save the model itself, and freeze it after loading")


_UNKNOWN: Any = object()


def capture_parts(
    module: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype, winograd: Optional[bool]
) -> List[str]:
    """Capture the largest parts of a module that can be captured; return their names.

    The module's own code runs around them.
    """
    inputs: Dict[int, Tuple[Tuple[Any, ...], Dict[str, Any]]] = {}

    def record(part: nn.Module, given: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        inputs.setdefault(id(part), (given, named))

    parts = [part for name, part in module.named_modules() if name and _is_worth_capturing(part)]
    hooks = [part.register_forward_pre_hook(record, with_kwargs=True) for part in parts]
    before = ModuleState(module)
    try:
        with torch.no_grad():
            module(*copy_tensors(args), **copy_tensors(dict(kwargs)))
    finally:
        before.restore()
        for hook in hooks:
            hook.remove()
    names: List[str] = []
    until = time.perf_counter() + MAX_PARTS_S

    def visit(part: nn.Module, name: str) -> None:
        given = inputs.get(id(part))
        if given is not None and time.perf_counter() < until:
            forward = CapturedForward(part, dtype, winograd)
            if forward.capture(*given) is not None:
                vars(part)["forward"] = forward
                names.append(name)
                return
        for child_name, child in part.named_children():
            visit(child, f"{name}.{child_name}" if name else child_name)

    visit(module, "")
    return names


def _is_worth_capturing(part: nn.Module) -> bool:
    """Return whether a part holds prepared layers, and more than one layer."""
    layers = [each for each in part.modules() if isinstance(each, PreparedLayer)]
    return bool(layers) and part not in layers and "forward" not in vars(part)


def _describe_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        layout: Any = leaf.stride() if leaf.layout == torch.strided else leaf.layout
        return type(leaf), leaf.shape, layout, leaf.dtype, leaf.device.type
    is_plain = leaf is None or isinstance(leaf, (bool, int, float, str, torch.dtype))
    return type(leaf), repr(leaf) if is_plain else None


def _detach(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
