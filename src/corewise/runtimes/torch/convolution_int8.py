"""Convolutions of eight-bit whole numbers on torch, checked against exact sums.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import torch
from torch import Tensor

from corewise.runtimes.base import Check, Infeasible
from corewise.runtimes.torch.settings import Settings
from corewise.workloads.primitives.convolution import WITH_BIAS, Asked
from corewise.workloads.primitives.sampled_sums import whole_number_error

LIMITS = {"u8": (0, 255, torch.uint8), "s8": (-127, 127, torch.int8)}
WEIGHTS = (-64, 64, torch.int8)  # CPUs without VNNI add pairs of products in 16 bits: 2 · 255 · 64 still fits


def int8_convolution(
    asked: Asked, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    """The operator on random whole numbers, and its check; Infeasible where torch has none."""
    operator = _operator(asked)
    _try_small(operator, asked.int8_source)
    problem, generator = asked.problem, torch.Generator().manual_seed(seed)
    source = _whole_numbers(LIMITS[asked.int8_source], problem.source_shape, generator)
    weights = _whole_numbers(WEIGHTS, problem.weights_shape, generator)
    bias = None
    if asked.direction in WITH_BIAS:
        bias = torch.randint(-1000, 1001, (problem.oc,), generator=generator).float()
    divisor, dims = _divisor(weights), problem.dimensions
    shape = ([d.stride for d in dims], [d.padding for d in dims], [d.dilation + 1 for d in dims], problem.g)
    convolve = _bound(operator, weights, bias, shape, divisor, list(source.shape))

    def check(result: Tensor) -> Check:
        arrays = {
            "src": source.numpy(),
            "wei": weights.numpy(),
            "bia": None if bias is None else bias.numpy(),
        }
        error = whole_number_error(problem, arrays, result.numpy(), divisor, seed)
        return Check(error, 0.0, "exact sums of whole numbers at chosen places")

    return _laid_out(convolve, source, asked, settings), check


def _whole_numbers(
    limits: Tuple[int, int, torch.dtype], shape: Tuple[int, ...], generator: torch.Generator
) -> Tensor:
    low, high, dtype = limits
    return torch.randint(low, high + 1, shape, generator=generator, dtype=dtype)


def _bound(
    operator: Any, weights: Tensor, bias: Any, shape: Any, divisor: float, source_shape: Any
) -> Callable[[Tensor], Tensor]:
    """The operator with everything but the source; scales of 1 leave whole numbers as they are."""
    scales, zeros = torch.ones(len(weights)), torch.zeros(len(weights), dtype=torch.int64)
    packed = torch.ops.onednn.qconv_prepack(weights, scales, 1.0, 0, *shape, source_shape)
    constant = (*shape, divisor, 0, torch.int8, "none", [], "")

    def convolve(source: Tensor) -> Tensor:
        result: Tensor = operator(source, 1.0, 0, packed, scales, zeros, bias, *constant)
        return result

    return convolve


def _try_small(operator: Any, int8_source: str) -> None:
    """Raises Infeasible, before anything large is made, where torch has no such convolution."""
    source = torch.zeros((1, 16, 4, 4), dtype=LIMITS[int8_source][2])
    weights = torch.zeros((16, 16, 1, 1), dtype=torch.int8)
    try:
        _bound(operator, weights, None, ([1, 1], [0, 0], [1, 1], 1), 1.0, [1, 16, 4, 4])(
            source.contiguous(memory_format=torch.channels_last)
        )
    except RuntimeError as met:
        said = str(met).strip().splitlines()[0]
        raise Infeasible(f"{int8_source}s8s8: torch has no such convolution ({said})") from met


def _operator(asked: Asked) -> Any:
    if len(asked.problem.dimensions) != 2:
        raise Infeasible("int8: problems with height and width alone are run")
    for name in ("qconv_pointwise", "qconv2d_pointwise"):  # the newer name first
        operator = getattr(torch.ops.onednn, name, None)
        if operator is not None:
            return operator.default
    raise Infeasible(f"int8: torch {torch.__version__} has no oneDNN convolution of whole numbers")


def _divisor(weights: Tensor) -> float:
    """A power of two, so that division is exact, by which most results come to lie within eight bits."""
    num_terms = weights[0].numel()
    spread = 148.0 * 37.0 * num_terms**0.5  # of 0…255 about zero and of -64…64
    return float(2 ** max(0, round(spread / 40.0).bit_length()))


def _laid_out(
    convolve: Callable[[Tensor], Tensor], source: Tensor, asked: Asked, settings: Settings
) -> Callable[[], Tensor]:
    """oneDNN computes channels last: what comes plain is arranged, and its result made plain again."""
    arranged = source.contiguous(memory_format=torch.channels_last)
    if asked.reorders == "excluded":
        return lambda: convolve(arranged)
    if settings.memory_format == "channels_last":
        return lambda: convolve(source.contiguous(memory_format=torch.channels_last)).contiguous()
    return lambda: convolve(source).contiguous()
