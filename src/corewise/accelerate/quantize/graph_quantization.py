"""Quantize with torch's own tools: whole graphs of convolutional networks, and LSTM layers.

Measured side: standard library and torch only, Python 3.9. In a graph that torch.fx can trace, values stay in int8
from layer to layer, which saves most of the memory traffic. LSTM layers in int8 exist nowhere else in torch. torch
has announced the removal of these tools; without them layers are quantised one by one.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Iterable, Sequence, Tuple

import torch
from torch import nn

from corewise.accelerate.quantize.int8_layers import has_vnni
from corewise.accelerate.unsupported import Unsupported

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.LSTM)
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


def quantize_graph(module: nn.Module, examples: Sequence[Tuple[Any, ...]]) -> Tuple[nn.Module, str, int]:
    """Return a copy with static scales, the library that multiplies and the number of layers; raise Unsupported."""
    try:
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
    except ImportError as problem:
        raise Unsupported("dtype int8: this torch has no torch.ao.quantization") from problem

    engine = _prepare_engine()
    try:
        network = _use_plain_classes(copy.deepcopy(module).eval())
        observed: Any = prepare_fx(network, get_default_qconfig_mapping(engine), examples[0])
        with torch.inference_mode():
            for inputs in examples:
                observed(*inputs)
        made: nn.Module = convert_fx(observed)
        with torch.inference_mode():
            made(*examples[0])
    except Exception as problem:
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise Unsupported(f"dtype int8: torch.fx cannot quantize this module: {lines[0]}") from problem
    return made, engine, _count_layers(made)


def quantize_recurrent(module: nn.Module) -> Tuple[nn.Module, str, int]:
    """Return a copy with LSTM and linear layers in int8 and dynamic scales, as above; raise Unsupported."""
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as problem:
        raise Unsupported("dtype int8: this torch has no torch.ao.quantization") from problem

    engine = _prepare_engine()
    untyped: Any = quantize_dynamic
    try:
        network = _use_plain_classes(copy.deepcopy(module).eval())
        made: nn.Module = untyped(network, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    except Exception as problem:
        raise Unsupported(f"dtype int8: torch cannot quantize this module: {problem}") from problem
    return made, engine, _count_layers(made)


def _prepare_engine() -> str:
    # Some warnings come at every step, so they are ignored for the whole process.
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message)
    engine = choose_int8_engine()
    torch.backends.quantized.engine = engine
    return engine


def _count_layers(made: nn.Module) -> int:
    num_layers = sum(map(_is_int8_layer, made.modules()))
    if num_layers == 0:
        raise Unsupported("dtype int8: torch found no layer to quantize")
    return num_layers


def choose_int8_engine() -> str:
    """Choose the library that multiplies: oneDNN if the CPU accumulates int8 products in 32 bits.

    Without such instructions sums of pairs would saturate; the x86 engine then uses seven bits.
    """
    engines = torch.backends.quantized.supported_engines
    if "onednn" in engines and has_vnni():
        return "onednn"
    return next((name for name in ("x86", "fbgemm", "qnnpack", "onednn") if name in engines), "none")


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
    return (cls for cls in LAYERS if isinstance(module, cls) and type(module) is not cls)
