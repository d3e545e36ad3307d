"""The numerical check: a configured module against itself in float64, eager, contiguous, oneDNN off.

Measured side: standard library and torch only, Python 3.9.

Outputs are compared by their largest difference over the largest reference value, gradients by the norm of
the difference over the norm of the reference, all parameters as one vector. Gradients are allowed more,
because a rounding error that carries a value across the kink of a ReLU switches a whole path on or off.
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

from corewise.runtimes.base import Check
from corewise.runtimes.torch.settings import Settings, onednn_off

# Of outputs and gradients; in brackets the largest seen over the six models, both layouts, seeds and sizes.
TOLERANCES: Mapping[str, Tuple[float, float]] = {
    "float64": (1e-9, 1e-6),
    "float32": (1e-4, 0.05),  # (3e-6, 6e-3)
    "tf32": (0.03, 0.25),  # (8e-4, 0.04); its roundoff is a quarter of bfloat16's
    "float16": (0.03, 0.25),  # (3e-3, 0.07)
    "bfloat16": (0.1, 0.5),  # (0.044, 0.28)
    "int8": (0.15, 0.5),  # (0.05, none: it is not trained)
}
COMPARED_AT_ONCE = 2**18  # elements; keeps the temporaries of a comparison in the cache
FLOAT16_LOSS_SCALE = 2.0**10  # below float16's least number gradients vanish

Loss = Callable[[Any], Tensor]
Gradients = List[Optional[Tensor]]


@dataclasses.dataclass(frozen=True)
class Case:
    """What to compare on.

    The inputs may repeat the reference inputs, all samples equally often: batch statistics, mean losses and
    gradients are then the same, and the reference stays small whatever shape is configured.
    """

    inputs: Tuple[Any, ...]
    reference_inputs: Tuple[Any, ...]
    loss: Optional[Loss] = None  # None: outputs only
    reference_loss: Optional[Loss] = None
    loss_weight: float = 1.0  # of this rank; they average to one over ranks whose gradients are averaged
    quiet: Optional[Collection[str]] = None  # kinds of modules put in evaluation mode; None: all of them
    may_need_own_dtype: bool = False  # a module that fails in float64 is compared in its own dtype


def check_module(
    module: nn.Module, configured: nn.Module, settings: Settings, case: Case
) -> Tuple[Check, float]:
    """The verdict and the configured module's seconds; weights, statistics and modes are left as found."""
    with _left_as_found(module, configured), _quiet(module, configured, case.quiet):
        started = time.perf_counter()
        got = _computed(module, configured, case.inputs, case.loss, case.loss_weight, settings)
        first_call_s = time.perf_counter() - started
        with onednn_off():
            wanted, reference = _reference(module, settings, case)
    return _verdict(got, wanted, TOLERANCES[_precision(settings)], reference), first_call_s


