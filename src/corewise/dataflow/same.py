"""Whether a captured program gives what the module gives: the check before any plan.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow.generated import lifetimes, task_function
from corewise.dataflow.module_state import NUMPY_RANDOM, PYTHON_RANDOM, ModuleState
from corewise.dataflow.own_backward import (
    Gradients,
    gradients,
    noting_hooks,
    own_backward,
    why_gradients_differ,
)
from corewise.dataflow.planning import Case
from corewise.dataflow.schedule import Task

# Two runs of one program may differ in the last bits where operators add up in another order.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4, torch.complex128: 1e-9}
_COARSE = 2e-2  # half precision


def looked_at(case: Case) -> Tuple[str, Optional[Run]]:
    """Why nothing replayed can stand for the module, or else what that gives for the example.

    The module's attributes, its tensors and all generators are afterwards as before.
    """
    before = ModuleState(case.bound.module)
    try:
        with case.bound.untouched(), noting_hooks() as hooked:
            plain = case.call_plain()
            reason = _own_backward(case, plain, hooked) or _state_lost(case, before)
            if reason:
                return reason, None
            expected = Run.of(case, plain)
        del plain  # and the history it holds
        reason = _own_backward_of_frozen(case) or _why_other_in_inference(case, expected.result)
        return reason, expected
    finally:
        before.restore()


def why_other(case: Case, expected: Optional[Run]) -> str:
    """What differs between what the program gives and what the module has given; seeds start alike."""
    assert expected is not None
    values = case.values()
    whole = Task(tuple(range(len(case.program.calls))), ())
    own, _, _ = lifetimes(case.program, [whole])
    task_function(case.program, whole, own[0])(values)
    got = Run.of(case, case.bound.result(values))
    return (
        compared(expected.result, got.result)
        or _why_other_ties(case, expected.result, got.result)
        or _why_other_gradients(expected, got)
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run gave."""

    result: Any  # without history
    has_gradients: Tuple[bool, ...]  # of the result's tensors
    gradients: Gradients

    @classmethod
    def of(cls, case: Case, result: Any) -> Run:
        leaves = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
        found = gradients(result, _brought(case)) if torch.is_grad_enabled() else ()
        bare = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)
        return cls(bare, tuple(one.requires_grad for one in leaves), found)


def _brought(case: Case) -> List[torch.Tensor]:
    """The tensors that go in and may have gradients."""
    copied = set(case.bound.captured.written) & set(case.program.inputs)  # each run has its own
    values = [one for number, one in enumerate(case.bound.brought(case.leaves)) if number not in copied]
    found = {id(one): one for one in (*values, *case.bound.module.parameters())}
    return [one for one in found.values() if isinstance(one, torch.Tensor) and one.requires_grad]


def _own_backward_of_frozen(case: Case) -> str:
    """What there would be in the way of a plan if parameters that have no gradients now had some."""
    parameters = case.bound.module.parameters()
    frozen = [one for one in parameters if not one.requires_grad and one.is_floating_point()]
    if not torch.is_grad_enabled() or not frozen or any(one.is_inference() for one in frozen):
        return ""
    with case.bound.untouched(), noting_hooks() as hooked:
        try:
            for one in frozen:
                one.requires_grad_(True)
            return _own_backward(case, case.call_plain(), hooked)
        except RuntimeError:  # what writes to them cannot be trained
            return ""
        finally:
            for one in frozen:
                one.requires_grad_(False)


def _own_backward(case: Case, plain: Any, hooked: List[str]) -> str:
    if not torch.is_grad_enabled():
        return ""
    name = own_backward(plain, _brought(case))
    if name:
        return f"it has a backward pass of its own ({name}), which replayed operators would not run"
    if hooked:
        return f"its forward hooks gradients ({hooked[0]}), which replayed operators would not"
    return ""


def _why_other_in_inference(case: Case, expected: Any) -> str:
    """What there is in the way of a plan for calls in inference mode, whose kind is that of others."""
    if torch.is_grad_enabled():
        return ""
    try:
        with case.bound.untouched(), torch.inference_mode():
            return "in inference mode it does otherwise" if compared(expected, case.call_plain()) else ""
    except RuntimeError:
        return "in inference mode it fails"


def _state_lost(case: Case, before: ModuleState) -> str:
    values = case.bound.brought(case.leaves)
    written = [values[number] for number in case.bound.captured.written]
    changed = before.changes(
        {one.untyped_storage()._cdata for one in written if isinstance(one, torch.Tensor)}
    )
    drawn = [name for name in changed if name in (PYTHON_RANDOM, NUMPY_RANDOM)]
    if drawn:
        return f"its forward draws from {drawn[0]}, which replayed operators would not"
    if changed:
        return (
            f"its forward changes attributes ({', '.join(changed[:3])}), which replayed operators would not"
        )
    return ""


def _why_other_ties(case: Case, expected: Any, got: Any) -> str:
    """Slices put together lie in memory of their own, where results may share theirs or be what came in."""
    if not case.program.num_slices or _ties(case, expected) == _ties(case, got):
        return ""
    return "what it returns shares memory with an input, a parameter or another result"


def _ties(case: Case, result: Any) -> List[int]:
    """Of each tensor that goes in or comes out, the first that lies in the same memory."""
    brought = (*case.bound.brought(case.leaves), *pytree.tree_leaves(result))
    tensors = [one for one in brought if isinstance(one, torch.Tensor) and one.layout == torch.strided]
    storages = [one.untyped_storage()._cdata for one in tensors]
    return [storages.index(one) for one in storages]


def _why_other_gradients(expected: Run, got: Run) -> str:
    if expected.has_gradients != got.has_gradients:
        return "its operators, replayed, give gradients for other results"
    return why_gradients_differ(expected.gradients, got.gradients)


def compared(expected: Any, got: Any) -> str:
    """What differs between two results; empty when nothing does."""
    flat, spec = pytree.tree_flatten(expected)
    other, other_spec = pytree.tree_flatten(got)
    if spec != other_spec:
        return "its operators, replayed, give a result of another form"
    for one, two in zip(flat, other):
        if isinstance(one, torch.Tensor) != isinstance(two, torch.Tensor):
            return "its operators, replayed, give a result of another form"
        if isinstance(one, torch.Tensor):
            if one.shape != two.shape or one.dtype != two.dtype:
                return "its operators, replayed, give a result of another shape or type"
            if not _lies_alike(one, two):
                return "its operators, replayed, give a result whose elements lie in another order"
            if not _is_close(one.detach(), two.detach()):
                return "its operators, replayed, give another result"
        elif one is not two and one != two:
            return "its operators, replayed, give another result"
    return ""


def _lies_alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether view() takes the second where it takes the first: equal strides, or all in row."""
    if one.layout != torch.strided or two.layout != torch.strided:
        return one.layout == two.layout
    strides = zip(one.shape, one.stride(), two.stride())
    return two.is_contiguous() or all(size == 1 or this == other for size, this, other in strides)


def _is_close(one: torch.Tensor, two: torch.Tensor) -> bool:
    if not (one.dtype.is_floating_point or one.dtype.is_complex):
        return bool(torch.equal(one, two))
    tolerance = _TOLERANCE.get(one.dtype, _COARSE)
    largest = float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0  # what sums are made of
    return bool(torch.allclose(one, two, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True))
