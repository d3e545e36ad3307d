"""Check whether a captured program gives the module's results, before any plan is made.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.expanded_results import expand_objects
from corewise.accelerate.capture.module_state import NUMPY_RANDOM, PYTHON_RANDOM, ModuleState
from corewise.accelerate.malleable.execute.task_functions import compile_task, compute_lifetimes
from corewise.accelerate.malleable.plan.custom_backward import (
    Gradients,
    compare_gradients,
    compute_gradients,
    find_custom_backward,
    record_hooks,
)
from corewise.accelerate.malleable.plan.planner import PlanningCase
from corewise.accelerate.malleable.plan.schedule import OperatorTask

# Two runs of one program may differ in the last bits where operators add in another order.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4, torch.complex128: 1e-9}
_HALF_PRECISION_TOLERANCE = 2e-2
# How the reason begins if the module's forward changes attributes.
CHANGED_ATTRIBUTES = "its forward changes attributes"


def check_replayable(case: PlanningCase) -> Tuple[str, Optional[RunResult]]:
    """Return why replayed operators cannot replace the module, or else the module's result.

    Afterwards the module's attributes, its tensors and all generators are as before.
    """
    before = ModuleState(case.bound.module)
    try:
        with case.bound.keep_state(), record_hooks() as hooked:
            plain = expand_objects(case.call_plain())
            reason = _find_hidden_backward(case, plain, hooked) or _find_lost_state(case, before)
            if reason:
                return reason, None
            expected = RunResult.from_result(case, plain)
        # Frees the autograd graph.
        del plain
        reason = _check_frozen_parameters(case) or _compare_in_inference_mode(case, expected.result)
        return reason, expected
    finally:
        before.restore()


def find_difference(case: PlanningCase, expected: Optional[RunResult]) -> str:
    """Explain how the program's results differ from the module's, from equal seeds; empty if they do not."""
    assert expected is not None
    values = case.collect_values()
    whole = OperatorTask(tuple(range(len(case.program.calls))), ())
    private, _, _ = compute_lifetimes(case.program, [whole])
    compile_task(case.program, whole, private[0])(values)
    actual = RunResult.from_result(case, case.bound.build_result(values))
    return (
        compare_results(expected.result, actual.result)
        or _compare_ties(case, expected.result, actual.result)
        or _compare_run_gradients(expected, actual)
    )


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of one run."""

    # Detached.
    result: Any
    # One for each tensor of the result.
    has_gradients: Tuple[bool, ...]
    gradients: Gradients

    @classmethod
    def from_result(cls, case: PlanningCase, result: Any) -> RunResult:
        result = expand_objects(result)
        leaves = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
        gradients_of_inputs = (
            compute_gradients(result, _list_differentiable_inputs(case)) if torch.is_grad_enabled() else ()
        )
        detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)
        return cls(detached, tuple(one.requires_grad for one in leaves), gradients_of_inputs)


def _list_differentiable_inputs(case: PlanningCase) -> List[torch.Tensor]:
    """List the tensors that go in and require gradients."""
    # Each run copies the inputs that it writes to.
    copied = set(case.bound.captured.written_values) & set(case.program.inputs)
    values = [one for number, one in enumerate(case.bound.collect_unpacked_values(case.leaves)) if number not in copied]
    tensors = {id(one): one for one in (*values, *case.bound.module.parameters())}
    return [one for one in tensors.values() if isinstance(one, torch.Tensor) and one.requires_grad]


def _check_frozen_parameters(case: PlanningCase) -> str:
    """Find obstacles that would appear if frozen parameters required gradients."""
    parameters = case.bound.module.parameters()
    frozen = [one for one in parameters if not one.requires_grad and one.is_floating_point()]
    if not torch.is_grad_enabled() or not frozen or any(one.is_inference() for one in frozen):
        return ""
    with case.bound.keep_state(), record_hooks() as hooked:
        try:
            for one in frozen:
                one.requires_grad_(True)
            return _find_hidden_backward(case, case.call_plain(), hooked)
        # Parameters that the module writes to cannot be trained.
        except RuntimeError:
            return ""
        finally:
            for one in frozen:
                one.requires_grad_(False)


