"""Compute a linear layer or a convolution in int8, in place of its forward function.

Measured side: standard library and torch only, Python 3.9. The layer itself stays in the module tree, with its
class, float32 weights, hooks and names, so code that reads `layer.weight` or calls `state_dict` still works. Only
`layer.forward` is another function. Weights are quantised per output channel, activations per tensor or per row.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from corewise.accelerate.capture.torch_modes import explain_transform, get_autocast_dtype

# Scales below this give infinity when they are inverted in float32, and sums with scales above this overflow.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
# float32 has no digits after the point from here on, so a sum with it is rounded to an integer, whose bytes are the
# last of the sum. Reading them is several times as fast as torch's conversion of float32 to uint8.
ROUNDING = float(2**23)
# int8 weights are symmetric.
LARGEST_WEIGHT = 127
# Without VNNI, pairs of products are summed in 16 bits. Activations of 7 bits cannot saturate these sums.
LEVELS, LEVELS_WITHOUT_VNNI = 255, 127
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")
# Values of these variables that keep oneDNN from using VNNI.
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
LIMITS_WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
# No activation after the product.
UNARY: Tuple[str, List[Any], str] = ("none", [], "")
# The attribute of an instance that hides the function of its class.
FORWARD = "forward"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def count_levels() -> int:
    """Return the largest quantised activation that this CPU multiplies without saturation."""
    return LEVELS if has_vnni() else LEVELS_WITHOUT_VNNI


def has_vnni() -> bool:
    """Return whether oneDNN sums products of bytes in 32 bits here."""
    if any(os.environ.get(name, "").upper() in LIMITS_WITHOUT_VNNI for name in LIMITS):
        return False
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in VNNI)


def has_int8_operators() -> bool:
    """Return whether torch has oneDNN's int8 products and convolutions."""
    names = ("qlinear_prepack", "qlinear_pointwise", "qconv_prepack", "qconv2d_pointwise")
    is_available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return is_available and all(hasattr(torch.ops.onednn, name) for name in names)


