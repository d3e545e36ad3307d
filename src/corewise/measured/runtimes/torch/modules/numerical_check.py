"""The numerical check: compare a configured module with itself in float64, eager, contiguous, without oneDNN.

Measured side: standard library and torch only, Python 3.9.

Outputs are compared by their largest difference over the largest reference value. Gradients are compared by
the norm of the difference over the norm of the reference, all parameters as one vector. Their tolerance is
larger, because a rounding error that moves a value across the kink of a ReLU switches a whole path on or off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import Any, Callable, Collection, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from corewise.measured.runtimes.base import Check, is_out_of_memory
from corewise.measured.runtimes.torch.modules.reference_cache import ReferenceCache
from corewise.measured.runtimes.torch.settings import Settings, turn_off_onednn

# Tolerances of outputs and of gradients. The largest errors observed over six models, both layouts, several
# seeds and sizes were: float32 3e-6 and 6e-3, tf32 8e-4 and 0.04, float16 3e-3 and 0.07, bfloat16 0.044 and
# 0.28, int8 0.05 (it is not trained). The roundoff of tf32 is a quarter of bfloat16's.
TOLERANCES: Mapping[str, Tuple[float, float]] = {
    "float64": (1e-9, 1e-6),
    "float32": (1e-4, 0.05),
    "tf32": (0.03, 0.25),
    "float16": (0.03, 0.25),
    "bfloat16": (0.1, 0.5),
    "int8": (0.15, 0.5),
}
# Elements compared at a time, so that temporaries stay in the cache.
COMPARED_ELEMENTS = 2**18
# Without a scale, gradients below float16's smallest number vanish.
FLOAT16_LOSS_SCALE = 2.0**10

Loss = Callable[[Any], Tensor]
Gradients = List[Optional[Tensor]]


@dataclasses.dataclass(frozen=True)
class CheckCase:
    """The inputs of a numerical check.

    The inputs may repeat the reference inputs, all samples equally often. Batch statistics, mean losses and
    gradients are then the same, and the reference stays small for every configured shape.

    Attributes:
        loss: None compares only outputs.
        loss_weight: The weight of this rank; weights average to one over data-parallel ranks.
        eval_classes: Names of module classes that are put in evaluation mode; None: all.
        may_need_own_dtype: A module that fails in float64 is compared in its own dtype.
        determined_by: What the reference depends on, apart from weights and inputs; None: it is not kept.
    """

    inputs: Tuple[Any, ...]
    reference_inputs: Tuple[Any, ...]
    loss: Optional[Loss] = None
    reference_loss: Optional[Loss] = None
    loss_weight: float = 1.0
    eval_classes: Optional[Collection[str]] = None
    may_need_own_dtype: bool = False
    determined_by: Optional[Tuple[Any, ...]] = None


def check_module(
    module: nn.Module, configured: nn.Module, settings: Settings, case: CheckCase, cache_folder: str = ""
) -> Tuple[Check, float]:
    """Return the verdict and the seconds of the configured module's first call; its state is restored.

    The reference is kept in `cache_folder`, if one is given, for other processes with the same values.
    """
    with _restore_state(module, configured), _set_evaluation_mode(module, configured, case.eval_classes):
        started = time.perf_counter()
        got = _run_configured(module, configured, case.inputs, case.loss, case.loss_weight, settings)
        first_call_s = time.perf_counter() - started
        with turn_off_onednn():
            wanted, reference, shared_s = _load_or_compute_reference(module, settings, case, cache_folder)
    verdict = _compare_results(got, wanted, TOLERANCES[_find_precision(settings)], reference)
    return dataclasses.replace(verdict, shared_s=shared_s), first_call_s


def list_float_tensors(value: Any) -> List[Tensor]:
    """List the floating-point tensors among a module's outputs."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for part in value for tensor in list_float_tensors(part)]


@dataclasses.dataclass(frozen=True)
class _ModuleResults:
    outputs: List[Tensor]
    gradients: Gradients


