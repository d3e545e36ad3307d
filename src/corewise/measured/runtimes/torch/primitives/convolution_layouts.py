"""Memory layouts of a convolution's tensors: plain, channels last, or oneDNN's blocked one.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, Optional, Protocol, Tuple

import torch
from torch import Tensor

from corewise.measured.runtimes.torch.primitives.onednn_calls import record_onednn_calls
from corewise.measured.runtimes.torch.settings import Settings

# The dtypes for which oneDNN accepts packed weights.
PACKED_DTYPES = ("float32", "bfloat16")
Tensors = Mapping[str, Tensor]
Options = Mapping[str, Any]


class ConvolutionLayout(Protocol):
    """One layout: inputs are converted to it before the operator, and results back to plain."""

    is_plain: bool

    def convert(self, plain: Tensor) -> Tensor: ...

    def to_plain(self, converted: Tensor) -> Tensor: ...

    def list_variants(self, plain: Tensor) -> Tuple[Tensor, ...]:
        """List the layouts in which a preceding layer may leave the tensor."""
        ...

    def convert_weights(self, plain: Tensor) -> Tensor:
        """Convert weights as a model in training holds them."""
        ...

    def pack_weights(self, plain: Tensor, options: Options) -> Tensor:
        """Convert weights as a model in inference holds them."""
        ...

    def convert_bias(self, plain: Optional[Tensor]) -> Optional[Tensor]: ...

    def build_forward(self, convolve: Any, tensors: Tensors, options: Options) -> Callable[[], Tensor]:
        """Build a forward step with as few reorders as torch allows, without autograd."""
        ...


def choose_layout(settings: Settings) -> ConvolutionLayout:
    """Choose the layout of a trial."""
    if settings.memory_format == "blocked":
        return BlockedLayout()
    if settings.memory_format == "channels_last":
        return ChannelsLastLayout(packs_weights=_can_pack(settings))
    return PlainLayout()


class PlainLayout:
    """Channel by channel (NCHW): the operator reorders internally."""

    is_plain = True

    def convert(self, plain: Tensor) -> Tensor:
        return plain

    to_plain = convert_weights = convert

    def list_variants(self, plain: Tensor) -> Tuple[Tensor, ...]:
        return (plain,)

    def pack_weights(self, plain: Tensor, options: Options) -> Tensor:
        return plain

    def convert_bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return plain

    def build_forward(self, convolve: Any, tensors: Tensors, options: Options) -> Callable[[], Tensor]:
        raise NotImplementedError("the plain layout has no forward step without reorders")


class ChannelsLastLayout:
    """Pixel by pixel (NHWC); newer kernels of oneDNN and cuDNN need no reorder."""

    is_plain = False

    def __init__(self, packs_weights: bool) -> None:
        self._packs_weights = packs_weights

    def convert(self, plain: Tensor) -> Tensor:
        return plain.contiguous(memory_format=torch.channels_last)

    convert_weights = convert

    def list_variants(self, plain: Tensor) -> Tuple[Tensor, ...]:
        return (self.convert(plain),)

    def pack_weights(self, plain: Tensor, options: Options) -> Tensor:
        return self.convert(plain)

    def to_plain(self, converted: Tensor) -> Tensor:
        return converted.contiguous()

    def convert_bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return plain

    def build_forward(self, convolve: Any, tensors: Tensors, options: Options) -> Callable[[], Tensor]:
        source, bias = self.convert(tensors["src"]), tensors.get("bia")
        if not self._packs_weights:
            weights = self.convert(tensors["wei"])
            return lambda: convolve(source, weights, bias, **options)
        packed = pack_for_onednn(tensors["wei"], options, list(source.shape))
        operator = torch.ops.mkldnn._convolution_pointwise.default
        sizes = [options[name] for name in ("padding", "stride", "dilation", "groups")]
        return lambda: operator(source, packed, bias, *sizes, "none", [], "")


class BlockedLayout:
    """oneDNN's layout in blocks of channels, held in torch's opaque mkldnn tensors."""

    is_plain = False

    def convert(self, plain: Tensor) -> Tensor:
        return plain.to_mkldnn()

    def to_plain(self, converted: Tensor) -> Tensor:
        return converted.to_dense() if converted.is_mkldnn else converted

    def convert_weights(self, plain: Tensor) -> Tensor:
        # torch trains only with plain weights.
        return plain

    def pack_weights(self, plain: Tensor, options: Options) -> Tensor:
        return pack_for_onednn(plain, options)

    def convert_bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return None if plain is None else plain.to_mkldnn()

    def list_variants(self, plain: Tensor) -> Tuple[Tensor, ...]:
        """List the blocked output of an identity convolution, and a plain tensor for few channels."""
        num_channels, dense = plain.shape[1], plain.to_mkldnn()
        identity = torch.eye(num_channels, dtype=plain.dtype).reshape(num_channels, num_channels, 1, 1)
        with torch.no_grad():
            return torch.nn.functional.conv2d(dense, identity.to_mkldnn()), dense

    def build_forward(self, convolve: Any, tensors: Tensors, options: Options) -> Callable[[], Tensor]:
        packed = pack_for_onednn(tensors["wei"], options, list(tensors["src"].shape))
        bias = self.convert_bias(tensors.get("bia"))

        def bind_source(source: Tensor) -> Callable[[], Tensor]:
            return lambda: convolve(source, packed, bias, **options)

        return choose_least_reordered(map(bind_source, self.list_variants(tensors["src"])))


def choose_least_reordered(steps: Iterable[Callable[[], Any]]) -> Callable[[], Any]:
    """Choose the step in which oneDNN reports the fewest reordered elements."""
    candidates = list(steps)
    return candidates[0] if len(candidates) == 1 else min(candidates, key=_count_reordered)


def pack_for_onednn(plain: Tensor, options: Options, source_shape: Optional[List[int]] = None) -> Tensor:
    """Reorder the weights to the layout that oneDNN prefers for this convolution."""
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    arguments = (options["padding"], options["stride"], options["dilation"], options["groups"])
    with torch.no_grad():
        packed: Tensor = reorder(plain.to_mkldnn(), *arguments, source_shape)
    return packed


def _can_pack(settings: Settings) -> bool:
    if settings.device.type != "cpu" or not torch.backends.mkldnn.enabled or not torch._C._has_mkldnn:
        return False
    if settings.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return settings.dtype in PACKED_DTYPES


def _count_reordered(step: Callable[[], Any]) -> int:
    with torch.no_grad():
        return sum(call.num_elements for call in record_onednn_calls(step) if call.primitive == "reorder")
