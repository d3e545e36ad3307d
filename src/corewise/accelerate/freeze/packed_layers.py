"""Layers with weights in oneDNN's layout, and with fused sums and activations.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Sequence, Tuple, Union, cast

import torch
from torch import Tensor, nn

# The name of an activation, and its approximation (GELU).
Activation = Tuple[str, Optional[str]]


def refuse_conversion(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise the error of modules whose weights are prepared."""
    raise RuntimeError("prepared weights cannot be moved or converted: change the model itself, then freeze it again")


class PreparedLayer(nn.Module):
    """A layer with weights in the layout that oneDNN prefers, and a fused activation."""

    def __init__(self, layer: Union[nn.Conv2d, nn.Linear], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.activation: Activation = ("none", None)
        # The module's code may read sizes and settings of its layers.
        settings = getattr(layer, "__constants__", ())
        self.settings = {name: getattr(layer, name) for name in settings if hasattr(layer, name)}
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype, copy=True)
        self.weight: Tensor

    def __getattr__(self, name: str) -> Any:
        settings = vars(self).get("settings", {})
        return settings[name] if name in settings else super().__getattr__(name)

    def _apply(self, fn: Any, recurse: bool = True) -> PreparedLayer:
        refuse_conversion()

    def __deepcopy__(self, memo: Any) -> PreparedLayer:
        # It is immutable.
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("prepared weights cannot be saved: save the model itself, and freeze it after loading")


def compute_padding(layer: nn.Conv2d) -> Optional[Tuple[int, ...]]:
    """Compute the padding of each dimension; None if both sides of an image need different ones."""
    if not isinstance(layer.padding, str):
        return layer.padding
    if layer.padding == "valid":
        return (0, 0)
    reaches = [dilation * (size - 1) for size, dilation in zip(layer.kernel_size, layer.dilation)]
    return None if any(reach % 2 for reach in reaches) else tuple(reach // 2 for reach in reaches)


class PreparedConvolution(PreparedLayer):
    """A convolution with a fused activation, and optionally a fused sum with another value."""

    def __init__(self, layer: nn.Conv2d, x: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(layer, dtype)
        around = (compute_padding(layer), layer.stride, layer.dilation)
        self.around = [list(cast(Tuple[int, ...], each)) for each in around]
        self.sizes = (*self.around, layer.groups)
        # Whether the sum may overwrite the other value.
        self.overwrites = False
        self.num_channels, self.kernel = layer.out_channels, layer.kernel_size
        weight = layer.weight.detach().to(dtype)
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *self.sizes, list(x))

    def forward(self, x: Tensor, other: Optional[Tensor] = None) -> Any:
        x = x.to(self.dtype)
        name, approximation = self.activation
        args = (x, self.weight, self.bias, *self.sizes)
        if other is None:
            return torch.ops.mkldnn._convolution_pointwise(*args, name, [], approximation)
        post: Tuple[Any, ...] = (None if name == "none" else name, [], approximation)
        # The operator does not broadcast; the example inputs did not need it.
        if tuple(other.shape) != self._compute_result_shape(x):
            total = torch.ops.mkldnn._convolution_pointwise(*args, "none", [], None) + other.to(self.dtype)
            return total if name == "none" else torch.relu(total)
        if self.overwrites and other.dtype == self.dtype:
            return torch.ops.mkldnn._convolution_pointwise_(other, *args, "add", 1.0, *post)
        other = other.to(self.dtype)
        return torch.ops.mkldnn._convolution_pointwise(x, other, *args[1:], "add", 1.0, *post)

    def _compute_result_shape(self, x: Tensor) -> Tuple[int, ...]:
        dimensions = zip(x.shape[2:], self.kernel, *self.around)
        sizes = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in dimensions)
        return (x.shape[0], self.num_channels, *sizes)


class PreparedLinear(PreparedLayer):
    """A linear layer over the last dimension."""

    def __init__(self, layer: nn.Linear, x: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(layer, dtype)
        num_rows = 1
        for size in x[:-1]:
            num_rows *= size
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach().to(dtype), num_rows)

    def forward(self, x: Tensor) -> Any:
        args = (x.to(self.dtype), self.weight, self.bias)
        name, approximation = self.activation
        return torch.ops.mkldnn._linear_pointwise(*args, name, [], approximation)
