"""Whether a captured program gives what the module gives: the check before any plan.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow.generated import lifetimes, task_function
from corewise.dataflow.planning import Case
from corewise.dataflow.schedule import Task

# Two runs of one program may differ in the last bits where operators add up in another order.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4, torch.complex128: 1e-9}
_COARSE = 2e-2  # half precision


def why_different(case: Case) -> str:
    """Empty when module and program agree on the example, else what differs; seeds start alike."""
    before = _python_state(case.bound.module)
    with case.bound.untouched():
        expected = case.call_plain()
    changed = _changed(before, case.bound.module)
    if changed:
        return f"its forward changes attributes ({changed}), which replayed operators would not"
    values = case.values()
    whole = Task(tuple(range(len(case.program.calls))), ())
    own, _, _ = lifetimes(case.program, [whole])
    task_function(case.program, whole, own[0])(values)
    return compared(expected, case.bound.result(values))


def _python_state(module: torch.nn.Module) -> List[Dict[str, Any]]:
    return [{**part.__dict__, **part._buffers} for part in module.modules()]


def _changed(before: List[Dict[str, Any]], module: torch.nn.Module) -> str:
    """The names of attributes that are no longer what they were, of plain values or by identity."""
    found: List[str] = []
    for old, new in zip(before, _python_state(module)):
        for name in old.keys() | new.keys():
            one, two = old.get(name), new.get(name)
            is_same = one is two or (isinstance(one, (int, float, str, tuple)) and _is_equal(one, two))
            if not is_same:
                found.append(name)
    return ", ".join(sorted(set(found))[:3])


def _is_equal(one: Any, two: Any) -> bool:
    try:
        return bool(one == two)
    except Exception:  # tuples of tensors
        return False


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
            if not _is_close(one.detach(), two.detach()):
                return "its operators, replayed, give another result"
        elif one is not two and one != two:
            return "its operators, replayed, give another result"
    return ""


def _is_close(one: torch.Tensor, two: torch.Tensor) -> bool:
    if not (one.dtype.is_floating_point or one.dtype.is_complex):
        return bool(torch.equal(one, two))
    tolerance = _TOLERANCE.get(one.dtype, _COARSE)
    return bool(torch.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True))
