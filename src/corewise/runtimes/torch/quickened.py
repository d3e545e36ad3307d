"""Layers of a model that learns, on the kernels of our own: `corewise.quicken`.

Measured side: standard library and torch only, Python 3.9. The model stays what it is: its parameters, names
and hooks are its own, and what a kernel is not made for is computed by torch.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn

from corewise.dataflow.native.build import CannotBuild, native_module
from corewise.runtimes.torch.lstm_kernel import States, by_rows
from corewise.runtimes.torch.own_kernels import may_take
from corewise.runtimes.torch.winograd import suits
from corewise.runtimes.torch.winograd_training import convolved

Module = TypeVar("Module", bound=nn.Module)
_log = logging.getLogger("corewise.quicken")
CONVOLVES, RUNS = "_conv_forward", "forward"  # what a layer computes by


def quicken(model: Module, enabled: bool = True) -> Module:
    """The model itself, its LSTMs and convolutions of 3 x 3 and 5 x 5 on kernels of our own.

    For float32 on CPUs, in training and evaluation; images lie as channels_last. Results and gradients are
    the same up to rounding. Weights stay where they are, so an optimizer made before goes on with them;
    `enabled=False` leaves all to torch again. CannotBuild says why the kernels cannot be had here.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"corewise.quicken takes a torch.nn.Module, not {type(model).__name__}")
    if not enabled:
        for layer in filter(is_quickened, model.modules()):
            delattr(layer, CONVOLVES if isinstance(layer, nn.Conv2d) else RUNS)
        return model
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv2d) and _convolves(each)]
    lstms = [each for each in model.modules() if isinstance(each, nn.LSTM) and _recurs(each)]
    if convolutions or lstms:
        _require_kernels()
    for convolution in convolutions:
        setattr(convolution, CONVOLVES, functools.partial(_convolution, convolution))
    for lstm in lstms:
        setattr(lstm, RUNS, functools.partial(_lstm, lstm))
    if not any(map(is_quickened, model.modules())):
        _log.warning(
            "corewise.quicken: no layer has a kernel of our own; there are such for LSTMs and convolutions "
            "of 3 x 3 and 5 x 5 with stride 1, no groups and channels in multiples of 16, all in float32"
        )
    return model


def _require_kernels() -> None:
    try:
        native_module()
    except CannotBuild as problem:
        raise CannotBuild(
            f"corewise.quicken: the C++ part that holds the kernels is not here: {problem}"
        ) from None


def num_quickened(model: nn.Module, *, channels_last: bool = True) -> int:
    """How many layers have a kernel of our own; without channels_last convolutions stay torch's."""
    return sum(
        is_quickened(each) and (channels_last or isinstance(each, nn.LSTM)) for each in model.modules()
    )


def is_quickened(layer: nn.Module) -> bool:
    own = vars(layer).get(CONVOLVES) or vars(layer).get(RUNS)
    return isinstance(own, functools.partial) and own.func in (_convolution, _lstm)


def _convolves(layer: nn.Conv2d) -> bool:
    is_torchs = all(
        getattr(type(layer), name) is getattr(nn.Conv2d, name) and name not in vars(layer)
        for name in (CONVOLVES, RUNS)
    )
    return is_torchs and suits(layer)


def _recurs(layer: nn.LSTM) -> bool:
    return type(layer).forward is nn.LSTM.forward and RUNS not in vars(layer) and layer.proj_size == 0


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Any:
    if may_take(x, weight, *(() if bias is None else (bias,))):
        found = convolved(layer, x, weight, bias)
        if found is not None:
            return found
        if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last):
            _tell_of_layout()
    return type(layer)._conv_forward(layer, x, weight, bias)


@functools.cache  # once
def _tell_of_layout() -> None:
    _log.warning(
        "corewise.quicken: convolutions of images that do not lie as channels_last are left to torch: "
        "call .to(memory_format=torch.channels_last) on the model and on each batch"
    )


def _lstm(layer: nn.LSTM, input: Any, hx: Optional[States] = None) -> Any:
    layer._update_flat_weights()  # as torch's forward: parameters may have been exchanged since
    if _is_batch(input, hx) and may_take(input, *(hx or ()), *layer._flat_weights):
        return by_rows(layer, input, hx)
    return type(layer).forward(layer, input, hx)


def _is_batch(input: Any, hx: Any) -> bool:
    """Whether it is a batch of sequences, with states or none; of others torch says what is wrong."""
    given = [input, *hx] if isinstance(hx, (tuple, list)) else [input]
    are_known = hx is None or len(given) == 3
    return are_known and all(isinstance(each, Tensor) and each.dim() == 3 for each in given)
