"""The int8 convolution primitive on torch, checked against exact integer sums.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import torch
from torch import Tensor

from corewise.measured.runtimes.base import Check, Infeasible
from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.workloads.primitives.convolution import WITH_BIAS, ConvolutionArguments
from corewise.measured.workloads.primitives.convolution_reference import compute_int8_error

LIMITS = {"u8": (0, 255, torch.uint8), "s8": (-127, 127, torch.int8)}
# CPUs without VNNI add pairs of products in 16 bits, which hold 2 · 255 · 64.
WEIGHTS = (-64, 64, torch.int8)


def build_int8_convolution(
    arguments: ConvolutionArguments, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    """Build the operator on random integers, and its check; raise Infeasible if torch has none."""
    operator = _find_operator(arguments)
    _try_small(operator, arguments.int8_source)
    problem, generator = arguments.problem, torch.Generator().manual_seed(seed)
    source = _draw_integers(LIMITS[arguments.int8_source], problem.source_shape, generator)
    weights = _draw_integers(WEIGHTS, problem.weights_shape, generator)
    bias = None
    if arguments.direction in WITH_BIAS:
        bias = torch.randint(-1000, 1001, (problem.oc,), generator=generator).float()
    divisor, dims = _compute_divisor(weights), problem.dimensions
    shape = ([d.stride for d in dims], [d.padding for d in dims], [d.dilation + 1 for d in dims], problem.g)
    convolve = _bind_operator(operator, weights, bias, shape, divisor, list(source.shape))

    def check(result: Tensor) -> Check:
        arrays = {"src": source.numpy(), "wei": weights.numpy(), "bia": None if bias is None else bias.numpy()}
        error = compute_int8_error(problem, arrays, result.numpy(), divisor, seed)
        return Check(error, 0.0, "exact integer sums at sampled positions")

    return _add_reorders(convolve, source, arguments, settings), check


def _draw_integers(limits: Tuple[int, int, torch.dtype], shape: Tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high, dtype = limits
    return torch.randint(low, high + 1, shape, generator=generator, dtype=dtype)


def _bind_operator(
    operator: Any, weights: Tensor, bias: Any, shape: Any, divisor: float, source_shape: Any
) -> Callable[[Tensor], Tensor]:
    """Bind all arguments but the source; scales of 1 keep integers unchanged."""
    scales, zeros = torch.ones(len(weights)), torch.zeros(len(weights), dtype=torch.int64)
    packed = torch.ops.onednn.qconv_prepack(weights, scales, 1.0, 0, *shape, source_shape)
    constant = (*shape, divisor, 0, torch.int8, "none", [], "")

    def call_operator(source: Tensor) -> Tensor:
        result: Tensor = operator(source, 1.0, 0, packed, scales, zeros, bias, *constant)
        return result

    return call_operator


def _try_small(operator: Any, int8_source: str) -> None:
    """Raise Infeasible, before large tensors are allocated, if torch has no such convolution."""
    source = torch.zeros((1, 16, 4, 4), dtype=LIMITS[int8_source][2])
    weights = torch.zeros((16, 16, 1, 1), dtype=torch.int8)
    try:
        _bind_operator(operator, weights, None, ([1, 1], [0, 0], [1, 1], 1), 1.0, [1, 16, 4, 4])(
            source.contiguous(memory_format=torch.channels_last)
        )
    except RuntimeError as problem:
        message = str(problem).strip().splitlines()[0]
        raise Infeasible(f"{int8_source}s8s8: torch has no such convolution ({message})") from problem


def _find_operator(arguments: ConvolutionArguments) -> Any:
    if len(arguments.problem.dimensions) != 2:
        raise Infeasible("int8: only problems with height and width are supported")
    # The first name is the newer one.
    for name in ("qconv_pointwise", "qconv2d_pointwise"):
        operator = getattr(torch.ops.onednn, name, None)
        if operator is not None:
            return operator.default
    raise Infeasible(f"int8: torch {torch.__version__} has no int8 convolution of oneDNN")


def _compute_divisor(weights: Tensor) -> float:
    """Compute a power of two, which divides exactly, such that most results fit into eight bits."""
    num_terms = weights[0].numel()
    # 148 and 37 are the root mean squares of uniform integers in 0…255 and -64…64.
    spread = 148.0 * 37.0 * num_terms**0.5
    return float(2 ** max(0, round(spread / 40.0).bit_length()))


def _add_reorders(
    convolve: Callable[[Tensor], Tensor], source: Tensor, arguments: ConvolutionArguments, settings: Settings
) -> Callable[[], Tensor]:
    """Add the reorders of the trial's layout: oneDNN itself computes channels last."""
    converted = source.contiguous(memory_format=torch.channels_last)
    if arguments.reorders == "excluded":
        return lambda: convolve(converted)
    if settings.memory_format == "channels_last":
        return lambda: convolve(source.contiguous(memory_format=torch.channels_last)).contiguous()
    return lambda: convolve(source).contiguous()
