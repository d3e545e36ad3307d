"""Run layers of a model, in training or inference, on our fast kernels: `corewise.use_fast_kernels`.

Measured side: standard library and torch only, Python 3.9. Parameters, names and hooks of the model do not
change. Torch computes what our kernels do not support.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn

from corewise.accelerate.fast_kernels.kernel_support import can_use_kernels
from corewise.accelerate.fast_kernels.lstm_layer import States, run_lstm_rows
from corewise.accelerate.fast_kernels.winograd_convolution import supports_layer
from corewise.accelerate.fast_kernels.winograd_training import run_convolution
from corewise.accelerate.kernels.build import NativeBuildError, load_native_module

Module = TypeVar("Module", bound=nn.Module)
_log = logging.getLogger("corewise.use_fast_kernels")
# The methods of a layer that are replaced.
CONV_METHOD, FORWARD_METHOD = "_conv_forward", "forward"


def use_fast_kernels(model: Module, enabled: bool = True) -> Module:
    """Run LSTMs and convolutions of 3 x 3 and 5 x 5 of a model on our fast kernels, in place.

    The kernels support float32 on CPUs, in training and inference. Images need memory format channels_last.
    Results and gradients are the same up to rounding. Weights stay where they are, so an existing optimizer
    remains valid.

    Args:
        model: The model whose layers are replaced.
        enabled: False gives all layers back to torch.

    Returns:
        The same model.

    Raises:
        NativeBuildError: The kernels cannot be built on this machine; the text says why.

    Example:
        model = corewise.use_fast_kernels(model).to(memory_format=torch.channels_last)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"corewise.use_fast_kernels takes a torch.nn.Module, not {type(model).__name__}")
    if not enabled:
        for layer in filter(uses_fast_kernels, model.modules()):
            delattr(layer, CONV_METHOD if isinstance(layer, nn.Conv2d) else FORWARD_METHOD)
        return model
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv2d) and _is_supported_convolution(each)]
    lstms = [each for each in model.modules() if isinstance(each, nn.LSTM) and _is_supported_lstm(each)]
    if convolutions or lstms:
        _require_kernels()
    for convolution in convolutions:
        setattr(convolution, CONV_METHOD, functools.partial(_run_convolution, convolution))
    for lstm in lstms:
        setattr(lstm, FORWARD_METHOD, functools.partial(_run_lstm, lstm))
    if not any(map(uses_fast_kernels, model.modules())):
        _log.warning(
            "corewise.use_fast_kernels: no layer of this model has a fast kernel. Supported are float32 "
            "LSTMs, and float32 convolutions of 3 x 3 and 5 x 5 with stride 1, no groups and channels in "
            "multiples of 16"
        )
    return model


def _require_kernels() -> None:
    try:
        load_native_module()
    except NativeBuildError as problem:
        raise NativeBuildError(
            f"corewise.use_fast_kernels: the C++ module with the kernels is not available: {problem}"
        ) from None


def count_fast_layers(model: nn.Module, *, channels_last: bool = True) -> int:
    """Count the layers on fast kernels; without channels_last, torch computes the convolutions."""
    return sum(uses_fast_kernels(each) and (channels_last or isinstance(each, nn.LSTM)) for each in model.modules())


def uses_fast_kernels(layer: nn.Module) -> bool:
    """Return whether this layer runs on a fast kernel."""
    own = vars(layer).get(CONV_METHOD) or vars(layer).get(FORWARD_METHOD)
    return isinstance(own, functools.partial) and own.func in (_run_convolution, _run_lstm)


def _is_supported_convolution(layer: nn.Conv2d) -> bool:
    is_standard = all(
        getattr(type(layer), name) is getattr(nn.Conv2d, name) and name not in vars(layer)
        for name in (CONV_METHOD, FORWARD_METHOD)
    )
    return is_standard and supports_layer(layer)


def _is_supported_lstm(layer: nn.LSTM) -> bool:
    return type(layer).forward is nn.LSTM.forward and FORWARD_METHOD not in vars(layer) and layer.proj_size == 0


def _run_convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Any:
    if can_use_kernels(x, weight, *(() if bias is None else (bias,))):
        result = run_convolution(layer, x, weight, bias)
        if result is not None:
            return result
        if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last):
            _warn_about_layout()
    return type(layer)._conv_forward(layer, x, weight, bias)


@functools.cache
def _warn_about_layout() -> None:
    _log.warning(
        "corewise.use_fast_kernels: torch computes the convolutions, because their images are not "
        "channels_last: call .to(memory_format=torch.channels_last) on the model and on each batch"
    )


def _run_lstm(layer: nn.LSTM, input: Any, hx: Optional[States] = None) -> Any:
    # Parameters may have been replaced since the last call; torch's forward does the same.
    layer._update_flat_weights()
    if _is_batch(input, hx) and can_use_kernels(input, *(hx or ()), *layer._flat_weights):
        return run_lstm_rows(layer, input, hx)
    return type(layer).forward(layer, input, hx)


def _is_batch(input: Any, hx: Any) -> bool:
    """Return whether it is a batch of sequences with valid states or none; torch reports errors of others."""
    tensors = [input, *hx] if isinstance(hx, (tuple, list)) else [input]
    has_valid_states = hx is None or len(tensors) == 3
    return has_valid_states and all(isinstance(each, Tensor) and each.dim() == 3 for each in tensors)