def _run_configured(
    module: nn.Module,
    configured: nn.Module,
    inputs: Tuple[Any, ...],
    loss: Optional[Loss],
    weight: float,
    settings: Settings,
) -> _ModuleResults:
    if loss is None:
        with torch.inference_mode(), settings.autocast():
            outputs = list_float_tensors(configured(*inputs))
        settings.finish()
        return _ModuleResults(outputs, [])
    scale = FLOAT16_LOSS_SCALE if settings.dtype == "float16" else 1.0
    with settings.autocast():
        made = configured(*inputs)
        value = loss(made) * (weight * scale)
    value.backward()  # type: ignore[no-untyped-call]
    settings.finish()
    gradients: Gradients = []
    for parameter in _list_trained(module).values():
        gradients.append(parameter.grad / scale if scale != 1 and parameter.grad is not None else parameter.grad)
        parameter.grad = None
    return _ModuleResults([t.detach() for t in list_float_tensors(made)], gradients)


def _load_or_compute_reference(
    module: nn.Module, settings: Settings, case: CheckCase, cache_folder: str
) -> Tuple[_ModuleResults, str, float]:
    """Return the reference, its description, and the seconds that others save because it is kept for them."""
    if not cache_folder or case.determined_by is None:
        return (*_compute_reference(module, settings, case), 0.0)
    cache = ReferenceCache(cache_folder)
    purpose = "outputs" if case.reference_loss is None else "gradients"
    path = cache.build_path(module, (*case.reference_inputs, *case.determined_by), purpose)
    loaded = None if path is None else cache.load(path)
    if loaded is not None:
        return _ModuleResults(loaded[0], loaded[1]), loaded[2], 0.0
    started = time.perf_counter()
    results, text = _compute_reference(module, settings, case)
    is_kept = path is not None and cache.save(path, (results.outputs, results.gradients, text))
    return results, text, time.perf_counter() - started if is_kept else 0.0


def _compute_reference(module: nn.Module, settings: Settings, case: CheckCase) -> Tuple[_ModuleResults, str]:
    try:
        return _compute_in_float64(module, case), "the same layers in float64, eager, without oneDNN"
    except (RuntimeError, TypeError) as problem:
        if not case.may_need_own_dtype or is_out_of_memory(problem):
            raise
    own = dataclasses.replace(settings, dtype="float64" if settings.dtype == "float64" else "float32")
    numbers = _run_configured(module, module, case.reference_inputs, case.reference_loss, 1.0, own)
    return numbers, f"the same module in {own.dtype}, eager, without oneDNN (it does not run in float64)"


def _compute_in_float64(module: nn.Module, case: CheckCase) -> _ModuleResults:
    training = case.reference_loss is not None
    trained = _list_trained(module) if training else {}
    weights = {name: _convert_to_float64(p).requires_grad_(name in trained) for name, p in module.named_parameters()}
    statistics = {name: _convert_to_float64(b) for name, b in module.named_buffers()}
    inputs = tuple(_convert_to_float64(x) for x in case.reference_inputs)
    with torch.set_grad_enabled(training):
        made = functional_call(module, (weights, statistics), inputs)
        gradients: Gradients = []
        if case.reference_loss is not None:
            wanted = [weights[name] for name in trained]
            gradients = list(torch.autograd.grad(case.reference_loss(made), wanted, allow_unused=True))
    return _ModuleResults([t.detach() for t in list_float_tensors(made)], gradients)


