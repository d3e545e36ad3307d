"""Layers of a model that learns, on the kernels of our own: `corewise.quicken`.

Measured side: standard library and torch only, Python 3.9. The model stays what it is: its parameters, names
and hooks are its own, and what a kernel is not made for is computed by torch.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn

from corewise.dataflow.native.build import native_module
from corewise.runtimes.torch.row_lstms import States, by_rows
from corewise.runtimes.torch.winograd import suits
from corewise.runtimes.torch.winograd_training import convolved

Module = TypeVar("Module", bound=nn.Module)
CONVOLVES, RUNS = "_conv_forward", "forward"  # what a layer computes by


def quicken(model: Module, enabled: bool = True) -> Module:
    """The model itself, its LSTMs and convolutions of 3 x 3 and 5 x 5 on kernels of our own.

    For float32 on CPUs, in training and evaluation; images lie as channels_last. Results and gradients are
    the same up to rounding. Weights stay where they are, so an optimizer made before goes on with them;
    `enabled=False` leaves all to torch again. CannotBuild says why the kernels cannot be had here.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"corewise.quicken takes a torch.nn.Module, not {type(model).__name__}")
    if enabled:
        native_module()
    for layer in model.modules():
        if not enabled and is_quickened(layer):
            delattr(layer, CONVOLVES if isinstance(layer, nn.Conv2d) else RUNS)
        elif enabled and isinstance(layer, nn.Conv2d) and _convolves(layer):
            setattr(layer, CONVOLVES, functools.partial(_convolution, layer))
        elif enabled and isinstance(layer, nn.LSTM) and _recurs(layer):
            setattr(layer, RUNS, functools.partial(_lstm, layer))
    return model


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
    return is_torchs and suits(layer) and layer.padding_mode == "zeros"


def _recurs(layer: nn.LSTM) -> bool:
    return type(layer).forward is nn.LSTM.forward and RUNS not in vars(layer) and layer.proj_size == 0


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Any:
    if _is_ours(x, weight, bias):
        found = convolved(layer, x, weight, bias)
        if found is not None:
            return found
    return type(layer)._conv_forward(layer, x, weight, bias)


def _lstm(layer: nn.LSTM, input: Any, hx: Optional[States] = None) -> Any:
    if isinstance(input, Tensor) and input.dim() == 3 and _is_ours(input, *(hx or ()), *layer._flat_weights):
        return by_rows(layer, input, hx)
    return type(layer).forward(layer, input, hx)


def _is_ours(*tensors: Any) -> bool:
    """Whether our kernels may compute with these: float32 on the CPU, nothing recorded or transformed."""
    is_recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    if is_recorded or torch.is_autocast_enabled("cpu"):
        return False
    if torch.autograd.forward_ad._current_level >= 0:  # derivatives along a direction
        return False
    return all(
        type(each) in (Tensor, nn.Parameter)
        and each.dtype == torch.float32
        and each.device.type == "cpu"
        and each.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(each)
        for each in tensors
        if each is not None
    )
