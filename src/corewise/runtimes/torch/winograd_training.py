"""Convolutions of 3 x 3 and 5 x 5 that are trained, by Winograd's way, gradients included.

Measured side: standard library and torch only, Python 3.9. Needs the C++ module.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from corewise.dataflow.winograd_rule import FEWEST_TILES, num_tiles, pays
from corewise.runtimes.torch.own_kernels import may_take
from corewise.runtimes.torch.winograd import has_form

Padding = Tuple[int, int]


def convolved(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Optional[Tensor]:
    """The layer's result, with gradients; None where torch's own convolution is quicker, or right."""
    padding = _padding(layer)
    kernel = layer.kernel_size[0]
    sizes = (layer.out_channels, layer.in_channels, kernel, kernel)
    is_ours = has_form(layer) and weight.shape == sizes  # it may have changed since it was quickened
    fits = is_ours and x.dim() == 4 and x.numel() > 0 and x.shape[1] == weight.shape[1]
    if padding is None or not fits or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    if min(x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1]) < kernel:
        return None  # torch says what is wrong
    if not _gradient_pays(x.shape, weight, padding):  # which asks for least
        return None
    given = [x, weight] if bias is None else [x, weight, bias]
    if torch.is_grad_enabled() and any(each.requires_grad for each in given):
        apply: Callable[..., Tensor] = _Convolution.apply
        return apply(x, weight, bias, padding)
    return _forward(x, weight, bias, padding) if _pays(x.shape, weight, padding) else None


class _Convolution(torch.autograd.Function):
    """Each of the three products by whichever way is quicker."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        if _pays(x.shape, weight, padding):
            return _forward(x, weight, bias, padding)
        return torch.conv2d(x, weight, bias, 1, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dy = gradients[0]
        x, weight = ctx.saved_tensors
        padding: Padding = ctx.padding
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]]
        own: list[Optional[Tensor]] = [None, None, None]
        if not torch.is_grad_enabled() and may_take(dy, x, weight):  # derivatives of gradients are torch's
            dy = dy.contiguous(memory_format=torch.channels_last)  # once, and gradients lie as the images do
            around = _turned(padding, weight)
            if wanted[0] and _pays(dy.shape, weight, around):
                own[0] = torch.ops.corewise.winograd_changing_convolution(dy, weight, None, around, True)
            if wanted[1] and _gradient_pays(x.shape, weight, padding):
                own[1] = torch.ops.corewise.winograd_weight_gradient(x, dy, weight.shape[2], padding)
            if wanted[2]:
                own[2] = dy.sum((0, 2, 3))
        rest = [asked and found is None for asked, found in zip(wanted, own)]
        by_torch: Sequence[Optional[Tensor]] = (None, None, None)
        if any(rest):
            sizes = [weight.shape[0]] if ctx.has_bias else None
            by_torch = torch.ops.aten.convolution_backward(
                dy, x, weight, sizes, [1, 1], list(padding), [1, 1], False, [0, 0], 1, rest
            )
        return (*(ours if ours is not None else theirs for ours, theirs in zip(own, by_torch)), None)


def _forward(x: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
    return torch.ops.corewise.winograd_changing_convolution(  # type: ignore[no-any-return]
        x, weight, bias, padding, False
    )


def _turned(padding: Padding, weight: Tensor) -> Padding:
    """What lies around the result's gradient, to be convolved to that of the input."""
    most = weight.shape[2] - 1
    return most - padding[0], most - padding[1]


def _padding(layer: nn.Conv2d) -> Optional[Padding]:
    """Zeros around the image; None where a gradient of the input would need fewer than none."""
    given: Union[str, Tuple[int, ...]] = layer.padding
    if isinstance(given, str):
        half = layer.kernel_size[0] // 2
        return (half, half) if given == "same" else (0, 0)
    most = layer.kernel_size[0] - 1
    return (given[0], given[1]) if max(given) <= most else None


def _pays(x: Sequence[int], weight: Tensor, padding: Padding) -> bool:
    """Whether a convolution is quicker so, its weights transformed in this very call."""
    return pays(x, weight.shape, padding)


def _gradient_pays(x: Sequence[int], weight: Tensor, padding: Padding) -> bool:
    return num_tiles(x, weight.shape[2], padding) >= FEWEST_TILES
