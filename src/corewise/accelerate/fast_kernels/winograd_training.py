"""Winograd convolution of 3 x 3 and 5 x 5 in training, with its backward pass.

Measured side: standard library and torch only, Python 3.9. Needs the C++ module.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from corewise.accelerate.fast_kernels.kernel_support import can_use_kernels
from corewise.accelerate.fast_kernels.winograd_convolution import has_supported_shape
from corewise.accelerate.fast_kernels.winograd_rule import MIN_TILES, count_tiles, is_worthwhile

Padding = Tuple[int, int]


def run_convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Optional[Tensor]:
    """Run the layer with gradients; return None where torch is faster or has to report an error."""
    padding = _find_padding(layer)
    kernel = layer.kernel_size[0]
    sizes = (layer.out_channels, layer.in_channels, kernel, kernel)
    # The layer may have changed since use_fast_kernels.
    is_supported = has_supported_shape(layer) and weight.shape == sizes
    fits = is_supported and x.dim() == 4 and x.numel() > 0 and x.shape[1] == weight.shape[1]
    if padding is None or not fits or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    # An image smaller than the kernel is an error that torch reports.
    if min(x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1]) < kernel:
        return None
    # The weight gradient needs the fewest tiles to be faster.
    if not _is_gradient_worthwhile(x.shape, weight, padding):
        return None
    tensors = [x, weight] if bias is None else [x, weight, bias]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        apply: Callable[..., Tensor] = _WinogradFunction.apply
        return apply(x, weight, bias, padding)
    return _run_forward(x, weight, bias, padding) if _is_forward_worthwhile(x.shape, weight, padding) else None


class _WinogradFunction(torch.autograd.Function):
    """Computes the result and each gradient with the faster of both kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        if _is_forward_worthwhile(x.shape, weight, padding):
            return _run_forward(x, weight, bias, padding)
        return torch.conv2d(x, weight, bias, 1, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dy = gradients[0]
        x, weight = ctx.saved_tensors
        padding: Padding = ctx.padding
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]]
        own: list[Optional[Tensor]] = [None, None, None]
        # Torch computes derivatives of gradients.
        if not torch.is_grad_enabled() and can_use_kernels(dy, x, weight):
            # Converted once here, so gradients have the layout of the images.
            dy = dy.contiguous(memory_format=torch.channels_last)
            around = _compute_gradient_padding(padding, weight)
            if wanted[0] and _is_forward_worthwhile(dy.shape, weight, around):
                own[0] = torch.ops.corewise.winograd_changing_convolution(dy, weight, None, around, True)
            if wanted[1] and _is_gradient_worthwhile(x.shape, weight, padding):
                own[1] = torch.ops.corewise.winograd_weight_gradient(x, dy, weight.shape[2], padding)
            if wanted[2]:
                own[2] = dy.sum((0, 2, 3))
        rest = [is_wanted and gradient is None for is_wanted, gradient in zip(wanted, own)]
        by_torch: Sequence[Optional[Tensor]] = (None, None, None)
        if any(rest):
            sizes = [weight.shape[0]] if ctx.has_bias else None
            by_torch = torch.ops.aten.convolution_backward(
                dy, x, weight, sizes, [1, 1], list(padding), [1, 1], False, [0, 0], 1, rest
            )
        return (*(ours if ours is not None else theirs for ours, theirs in zip(own, by_torch)), None)


def _run_forward(x: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
    return torch.ops.corewise.winograd_changing_convolution(  # type: ignore[no-any-return]
        x, weight, bias, padding, False
    )


def _compute_gradient_padding(padding: Padding, weight: Tensor) -> Padding:
    """Compute the padding of the output gradient whose convolution is the input gradient."""
    largest = weight.shape[2] - 1
    return largest - padding[0], largest - padding[1]


def _find_padding(layer: nn.Conv2d) -> Optional[Padding]:
    """Find the padding of the image; None if the input gradient would need negative padding."""
    padding: Union[str, Tuple[int, ...]] = layer.padding
    if isinstance(padding, str):
        half = layer.kernel_size[0] // 2
        return (half, half) if padding == "same" else (0, 0)
    largest = layer.kernel_size[0] - 1
    return (padding[0], padding[1]) if max(padding) <= largest else None


def _is_forward_worthwhile(x: Sequence[int], weight: Tensor, padding: Padding) -> bool:
    """Return whether Winograd convolution is faster with weights transformed in the same call."""
    return is_worthwhile(x, weight.shape, padding)


def _is_gradient_worthwhile(x: Sequence[int], weight: Tensor, padding: Padding) -> bool:
    return count_tiles(x, weight.shape[2], padding) >= MIN_TILES
