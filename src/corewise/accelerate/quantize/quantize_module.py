"""Quantize a module to int8 for inference on the CPU: those of its layers that gain and stay exact.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import statistics
from collections.abc import Mapping as MappingClass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corewise.accelerate.equivalence import list_leaves, restore_module
from corewise.accelerate.quantize.graph_quantization import quantize_graph, quantize_recurrent
from corewise.accelerate.quantize.int8_layers import Int8Convolution, Int8Layer, has_int8_operators
from corewise.accelerate.quantize.layer_choice import (
    LARGEST_LAYER_ERROR,
    LARGEST_TIME_RATIO,
    Signature,
    compare_layers,
    measure_alternately,
    measure_ratio,
    measure_time_ratio,
    observe_layers,
)
from corewise.accelerate.unsupported import Unsupported

# The largest relative error of an output (L2 norms): the signal is then 20 dB above the noise. Networks with
# 8-bit layers stay below it; results beyond it usually mean that values with outliers were rounded to nothing.
LARGEST_ERROR = 0.1
# Results in float32 whose norms were folded differ from the original ones by rounding only.
FOLDING_ERROR = 1e-4
# Layers that return to float32 at once, as a fraction of all, until the error is small enough.
FALLBACK_FRACTION = 0.1
# torch's tools replace classes and lose methods of the module, so they must gain this much over single layers.
WHOLE_TIME_RATIO = 0.9
# Time for comparing two modules, in seconds.
MAX_COMPARING_S = 2.0
# The module's time in int8 must be below this fraction of its time in float32: measured times vary by a few per cent.
LARGEST_MODULE_RATIO = 0.97
SEED = 0

Example = Union[Tuple[Any, ...], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class QuantizedModule:
    """A module in int8 and how it was made.

    Attributes:
        scaling: How activations are scaled: static (from the examples), dynamic (at each call), or both.
        engine: The library that multiplies.
        method: `layers` if single layers compute in int8, `graph` if torch.fx quantised the whole, `recurrent` if
            torch replaced LSTMs.
        num_layers: Layers in int8.
        num_float_layers: Layers that could be in int8 and stay in float32, by time or error.
        error: The largest relative error (L2 norm) of an output on the examples.
    """

    module: nn.Module
    scaling: str
    engine: str
    num_layers: int
    method: str = "layers"
    num_float_layers: int = 0
    error: float = 0.0


def quantize(model: nn.Module, *examples: Example, is_measured: bool = True) -> nn.Module:
    """Return a copy of the model in int8, as `dtype: int8` measures it; the model itself does not change.

    Linear layers and convolutions compute in int8 if they are faster so and exact enough on the examples. All
    else is as in the model: classes, methods, names of weights, which also stay in float32.

    Args:
        model: A module in evaluation mode, with float32 weights on the CPU.
        examples: The inputs of one step each: a tuple, or a mapping of keyword arguments. Ranges of convolutions
            are calibrated on them, so they should resemble later inputs.
        is_measured: Leave layers in float32 that are not faster in int8 here. False quantises all that are exact
            enough, and measures no times.

    Raises:
        ValueError: The model has no layer that gains, or its error would exceed 0.1 (relative L2 norm).

    Example:
        small = corewise.quantize(model.eval(), (batch,))
    """
    if not examples or not all(isinstance(each, (tuple, MappingClass)) for each in examples):
        raise ValueError(
            "quantize(model, (batch,), ...): pass the inputs of each step as a tuple, or as a mapping of keyword "
            "arguments"
        )
    try:
        return quantize_module(model, examples, is_measured=is_measured).module
    except Unsupported as problem:
        raise ValueError(str(problem)) from problem


def quantize_module(module: nn.Module, examples: Sequence[Example], *, is_measured: bool = True) -> QuantizedModule:
    """Quantize a copy to int8, calibrated on the inputs of a few steps; raise Unsupported if it cannot be."""
    with _hold_settings():
        plain = _copy_module(module)
        whole = _try_torch_tools(plain, examples)
        if whole is None:
            return _quantize_layers(plain, examples, is_measured=is_measured)
        if not is_measured:
            return whole
        try:
            single = _quantize_layers(plain, examples, is_measured=True)
        except Unsupported as problem:
            if _compare_times(whole.module, plain, examples[0]) < 1.0:
                return whole
            raise Unsupported("dtype int8: no layer of this module is faster in int8 on this machine") from problem
        is_faster = _compare_times(whole.module, single.module, examples[0]) < WHOLE_TIME_RATIO
        return whole if is_faster else single


@contextlib.contextmanager
def _hold_settings() -> Iterator[None]:
    """Compute without gradients and autocast, and leave the state of random numbers as it was."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        yield