def _find_hidden_backward(case: PlanningCase, plain: Any, hooked: List[str]) -> str:
    if not torch.is_grad_enabled():
        return ""
    name = find_custom_backward(plain, _list_differentiable_inputs(case))
    if name:
        return f"it has a custom backward pass ({name}), which replayed operators would skip"
    if hooked:
        return f"its forward hooks gradients ({hooked[0]}), which replayed operators would skip"
    return ""


def _compare_in_inference_mode(case: PlanningCase, expected: Any) -> str:
    """Find obstacles for calls in inference mode, which have the same signature."""
    if torch.is_grad_enabled():
        return ""
    try:
        with case.bound.keep_state(), torch.inference_mode():
            return "it behaves differently in inference mode" if compare_results(expected, case.call_plain()) else ""
    except RuntimeError:
        return "it fails in inference mode"


def _find_lost_state(case: PlanningCase, before: ModuleState) -> str:
    values = case.bound.collect_unpacked_values(case.leaves)
    written = [values[number] for number in case.bound.captured.written_values]
    changed = before.find_changes({one.untyped_storage()._cdata for one in written if isinstance(one, torch.Tensor)})
    drawn = [name for name in changed if name in (PYTHON_RANDOM, NUMPY_RANDOM)]
    if drawn:
        return f"its forward draws from {drawn[0]}, which replayed operators would skip"
    if changed:
        return f"{CHANGED_ATTRIBUTES} ({', '.join(changed[:3])}), which replayed operators would skip"
    return ""


def _compare_ties(case: PlanningCase, expected: Any, actual: Any) -> str:
    """Compare which tensors share memory: concatenated slices never do."""
    if not case.program.num_slices or _find_ties(case, expected) == _find_ties(case, actual):
        return ""
    return "what it returns shares memory with an input, a parameter or another result"


def _find_ties(case: PlanningCase, result: Any) -> List[int]:
    """Find for each input or result tensor the first one in the same memory."""
    candidates = (*case.bound.collect_unpacked_values(case.leaves), *pytree.tree_leaves(result))
    tensors = [one for one in candidates if isinstance(one, torch.Tensor) and one.layout == torch.strided]
    storages = [one.untyped_storage()._cdata for one in tensors]
    return [storages.index(one) for one in storages]


def _compare_run_gradients(expected: RunResult, actual: RunResult) -> str:
    if expected.has_gradients != actual.has_gradients:
        return "its replayed operators give gradients for other results"
    return compare_gradients(expected.gradients, actual.gradients)


def compare_results(expected: Any, actual: Any) -> str:
    """Explain how two results differ; empty if they do not."""
    flat, spec = pytree.tree_flatten(expand_objects(expected))
    other, other_spec = pytree.tree_flatten(expand_objects(actual))
    if spec != other_spec:
        return "its replayed operators give a result of another structure"
    for left, right in zip(flat, other):
        if isinstance(left, torch.Tensor) != isinstance(right, torch.Tensor):
            return "its replayed operators give a result of another structure"
        if isinstance(left, torch.Tensor):
            if left.shape != right.shape or left.dtype != right.dtype:
                return "its replayed operators give a result of another shape or type"
            if not _has_same_layout(left, right):
                return "its replayed operators give a result with other strides"
            if not _is_close(left.detach(), right.detach()):
                return "its replayed operators give another result"
        elif left is not right and left != right:
            return "its replayed operators give another result"
    return ""


def _has_same_layout(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether view() accepts the second where it accepts the first."""
    if one.layout != torch.strided or two.layout != torch.strided:
        return one.layout == two.layout
    strides = zip(one.shape, one.stride(), two.stride())
    return two.is_contiguous() or all(size == 1 or this == other for size, this, other in strides)


def _is_close(one: torch.Tensor, two: torch.Tensor) -> bool:
    if not (one.dtype.is_floating_point or one.dtype.is_complex):
        return bool(torch.equal(one, two))
    tolerance = _TOLERANCE.get(one.dtype, _HALF_PRECISION_TOLERANCE)
    # Rounding errors are relative to the largest summand.
    largest = float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0
    return bool(torch.allclose(one, two, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True))