class Int8Layer:
    """The int8 function of a layer.

    It computes in float32, as the layer's class does, where int8 does not apply: other number formats and devices,
    training, autocast, compilation and tracing, empty inputs, values that are not finite, gradients of inputs.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer: Any = layer
        self._packed: Any = None
        self._sources: Tuple[Any, ...] = ()
        self._versions: Tuple[int, ...] = ()

    def attach(self) -> None:
        setattr(self.layer, FORWARD, self)

    def detach(self) -> None:
        vars(self.layer).pop(FORWARD, None)

    def compute_float(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the layer's class computes."""
        return type(self.layer).forward(self.layer, *args, **kwargs)

    def compute_int8(self, x: Tensor) -> Optional[Tensor]:
        """Compute in int8, or return None if the values do not allow it."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        x: Any = args[0] if args else next(iter(kwargs.values()), None)
        if len(args) + len(kwargs) != 1 or not self._supports(x):
            return self.compute_float(*args, **kwargs)
        made = self.compute_int8(x)
        return self.compute_float(x) if made is None else made

    def __getstate__(self) -> Dict[str, Any]:
        # Packed weights have a layout of this CPU and cannot be copied or saved. They are packed again on first use.
        return {**vars(self), "_packed": None, "_sources": (), "_versions": ()}

    def _supports(self, x: Any) -> bool:
        # Subclasses of tensors may compute differently.
        return (
            type(x) in (Tensor, nn.Parameter)
            and x.dtype == torch.float32
            and x.device.type == "cpu"
            and x.layout == torch.strided
            and x.numel() > 0
            and not self.layer.training
            and not (x.requires_grad and torch.is_grad_enabled())
            and get_autocast_dtype() is None
            and not explain_transform()
            and self._pack_if_changed(x)
        )

    def _list_sources(self) -> Tuple[Any, ...]:
        """List the tensors from which packed weights are made."""
        return (self.layer.weight, self.layer.bias)

    def _pack(self, x: Tensor) -> Any:
        raise NotImplementedError

    def _pack_if_changed(self, x: Tensor) -> bool:
        """Pack weights on the first call and after each change; return whether they can be packed."""
        sources = self._list_sources()
        versions = tuple(map(read_version, sources))
        is_same = len(sources) == len(self._sources) and all(a is b for a, b in zip(sources, self._sources))
        if not is_same or versions != self._versions or self._packed is None:
            if not all(each is None or _is_plain_weight(each) for each in sources):
                return False
            with torch.no_grad():
                self._packed = self._pack(x)
            self._sources, self._versions = sources, versions
        return True


class Int8Linear(Int8Layer):
    """A linear layer whose activations are scaled at each call: over the whole tensor, or by row.

    Rows are more exact if few of them hold the largest values, and take one more pass over the outputs.
    """

    def __init__(self, layer: nn.Module, *, is_transposed: bool = False, by_row: bool = False) -> None:
        super().__init__(layer)
        self.is_transposed, self.by_row = is_transposed, by_row

    def compute_int8(self, x: Tensor) -> Optional[Tensor]:
        if x.shape[-1] != self._num_inputs:
            # The class raises the error.
            return None
        rows = x.reshape(-1, x.shape[-1])
        made = self._multiply_by_row(rows) if self.by_row else self._multiply(rows)
        return None if made is None else made.view(*x.shape[:-1], made.shape[-1])

    def _multiply(self, rows: Tensor) -> Optional[Tensor]:
        packed, scales, zeros, bias, levels = self._packed
        low, high = (each.item() for each in torch.aminmax(rows))
        low, high = min(low, 0.0), max(high, 0.0)
        # The zero point is rounded up, so the range needs one level more.
        scale = (high - low) / (levels - 1)
        # This is false for NaN.
        if not SMALLEST_SCALE < scale < LARGEST_SCALE:
            return None
        zero = math.ceil(-low / scale)
        quantized = _read_bytes(torch.add(_build_scalar(ROUNDING + zero), rows, alpha=1 / scale))
        made: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            quantized, scale, zero, packed, scales, zeros, bias, 1.0, 0, torch.float32, *UNARY
        )
        return made

    def _multiply_by_row(self, rows: Tensor) -> Optional[Tensor]:
        packed, scales, zeros, bias, levels = self._packed
        middle = (levels + 1) // 2
        largest = rows.abs().amax(1, keepdim=True)
        if not largest.max().item() < LARGEST_SCALE:
            return None
        row_scales = (largest / (middle - 1)).clamp_(min=SMALLEST_SCALE)
        quantized = _read_bytes((rows / row_scales).add_(ROUNDING + middle))
        made: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            quantized, 1.0, middle, packed, scales, zeros, None, 1.0, 0, torch.float32, *UNARY
        )
        return made.mul_(row_scales) if bias is None else torch.addcmul(bias, made, row_scales)

    def _pack(self, x: Tensor) -> Any:
        weight = self.layer.weight.t() if self.is_transposed else self.layer.weight
        self._num_inputs = weight.shape[1]
        scales, quantized = _quantize_channels(weight.detach())
        packed = torch.ops.onednn.qlinear_prepack(quantized, [x.numel() // max(1, x.shape[-1]), weight.shape[1]])
        return packed, scales, torch.zeros(len(scales), dtype=torch.int64), self.layer.bias, count_levels()


class Int8Convolution(Int8Layer):
    """A convolution whose activations have a fixed range; it includes the batch norm that follows, if one does.

    Attributes:
        low, high: The range of inputs. Values beyond it are clipped.
        keeps_layout: Return outputs in the layout of the inputs. Otherwise they are channels_last.
        norm: A norm that reads the outputs and nothing else does. Its own function returns its input.
    """

    def __init__(self, layer: nn.Module, low: float, high: float, norm: Optional[nn.Module] = None) -> None:
        super().__init__(layer)
        self.low, self.high, self.norm = low, high, norm
        self.keeps_layout = False

    def attach(self) -> None:
        super().attach()
        if self.norm is not None:
            setattr(self.norm, FORWARD, pass_through)

    def detach(self) -> None:
        super().detach()
        if self.norm is not None:
            vars(self.norm).pop(FORWARD, None)

    def compute_float(self, *args: Any, **kwargs: Any) -> Any:
        made = super().compute_float(*args, **kwargs)
        return made if self.norm is None else type(self.norm).forward(self.norm, made)

    def compute_int8(self, x: Tensor) -> Optional[Tensor]:
        layer, (packed, scales, zeros, bias, scale, zero, levels, sizes) = self.layer, self._packed
        is_image = isinstance(layer, nn.Conv2d)
        if x.dim() != (4 if is_image else 3) or x.shape[1] != layer.in_channels:
            return None
        images = x if is_image else x.unsqueeze(2)
        rounded = torch.add(_build_scalar(ROUNDING + zero), images, alpha=1 / scale)
        quantized = _read_bytes(rounded.clamp_(ROUNDING, ROUNDING + levels), torch.channels_last)
        made: Tensor = torch.ops.onednn.qconv2d_pointwise.default(
            *(quantized, scale, zero, packed, scales, zeros, bias, *sizes, layer.groups),
            *(1.0, 0, torch.float32, *UNARY),
        )
        if self.keeps_layout and x.is_contiguous():
            made = made.contiguous()
        return made if is_image else made.squeeze(2)

    def _list_sources(self) -> Tuple[Any, ...]:
        norm = self.norm
        if norm is None:
            return super()._list_sources()
        return (*super()._list_sources(), norm.weight, norm.bias, norm.running_mean, norm.running_var)

    def _pack(self, x: Tensor) -> Any:
        layer, levels = self.layer, count_levels()
        weight, bias = layer.weight.detach(), layer.bias
        if self.norm is not None:
            weight, bias = _fold_norm(weight, bias, self.norm)
        if weight.dim() == 3:
            weight = weight.unsqueeze(2)
        sizes = [
            _widen(each, fill) for each, fill in ((layer.stride, 1), (find_padding(layer), 0), (layer.dilation, 1))
        ]
        scale = max((self.high - self.low) / levels, SMALLEST_SCALE)
        zero = min(levels, max(0, round(-self.low / scale)))
        scales, quantized = _quantize_channels(weight)
        shape = list(x.shape) if x.dim() == 4 else [x.shape[0], x.shape[1], 1, x.shape[-1]]
        packed = torch.ops.onednn.qconv_prepack(quantized, scales, scale, zero, *sizes, layer.groups, shape)
        return packed, scales, torch.zeros(len(scales), dtype=torch.int64), bias, scale, zero, levels, sizes


def pass_through(x: Tensor) -> Tensor:
    """Return the input, in place of a norm that the convolution before it computes."""
    return x


def is_linear(layer: nn.Module) -> bool:
    """Return whether it computes as torch's linear layer."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and _has_own_weight(layer)