def _copy_module(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module).eval().requires_grad_(False)
    except Exception as problem:
        raise Unsupported(f"dtype int8: the module cannot be copied: {_read_message(problem)}") from problem


def _try_torch_tools(plain: nn.Module, examples: Sequence[Example]) -> Optional[QuantizedModule]:
    """Quantize a convolutional network or LSTMs; return None if torch cannot or the error is too large."""
    positional = [each for each in examples if isinstance(each, tuple)]
    try:
        with restore_module(plain):
            if any(isinstance(part, nn.Conv2d) for part in plain.modules()) and len(positional) == len(examples):
                method, made = "graph", quantize_graph(plain, positional)
            elif any(isinstance(part, nn.LSTM) for part in plain.modules()):
                method, made = "recurrent", quantize_recurrent(plain)
            else:
                return None
        network, engine, num_layers = made
        error = compute_error(*(_run_all(each, examples) for each in (plain, network)))
    except Exception:
        # Layers are quantised one by one, and errors of the module itself appear there.
        return None
    if not error <= LARGEST_ERROR:
        return None
    scaling = "static" if method == "graph" else "dynamic"
    return QuantizedModule(network, scaling, engine, num_layers, method, error=error)


def _quantize_layers(plain: nn.Module, examples: Sequence[Example], *, is_measured: bool) -> QuantizedModule:
    """Let layers of this module compute in int8; if it raises Unsupported, none does."""
    if not has_int8_operators():
        raise Unsupported("dtype int8: this torch has no int8 operators of oneDNN")
    run = lambda: _run_all(plain, examples)  # noqa: E731
    try:
        wanted, functions, signatures, inputs = observe_layers(plain, run)
    except Exception as problem:
        raise Unsupported(f"dtype int8: the module fails on the example: {_read_message(problem)}") from problem
    if not functions:
        raise Unsupported(
            "dtype int8: this module has no convolution or linear layer that runs on the example, with float32 "
            "weights on the CPU"
        )
    _require_finite(wanted)
    num_possible = len(functions)
    errors = _choose_exact(functions, signatures, wanted, run)
    chosen = list(errors)
    _use_layout(chosen, run)
    if is_measured:
        chosen = _choose_fast(chosen, signatures, inputs)
        if not chosen:
            raise Unsupported(
                "dtype int8: no layer of this module is faster in int8 on this machine; is_measured=False quantises "
                "all the same"
            )
    inputs.clear()
    error = _attach_exact(chosen, errors, wanted, run)
    if is_measured and not _is_faster(plain, chosen, examples[0]):
        raise Unsupported("dtype int8: int8 is not faster than float32 for this module on this machine")
    scaling = sorted({"static" if isinstance(each, Int8Convolution) else "dynamic" for each in chosen})
    num_float = num_possible - len(chosen)
    return QuantizedModule(plain, " and ".join(scaling), "onednn", len(chosen), num_float_layers=num_float, error=error)


def _is_faster(module: nn.Module, functions: Sequence[Int8Layer], example: Example) -> bool:
    """Return whether the module is faster with these functions, and attach them if so."""

    def switch(is_int8: bool) -> None:
        for function in functions:
            function.attach() if is_int8 else function.detach()

    call = lambda: _run(module, example)  # noqa: E731
    int8_times, float_times = measure_alternately(call, call, MAX_COMPARING_S, switch)
    measures = (min, statistics.median)
    is_faster = all(measure(int8_times) <= LARGEST_MODULE_RATIO * measure(float_times) for measure in measures)
    switch(is_faster)
    return is_faster


def _choose_exact(
    functions: Sequence[Int8Layer], signatures: Dict[Int8Layer, List[Signature]], wanted: Any, run: Callable[[], Any]
) -> Dict[Int8Layer, float]:
    """Choose functions whose error is small, and whether norms are folded; return them with their errors."""
    got, comparisons = compare_layers(functions, run)
    if not compute_error(wanted, got) <= FOLDING_ERROR:
        # Something other than the norm reads the output of a convolution.
        for function in functions:
            if isinstance(function, Int8Convolution):
                function.norm = None
        got, comparisons = compare_layers(functions, run)
    errors: Dict[Int8Layer, float] = {}
    for function, comparison in comparisons.items():
        exact, error = comparison.choose()
        signatures[exact] = signatures[function]
        if error <= LARGEST_LAYER_ERROR:
            errors[exact] = error
    if not errors:
        raise Unsupported(f"dtype int8: all layers have an error above {LARGEST_LAYER_ERROR} in int8 on the example")
    return errors


