"""Layers whose weights were laid out once, with what is computed in the same pass over memory.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union, cast

import torch
from torch import Tensor, nn

Activation = Tuple[str, Optional[str]]  # its name, and which way to compute it


class Prepared(nn.Module):
    """A layer whose weights lie as oneDNN wants them, with an activation of its own."""

    def __init__(self, layer: Union[nn.Conv2d, nn.Linear], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.activation: Activation = ("none", None)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype, copy=True)
        self.weight: Tensor

    def _apply(self, fn: Any, recurse: bool = True) -> Prepared:
        raise RuntimeError("weights that were prepared for inference stay where and what they are")

    def __deepcopy__(self, memo: Any) -> Prepared:
        return self  # nothing of it changes

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "prepared weights cannot be saved: save the model itself, and freeze it where it is loaded"
        )


class PreparedConvolution(Prepared):
    """A convolution, which may add its result to another value."""

    def __init__(self, layer: nn.Conv2d, x: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(layer, dtype)
        around = (layer.padding, layer.stride, layer.dilation)
        self.around = [list(cast(Tuple[int, ...], each)) for each in around]
        self.sizes = (*self.around, layer.groups)
        self.overwrites = False  # the value it is added to
        self.num_channels, self.kernel = layer.out_channels, layer.kernel_size
        weight = layer.weight.detach().to(dtype)
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *self.sizes, list(x))

    def forward(self, x: Tensor, other: Optional[Tensor] = None) -> Any:
        x = x.to(self.dtype)
        name, how = self.activation
        given = (x, self.weight, self.bias, *self.sizes)
        if other is None:
            return torch.ops.mkldnn._convolution_pointwise(*given, name, [], how)
        then = None if name == "none" else name
        if tuple(other.shape) != self._result_shape(x):  # one is spread out, which the example's was not
            alone = torch.ops.mkldnn._convolution_pointwise(*given, "none", [], None) + other.to(self.dtype)
            return alone if then is None else torch.relu(alone)
        if self.overwrites and other.dtype == self.dtype:
            return torch.ops.mkldnn._convolution_pointwise_(other, *given, "add", 1.0, then, [], how)
        other = other.to(self.dtype)
        return torch.ops.mkldnn._convolution_pointwise(x, other, *given[1:], "add", 1.0, then, [], how)

    def _result_shape(self, x: Tensor) -> Tuple[int, ...]:
        along = zip(x.shape[2:], self.kernel, *self.around)
        sizes = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in along)
        return (x.shape[0], self.num_channels, *sizes)


class PreparedLinear(Prepared):
    """A linear layer over the last dimension."""

    def __init__(self, layer: nn.Linear, x: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(layer, dtype)
        num_rows = 1
        for size in x[:-1]:
            num_rows *= size
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach().to(dtype), num_rows)

    def forward(self, x: Tensor) -> Any:
        name, how = self.activation
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.weight, self.bias, name, [], how)