def is_transposed_linear(layer: Any) -> bool:
    """Return whether it looks like the Conv1D of transformers: a linear layer with a weight of inputs × outputs.

    The numbers on the examples decide whether it is one.
    """
    if type(layer).__name__ != "Conv1D" or isinstance(layer, nn.Conv1d) or not _has_own_weight(layer):
        return False
    weight, bias = layer.weight, layer.bias
    is_leaf = not layer._modules and not layer._buffers and set(layer._parameters) == {"weight", "bias"}
    return bool(is_leaf and weight.dim() == 2 and bias is not None and bias.shape == weight.shape[1:])


def is_convolution(layer: Any) -> bool:
    """Return whether it computes as torch's 1-D or 2-D convolution, with padding that oneDNN supports."""
    is_standard = any(isinstance(layer, cls) and type(layer).forward is cls.forward for cls in CONVOLUTIONS)
    if not is_standard or layer.padding_mode != "zeros" or not _has_own_weight(layer):
        return False
    padding = find_padding(layer)
    # With windows that hold nothing but padding, oneDNN's depthwise convolutions give wrong sums.
    reaches = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
    return padding is not None and all(pad <= reach for pad, reach in zip(padding, reaches))


def find_padding(layer: Any) -> Optional[Sequence[int]]:
    """Return the padding of each dimension, or None if both sides of a dimension differ."""
    padding: Union[str, Sequence[int]] = layer.padding
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return [0] * len(layer.kernel_size)
    totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
    return None if any(total % 2 for total in totals) else [total // 2 for total in totals]


def _has_own_weight(layer: nn.Module) -> bool:
    """Return whether its weight is a plain float32 parameter on the CPU and its function that of its class."""
    parameters = layer._parameters
    own = [parameters.get("weight"), parameters.get("bias")]
    if FORWARD in vars(layer) or is_parametrized(layer) or "bias" not in parameters or own[0] is None:
        return False
    return all(each is None or _is_plain_weight(each) for each in own) and own[0].numel() > 0


def _is_plain_weight(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return is_plain and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def read_version(tensor: Any) -> int:
    """Return how often a tensor was changed; -1 if it was made in inference mode, which does not count."""
    return -1 if tensor is None or tensor.is_inference() else int(tensor._version)


def _quantize_channels(weight: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the scale of each output channel and the int8 weights."""
    rows = weight.reshape(len(weight), -1)
    scales = rows.abs().amax(1) / LARGEST_WEIGHT
    scales = torch.where(scales > SMALLEST_SCALE, scales, torch.ones_like(scales))
    quantized = torch.round(rows / scales[:, None]).clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT).to(torch.int8)
    # oneDNN packs a transposed weight as if it were not.
    return scales, quantized.contiguous().view(weight.shape)


def _fold_norm(weight: Tensor, bias: Optional[Tensor], norm: Any) -> Tuple[Tensor, Tensor]:
    factor = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight.double()
    shift = -norm.running_mean.double() if bias is None else bias.double() - norm.running_mean.double()
    folded = shift * factor if norm.bias is None else shift * factor + norm.bias.double()
    shape: List[int] = [-1] + [1] * (weight.dim() - 1)
    return (weight.double() * factor.view(shape)).float().contiguous(), folded.float().contiguous()


def _widen(values: Any, fill: int) -> List[int]:
    """Return two values; a 1-D convolution is one over images of height 1."""
    return list(values) if len(values) == 2 else [fill, *values]


def _read_bytes(rounded: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    """Return the integers from 0 to 255 in sums with the constant of rounding."""
    return rounded.view(torch.int32).to(torch.uint8).contiguous(memory_format=memory_format)


def _build_scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)
