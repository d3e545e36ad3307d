"""Quantize a module to int8: convolutions with static scales, or linear and LSTM layers with dynamic ones.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any, Iterable, Mapping, Sequence, Tuple

import torch
from torch import nn

from corewise.accelerate.unsupported import Unsupported

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
DYNAMIC_LAYERS = (nn.Linear, nn.LSTM)
INT8_PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
# Classes of these packages that are no layers.
HELPER_CLASSES = ("Quantize", "DeQuantize", "LinearPackedParams", "PackedParameter")
# torch is moving these functions to another package and warns at every call. The last one says that joined
# inputs need equal scales, which the numerical check decides.
WARNINGS = (
    r"torch\.ao\.quantization is deprecated",
    r"Please use quant_min and quant_max",
    r"torch\.quantize_per_tensor, torch\.quantize_per_channel",
    r"All inputs of this cat operator must share",
)


@dataclasses.dataclass(frozen=True)
class QuantizedModule:
    """A module in int8, how its scales are found (static or dynamic) and the library that multiplies."""

    module: nn.Module
    scaling: str
    engine: str
    num_layers: int


def quantize(model: nn.Module, *examples: Tuple[Any, ...]) -> nn.Module:
    """Return a copy of the model in int8, as `dtype: int8` measures it; the model itself does not change.

    Args:
        model: A module in evaluation mode.
        examples: The inputs of one step each, as a tuple. Scales of convolutions are calibrated on them, so
            they should resemble later inputs.

    Raises:
        ValueError: torch has no int8 layers for the model.

    Example:
        small = corewise.quantize(model.eval(), (batch,))
    """
    if not examples or not all(isinstance(each, tuple) for each in examples):
        raise ValueError("quantize(model, (batch,), ...): pass the inputs of each step as a tuple")
    try:
        return quantize_module(model, examples).module
    except Unsupported as problem:
        raise ValueError(str(problem)) from problem


def quantize_module(module: nn.Module, examples: Sequence[Tuple[Any, ...]]) -> QuantizedModule:
    """Quantize a copy to int8, calibrated on the inputs of a few steps; raise Unsupported if torch cannot."""
    # Some warnings come at every step, so they are ignored for the whole process.
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message)
    engine = torch.backends.quantized.engine = choose_int8_engine()
    has_convolutions = any(isinstance(m, CONVOLUTIONS) for m in module.modules())
    made = _quantize_statically(module, examples, engine) if has_convolutions else _quantize_dynamically(module)
    num_layers = sum(map(_is_int8_layer, made.modules()))
    if num_layers == 0:
        raise Unsupported("dtype int8: this module has no convolution, linear or LSTM layer")
    return QuantizedModule(made, "static" if has_convolutions else "dynamic", str(engine), num_layers)


def choose_int8_engine() -> str:
    """Choose the library that multiplies: oneDNN if the CPU accumulates int8 products in 32 bits.

    Without such instructions sums of pairs would saturate; the x86 engine then uses seven bits.
    """
    engines = torch.backends.quantized.supported_engines
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if "onednn" in engines and any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8")):
        return "onednn"
    return next((name for name in ("x86", "fbgemm", "qnnpack", "onednn") if name in engines), "none")


def _quantize_statically(module: nn.Module, examples: Sequence[Tuple[Any, ...]], engine: str) -> nn.Module:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    network = _use_plain_classes(copy.deepcopy(module).eval())
    try:
        observed: Any = prepare_fx(network, get_default_qconfig_mapping(engine), examples[0])
        with torch.inference_mode():
            for inputs in examples:
                observed(*inputs)
        made: nn.Module = convert_fx(observed)
        with torch.inference_mode():
            made(*examples[0])
    except Exception as problem:
        message = str(problem).strip().splitlines() or [type(problem).__name__]
        raise Unsupported(f"dtype int8: torch.fx cannot quantize this module: {message[0]}") from problem
    return made


def _quantize_dynamically(module: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    network = _use_plain_classes(copy.deepcopy(module).eval())
    untyped: Any = quantize_dynamic
    made: nn.Module = untyped(network, set(DYNAMIC_LAYERS), dtype=torch.qint8)
    return made


def _is_int8_layer(module: nn.Module) -> bool:
    cls = type(module)
    return cls.__module__.startswith(INT8_PACKAGES) and cls.__name__ not in HELPER_CLASSES


def _use_plain_classes(module: nn.Module) -> nn.Module:
    """Turn subclasses that compute as torch's layers into these: torch quantizes only its own classes."""
    for each in module.modules():
        for cls in _list_base_classes(each):
            if type(each).forward is cls.forward:
                each.__class__ = cls
    return module


def _list_base_classes(module: nn.Module) -> Iterable[Any]:
    classes = (*CONVOLUTIONS, *DYNAMIC_LAYERS)
    return (cls for cls in classes if isinstance(module, cls) and type(module) is not cls)
