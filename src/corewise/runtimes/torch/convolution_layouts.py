"""How a convolution's tensors lie: plain, channels last, or in oneDNN's blocks.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, Optional, Protocol, Tuple

import torch
from torch import Tensor

from corewise.runtimes.torch.onednn_calls import onednn_calls
from corewise.runtimes.torch.settings import Settings
from corewise.workloads.primitives.convolution import Asked

PACKED_DTYPES = ("float32", "bfloat16")  # of which oneDNN takes weights prepared beforehand
Tensors = Mapping[str, Tensor]
Options = Mapping[str, Any]


class Layouts(Protocol):
    """One layout: what comes plain is arranged before the operator, and its result made plain again."""

    is_plain: bool

    def arrange(self, plain: Tensor) -> Tensor: ...

    def plain(self, arranged: Tensor) -> Tensor: ...

    def ready(self, plain: Tensor) -> Tuple[Tensor, ...]:
        """The ways in which a neighbouring layer may have left it; the kernel likes one of them best."""
        ...

    def weights(self, plain: Tensor) -> Tensor:
        """Weights as a model that is trained holds them."""
        ...

    def inference_weights(self, plain: Tensor, options: Options) -> Tensor:
        """Weights as a model that is only evaluated holds them."""
        ...

    def bias(self, plain: Optional[Tensor]) -> Optional[Tensor]: ...

    def forward_alone(self, convolve: Any, given: Tensors, options: Options) -> Callable[[], Tensor]:
        """The kernel with as few reorders as torch allows: nothing is recorded for a backward pass."""
        ...


def layouts_for(asked: Asked, settings: Settings) -> Layouts:
    """The layout that a trial asks for."""
    if settings.memory_format == "blocked":
        return Blocked()
    if settings.memory_format == "channels_last":
        return ChannelsLast(packs=_packs(settings))
    return Plain()


class Plain:
    """Channel by channel, as tensors come: the operator reorders inside."""

    is_plain = True

    def arrange(self, plain: Tensor) -> Tensor:
        return plain

    plain = weights = arrange

    def ready(self, plain: Tensor) -> Tuple[Tensor, ...]:
        return (plain,)

    def inference_weights(self, plain: Tensor, options: Options) -> Tensor:
        return plain

    def bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return plain

    def forward_alone(self, convolve: Any, given: Tensors, options: Options) -> Callable[[], Tensor]:
        raise NotImplementedError("a plain layout is refused before: the operator reorders inside")


class ChannelsLast:
    """Pixel by pixel; oneDNN's newer kernels and cuDNN's take it as it is."""

    is_plain = False

    def __init__(self, packs: bool) -> None:
        self._packs = packs

    def arrange(self, plain: Tensor) -> Tensor:
        return plain.contiguous(memory_format=torch.channels_last)

    weights = arrange

    def ready(self, plain: Tensor) -> Tuple[Tensor, ...]:
        return (self.arrange(plain),)

    def inference_weights(self, plain: Tensor, options: Options) -> Tensor:
        return self.arrange(plain)

    def plain(self, arranged: Tensor) -> Tensor:
        return arranged.contiguous()

    def bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return plain

    def forward_alone(self, convolve: Any, given: Tensors, options: Options) -> Callable[[], Tensor]:
        source, bias = self.arrange(given["src"]), given.get("bia")
        if not self._packs:
            weights = self.arrange(given["wei"])
            return lambda: convolve(source, weights, bias, **options)
        packed = packed_weights(given["wei"], options, list(source.shape))
        operator = torch.ops.mkldnn._convolution_pointwise.default
        constant: Tuple[Any, ...] = (
            options["padding"],
            options["stride"],
            options["dilation"],
            options["groups"],
            "none",
            [],
            "",
        )
        return lambda: operator(source, packed, bias, *constant)


class Blocked:
    """oneDNN's own layout, of blocks of channels; torch knows it as tensors of another kind."""

    is_plain = False

    def arrange(self, plain: Tensor) -> Tensor:
        return plain.to_mkldnn()

    def plain(self, arranged: Tensor) -> Tensor:
        return arranged.to_dense() if arranged.is_mkldnn else arranged

    def weights(self, plain: Tensor) -> Tensor:
        return plain  # torch trains with plain weights only

    def inference_weights(self, plain: Tensor, options: Options) -> Tensor:
        return packed_weights(plain, options)

    def bias(self, plain: Optional[Tensor]) -> Optional[Tensor]:
        return None if plain is None else plain.to_mkldnn()

    def ready(self, plain: Tensor) -> Tuple[Tensor, ...]:
        """In blocks, as a convolution that changes nothing leaves it; and not, as few channels are liked."""
        num_channels, dense = plain.shape[1], plain.to_mkldnn()
        same = torch.eye(num_channels, dtype=plain.dtype).reshape(num_channels, num_channels, 1, 1)
        with torch.no_grad():
            return torch.nn.functional.conv2d(dense, same.to_mkldnn()), dense

    def forward_alone(self, convolve: Any, given: Tensors, options: Options) -> Callable[[], Tensor]:
        packed = packed_weights(given["wei"], options, list(given["src"].shape))
        bias = self.bias(given.get("bia"))

        def on(source: Tensor) -> Callable[[], Tensor]:
            return lambda: convolve(source, packed, bias, **options)

        return least_reordered(map(on, self.ready(given["src"])))


def least_reordered(steps: Iterable[Callable[[], Any]]) -> Callable[[], Any]:
    """The step in which oneDNN has to reorder least, as it says itself."""
    candidates = list(steps)
    return candidates[0] if len(candidates) == 1 else min(candidates, key=_num_reordered)


def packed_weights(plain: Tensor, options: Options, source_shape: Optional[List[int]] = None) -> Tensor:
    """The weights as oneDNN wants them for this convolution."""
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    arguments = (options["padding"], options["stride"], options["dilation"], options["groups"])
    with torch.no_grad():
        packed: Tensor = reorder(plain.to_mkldnn(), *arguments, source_shape)
    return packed


def _packs(settings: Settings) -> bool:
    if settings.device.type != "cpu" or not torch.backends.mkldnn.enabled or not torch._C._has_mkldnn:
        return False
    if settings.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return settings.dtype in PACKED_DTYPES


def _num_reordered(step: Callable[[], Any]) -> int:
    with torch.no_grad():
        return sum(call.num_elements for call in onednn_calls(step) if call.kind == "reorder")