def _convert_to_float64(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    dtype = torch.float64 if value.is_floating_point() else value.dtype
    return value.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def _list_trained(module: nn.Module) -> Mapping[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@contextlib.contextmanager
def _restore_state(module: nn.Module, configured: nn.Module) -> Iterator[None]:
    statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(m, m.training) for m in _list_modules_with_modes(module, configured)]
    try:
        yield
    finally:
        for buffer, before in statistics:
            buffer.copy_(before)
        for m, training in modes:
            m.training = training


@contextlib.contextmanager
def _set_evaluation_mode(
    module: nn.Module, configured: nn.Module, classes: Optional[Collection[str]]
) -> Iterator[None]:
    """Put modules of these classes in evaluation mode, which removes randomness and batch statistics."""
    for m in _list_modules_with_modes(module, configured):
        # TorchScript keeps the Python name in this attribute.
        name = getattr(m, "original_name", type(m).__name__)
        if classes is None or name in classes:
            m.training = False
    yield


def _list_modules_with_modes(*roots: nn.Module) -> List[nn.Module]:
    """List the modules that have a training mode; frozen TorchScript has none."""
    return [m for root in roots for m in root.modules() if hasattr(m, "training")]


def _find_precision(settings: Settings) -> str:
    if settings.float32_precision != "default":
        return {"bf16": "bfloat16", "tf32": "tf32"}[settings.float32_precision]
    if settings.device.type == "cuda" and settings.dtype == "float32" and torch.backends.cudnn.allow_tf32:
        return "tf32"
    return settings.dtype


def _compare_results(
    got: _ModuleResults, wanted: _ModuleResults, tolerances: Tuple[float, float], reference: str
) -> Check:
    """Compare outputs and gradients, and return the worse of both checks."""
    outputs = f"the outputs of {reference}{_describe_shapes(got.outputs, wanted.outputs)}"
    checks = [Check(_compute_output_error(got.outputs, wanted.outputs), tolerances[0], outputs)]
    if wanted.gradients:
        error = _compute_gradient_error(got.gradients, wanted.gradients)
        checks.append(Check(error, tolerances[1], f"the gradients of {reference}"))
    return max(checks, key=lambda c: math.inf if math.isnan(c.error) else c.error / c.tolerance)


def _compute_output_error(got: List[Tensor], wanted: List[Tensor]) -> float:
    if len(got) != len(wanted) or not got:
        return math.inf
    return max((_compute_largest_difference(x, y) for x, y in zip(got, wanted)), key=_order_nan_last)


def _describe_shapes(got: List[Tensor], wanted: List[Tensor]) -> str:
    """Describe the shapes of outputs that cannot be compared."""
    if len(got) == len(wanted) and all(_is_repetition(x, y) for x, y in zip(got, wanted)):
        return ""
    shapes = [", ".join(str(tuple(t.shape)) for t in side) or "none" for side in (wanted, got)]
    return f" (expected shapes {shapes[0]}, the module returned {shapes[1]})"


def _is_repetition(got: Tensor, wanted: Tensor) -> bool:
    """Return whether an output can repeat the reference's samples."""
    has_values = got.numel() > 0 and wanted.numel() > 0
    return has_values and got.shape[1:] == wanted.shape[1:] and got.numel() % wanted.numel() == 0


def _order_nan_last(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _compute_largest_difference(got: Tensor, wanted: Tensor) -> float:
    if not _is_repetition(got, wanted):
        return math.inf
    difference = (got.to(torch.float64).reshape(-1, *wanted.shape) - wanted).abs().max()
    scale = wanted.abs().max()
    return float(difference / scale if scale > 0 else difference)


def _compute_gradient_error(got: Gradients, wanted: Gradients) -> float:
    differences = wanted_squares = 0.0
    for x, y in zip(got, wanted):
        if x is None and y is None:
            continue
        difference, square = _sum_squares(_fill_missing(x, y), _fill_missing(y, x))
        differences += difference
        wanted_squares += square
    return math.sqrt(differences / wanted_squares if wanted_squares > 0 else differences)


def _fill_missing(tensor: Optional[Tensor], other: Optional[Tensor]) -> Tensor:
    if tensor is not None:
        return tensor
    assert other is not None
    return torch.zeros_like(other)


def _sum_squares(got: Tensor, wanted: Tensor) -> Tuple[float, float]:
    """Sum the squares of the difference and of the reference."""
    difference = torch.zeros((), dtype=torch.float64, device=wanted.device)
    square = torch.zeros_like(difference)
    for x, y in zip(*(torch.split(t.reshape(-1), COMPARED_ELEMENTS) for t in (got, wanted))):
        error = x.to(torch.float64) - y
        difference += error.dot(error)
        square += y.dot(y)
    return float(difference), float(square)
