"""Export a module's operators with torch.export, unnoticed by other threads that call the module.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Collection, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.expanded_results import UNKNOWN_RESULT, expand_results_of
from corewise.accelerate.capture.export_silence import export_quietly
from corewise.accelerate.capture.export_stand_in import build_stand_in, patch_this_thread
from corewise.accelerate.capture.recurrent_shapes import infer_shapes_quickly


class CaptureError(Exception):
    """Raised with the reason if a model's operators cannot be captured."""


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


def export_module(module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Export the operators that the module runs for inputs like these; raise CaptureError with the reason."""
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