def tensors(value: Any) -> List[Tensor]:
    """The floating-point tensors in whatever a module returned."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for part in value for tensor in tensors(part)]


@dataclasses.dataclass(frozen=True)
class _Numbers:
    outputs: List[Tensor]
    gradients: Gradients


def _computed(
    module: nn.Module,
    configured: nn.Module,
    inputs: Tuple[Any, ...],
    loss: Optional[Loss],
    weight: float,
    settings: Settings,
) -> _Numbers:
    if loss is None:
        with torch.inference_mode(), settings.autocast():
            outputs = tensors(configured(*inputs))
        settings.finish()
        return _Numbers(outputs, [])
    scale = FLOAT16_LOSS_SCALE if settings.dtype == "float16" else 1.0
    with settings.autocast():
        made = configured(*inputs)
        value = loss(made) * (weight * scale)
    value.backward()  # type: ignore[no-untyped-call]
    settings.finish()
    gradients: Gradients = []
    for parameter in _trained(module).values():
        gradients.append(
            parameter.grad / scale if scale != 1 and parameter.grad is not None else parameter.grad
        )
        parameter.grad = None
    return _Numbers([t.detach() for t in tensors(made)], gradients)


def _reference(module: nn.Module, settings: Settings, case: Case) -> Tuple[_Numbers, str]:
    try:
        return _in_float64(module, case), "the same layers in float64, eager, without oneDNN"
    except (RuntimeError, TypeError) as problem:
        if not case.may_need_own_dtype or "allocate memory" in str(problem):
            raise
    own = dataclasses.replace(settings, dtype="float64" if settings.dtype == "float64" else "float32")
    numbers = _computed(module, module, case.reference_inputs, case.reference_loss, 1.0, own)
    return numbers, f"the same module in {own.dtype}, eager, without oneDNN (it does not run in float64)"


def _in_float64(module: nn.Module, case: Case) -> _Numbers:
    training = case.reference_loss is not None
    trained = _trained(module) if training else {}
    weights = {name: _double(p).requires_grad_(name in trained) for name, p in module.named_parameters()}
    statistics = {name: _double(b) for name, b in module.named_buffers()}
    inputs = tuple(_double(x) for x in case.reference_inputs)
    with torch.set_grad_enabled(training):
        made = functional_call(module, (weights, statistics), inputs)
        gradients: Gradients = []
        if case.reference_loss is not None:
            wanted = [weights[name] for name in trained]
            gradients = list(torch.autograd.grad(case.reference_loss(made), wanted, allow_unused=True))
    return _Numbers([t.detach() for t in tensors(made)], gradients)


def _double(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    dtype = torch.float64 if value.is_floating_point() else value.dtype
    return value.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def _trained(module: nn.Module) -> Mapping[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@contextlib.contextmanager
def _left_as_found(module: nn.Module, configured: nn.Module) -> Iterator[None]:
    statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(m, m.training) for m in _with_modes(module, configured)]
    try:
        yield
    finally:
        for buffer, before in statistics:
            buffer.copy_(before)
        for m, training in modes:
            m.training = training


@contextlib.contextmanager
def _quiet(module: nn.Module, configured: nn.Module, kinds: Optional[Collection[str]]) -> Iterator[None]:
    """Modules of these kinds in evaluation mode: no chance and, where asked, no batch statistics."""
    for m in _with_modes(module, configured):
        kind = getattr(m, "original_name", type(m).__name__)  # TorchScript keeps the Python name there
        if kinds is None or kind in kinds:
            m.training = False
    yield


def _with_modes(*roots: nn.Module) -> List[nn.Module]:
    """All modules that know training from evaluation; frozen TorchScript does not."""
    return [m for root in roots for m in root.modules() if hasattr(m, "training")]


def _precision(settings: Settings) -> str:
    if settings.float32_precision != "default":
        return {"bf16": "bfloat16", "tf32": "tf32"}[settings.float32_precision]
    if settings.device.type == "cuda" and settings.dtype == "float32" and torch.backends.cudnn.allow_tf32:
        return "tf32"
    return settings.dtype


def _verdict(got: _Numbers, wanted: _Numbers, tolerances: Tuple[float, float], reference: str) -> Check:
    """The worse of the two comparisons."""
    outputs = f"the outputs of {reference}{_other_shapes(got.outputs, wanted.outputs)}"
    checks = [Check(_output_error(got.outputs, wanted.outputs), tolerances[0], outputs)]
    if wanted.gradients:
        error = _gradient_error(got.gradients, wanted.gradients)
        checks.append(Check(error, tolerances[1], f"the gradients of {reference}"))
    return max(checks, key=lambda c: math.inf if math.isnan(c.error) else c.error / c.tolerance)


def _output_error(got: List[Tensor], wanted: List[Tensor]) -> float:
    if len(got) != len(wanted) or not got:
        return math.inf
    return max((_largest_difference(x, y) for x, y in zip(got, wanted)), key=_nan_last)


def _other_shapes(got: List[Tensor], wanted: List[Tensor]) -> str:
    """What is said of outputs that cannot be compared."""
    if len(got) == len(wanted) and all(_fits(x, y) for x, y in zip(got, wanted)):
        return ""
    shapes = [", ".join(str(tuple(t.shape)) for t in side) or "none" for side in (wanted, got)]
    return f" (shapes {shapes[0]}, where the module gave {shapes[1]})"


def _fits(got: Tensor, wanted: Tensor) -> bool:
    """Whether an output may repeat the reference's samples."""
    both = got.numel() > 0 and wanted.numel() > 0
    return both and got.shape[1:] == wanted.shape[1:] and got.numel() % wanted.numel() == 0


def _nan_last(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _largest_difference(got: Tensor, wanted: Tensor) -> float:
    if not _fits(got, wanted):
        return math.inf
    difference = (got.to(torch.float64).reshape(-1, *wanted.shape) - wanted).abs().max()
    scale = wanted.abs().max()
    return float(difference / scale if scale > 0 else difference)


def _gradient_error(got: Gradients, wanted: Gradients) -> float:
    differences = wanted_squares = 0.0
    for x, y in zip(got, wanted):
        if x is None and y is None:
            continue
        difference, square = _squares(_or_zeros(x, y), _or_zeros(y, x))
        differences += difference
        wanted_squares += square
    return math.sqrt(differences / wanted_squares if wanted_squares > 0 else differences)


def _or_zeros(tensor: Optional[Tensor], other: Optional[Tensor]) -> Tensor:
    if tensor is not None:
        return tensor
    assert other is not None
    return torch.zeros_like(other)


def _squares(got: Tensor, wanted: Tensor) -> Tuple[float, float]:
    """The squared norms of the difference and of what is wanted."""
    difference = torch.zeros((), dtype=torch.float64, device=wanted.device)
    square = torch.zeros_like(difference)
    for x, y in zip(*(torch.split(t.reshape(-1), COMPARED_AT_ONCE) for t in (got, wanted))):
        apart = x.to(torch.float64) - y
        difference += apart.dot(apart)
        square += y.dot(y)
    return float(difference), float(square)