def _use_layout(functions: Sequence[Int8Layer], run: Callable[[], Any]) -> None:
    """Let convolutions return channels_last if the module accepts it, or else the layout of their inputs."""
    convolutions = [each for each in functions if isinstance(each, Int8Convolution)]
    if not convolutions:
        return
    for each in convolutions:
        each.attach()
    try:
        run()
    except Exception:
        for each in convolutions:
            each.keeps_layout = True
    finally:
        for each in convolutions:
            each.detach()


def _choose_fast(
    functions: Sequence[Int8Layer], signatures: Dict[Int8Layer, List[Signature]], inputs: Mapping[Signature, Tensor]
) -> List[Int8Layer]:
    """Choose functions that are faster than float32, measured once for each size."""
    ratios: Dict[Tuple[Any, ...], float] = {}
    chosen = []
    for function in functions:
        slowest = 0.0
        for signature in signatures[function]:
            has_norm = isinstance(function, Int8Convolution) and function.norm is not None
            size = (signature, getattr(function, "by_row", has_norm))
            if size not in ratios:
                ratios[size] = measure_time_ratio(function, inputs[signature])
            slowest = max(slowest, ratios[size])
        if slowest <= LARGEST_TIME_RATIO:
            chosen.append(function)
    return chosen


def _attach_exact(
    functions: List[Int8Layer], errors: Mapping[Int8Layer, float], wanted: Any, run: Callable[[], Any]
) -> float:
    """Use int8 where the module's error allows it; return the error.

    The least exact layers return to float32, and leave the list, until the error is small enough.
    """
    functions.sort(key=lambda each: errors[each])
    step = max(1, round(FALLBACK_FRACTION * len(functions)))
    for function in functions:
        function.attach()
    while True:
        error = compute_error(wanted, run())
        if error <= LARGEST_ERROR:
            return error
        for function in functions[-step:]:
            function.detach()
        del functions[-step:]
        if not functions:
            raise Unsupported(
                f"dtype int8: the outputs have a relative error of {error:.2f} on the example, more than "
                f"{LARGEST_ERROR}, with any layer in int8"
            )


def compute_error(wanted: Any, got: Any) -> float:
    """Return the largest relative error (L2 norm) of a tensor among results; infinity if they do not match."""
    one, other = ([each for each in list_leaves(result) if isinstance(each, Tensor)] for result in (wanted, got))
    if len(one) != len(other):
        return float("inf")
    return max(map(_compute_tensor_error, one, other), default=0.0)


def _compute_tensor_error(wanted: Tensor, got: Tensor) -> float:
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf")
    if not wanted.is_floating_point():
        return 0.0
    # Masked values are infinite in both.
    is_masked = wanted.isinf() & (wanted == got)
    one, other = (each.double().masked_fill(is_masked, 0.0) for each in (wanted, got))
    size, difference = float(one.norm()), float((one - other).norm())
    if difference != difference:
        return float("inf")
    # Results that cancel to almost nothing consist of rounding errors.
    return difference / max(size, 1e-6 * one.numel() ** 0.5) if difference else 0.0


def _require_finite(results: Any) -> None:
    if any(isinstance(each, Tensor) and bool(each.isnan().any()) for each in list_leaves(results)):
        raise Unsupported(
            "dtype int8: the module returns NaN for the examples, so results cannot be compared; pass other inputs"
        )


def _compare_times(one: nn.Module, other: nn.Module, example: Example) -> float:
    """Return the time of one module divided by the time of another on the example."""
    return measure_ratio(lambda: _run(one, example), lambda: _run(other, example), MAX_COMPARING_S)


def _run_all(module: nn.Module, examples: Sequence[Example]) -> List[Any]:
    results = []
    for example in examples:
        with restore_module(module):
            torch.manual_seed(SEED)
            results.append(_run(module, example))
    return results


def _run(module: nn.Module, example: Example) -> Any:
    # A module may write to its inputs.
    copied = {name: _copy_tensors(each) for name, each in example.items()} if isinstance(example, MappingClass) else {}
    given = () if isinstance(example, MappingClass) else tuple(map(_copy_tensors, example))
    return module(*given, **copied)


def _copy_tensors(value: Any) -> Any:
    return pytree.tree_map(lambda each: each.clone() if isinstance(each, Tensor) else each, value)


def _read_message(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
