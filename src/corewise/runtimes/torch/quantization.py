"""A module in int8: convolutions with scales fixed beforehand, or linear and LSTM layers scaled as they run.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any, Iterable, Mapping, Sequence, Tuple

import torch
from torch import nn

from corewise.runtimes.base import Infeasible

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SCALED_AS_THEY_RUN = (nn.Linear, nn.LSTM)
INT8_PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
NO_LAYERS = ("Quantize", "DeQuantize", "LinearPackedParams", "PackedParameter")  # of these packages
# torch moves these functions to a package of their own; until then they warn at every turn.
WARNINGS = (
    r"torch\.ao\.quantization is deprecated",
    r"Please use quant_min and quant_max",
    r"torch\.quantize_per_tensor, torch\.quantize_per_channel",
    r"All inputs of this cat operator must share",  # or be inexact: the numerical check decides
)


@dataclasses.dataclass(frozen=True)
class Quantised:
    """The module in int8, and how it came to its scales."""

    module: nn.Module
    how: str  # static | dynamic
    engine: str
    num_layers: int


def quantize(model: nn.Module, *examples: Tuple[Any, ...]) -> nn.Module:
    """A copy of the model in int8, as `dtype: int8` measures it; the model itself is left alone.

    examples: the inputs of one step each, as a tuple; scales of convolutions are learnt from them, so let
    them be like those to come. Raises ValueError where torch has no int8 for the model.
    """
    if not examples or not all(isinstance(each, tuple) for each in examples):
        raise ValueError("quantize(model, (batch,), ...): give the inputs of a step, as a tuple")
    try:
        return quantised(model, examples).module
    except Infeasible as problem:
        raise ValueError(str(problem)) from problem


def quantised(module: nn.Module, examples: Sequence[Tuple[Any, ...]]) -> Quantised:
    """A copy whose products are of 8-bit whole numbers; Infeasible where torch has none for its layers.

    Static scales are learnt from the examples, the inputs of a few steps.
    """
    for message in WARNINGS:  # some come at every step: for the whole process
        warnings.filterwarnings("ignore", message)
    engine = torch.backends.quantized.engine = int8_engine()
    has_convolutions = any(isinstance(m, CONVOLUTIONS) for m in module.modules())
    made = _static(module, examples, engine) if has_convolutions else _dynamic(module)
    num_layers = sum(map(_is_int8_layer, made.modules()))
    if num_layers == 0:
        raise Infeasible("dtype int8: this module has no convolution, linear or LSTM layer")
    return Quantised(made, "static" if has_convolutions else "dynamic", str(engine), num_layers)


def int8_engine() -> str:
    """The library that multiplies: oneDNN where the CPU adds up products of bytes in whole numbers.

    Without such instructions sums of pairs would saturate; the x86 engine then uses seven bits.
    """
    engines = torch.backends.quantized.supported_engines
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if "onednn" in engines and any(able.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8")):
        return "onednn"
    return next((name for name in ("x86", "fbgemm", "qnnpack", "onednn") if name in engines), "none")


def _static(module: nn.Module, examples: Sequence[Tuple[Any, ...]], engine: str) -> nn.Module:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    network = _of_plain_layers(copy.deepcopy(module).eval())
    try:
        observed: Any = prepare_fx(network, get_default_qconfig_mapping(engine), examples[0])
        with torch.inference_mode():
            for inputs in examples:
                observed(*inputs)
        made: nn.Module = convert_fx(observed)
        with torch.inference_mode():
            made(*examples[0])
    except Exception as problem:
        said = str(problem).strip().splitlines() or [type(problem).__name__]
        raise Infeasible(f"dtype int8: torch.fx cannot quantise this module: {said[0]}") from problem
    return made


def _dynamic(module: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    network = _of_plain_layers(copy.deepcopy(module).eval())
    quantise: Any = quantize_dynamic
    made: nn.Module = quantise(network, set(SCALED_AS_THEY_RUN), dtype=torch.qint8)
    return made


def _is_int8_layer(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith(INT8_PACKAGES) and kind.__name__ not in NO_LAYERS


def _of_plain_layers(module: nn.Module) -> nn.Module:
    """The module with its layers in torch's own classes, which are all that torch can quantise."""
    for each in module.modules():
        for kind in _kinds_of(each):
            if type(each).forward is kind.forward:
                each.__class__ = kind  # what a subclass adds is how it is made
    return module


def _kinds_of(module: nn.Module) -> Iterable[Any]:
    kinds = (*CONVOLUTIONS, *SCALED_AS_THEY_RUN)
    return (kind for kind in kinds if isinstance(module, kind) and type(module) is not kind)
