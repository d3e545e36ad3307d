"""Choose the layers of a module that compute in int8: by their error and their time on example inputs.

Measured side: standard library and torch only, Python 3.9. Nothing is traced. The layers are observed while the
module runs on the examples, so any module that runs can be quantised.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from corewise.accelerate.freeze.weight_folding import has_hooks
from corewise.accelerate.quantize.int8_layers import (
    FORWARD,
    LEVELS,
    SMALLEST_SCALE,
    Int8Convolution,
    Int8Layer,
    Int8Linear,
    is_convolution,
    is_linear,
    is_transposed_linear,
    read_version,
)

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# Relative error of a linear layer from which on its rows are scaled one by one. Normally distributed
# activations cause 0.005 to 0.015.
ROW_SCALES_ERROR = 0.02
# A layer with a larger relative error computes in float32. Its signal would be less than 20 dB above the noise.
LARGEST_LAYER_ERROR = 0.1
# A layer in int8 must be faster than this fraction of its time in float32: measured times are not exact.
LARGEST_TIME_RATIO = 0.95
# Fractions of the observed range to which a convolution's inputs may be clipped.
CLIPS = (0.9, 0.7, 0.5, 0.3)
# Clipped values err in one direction, so the mean square error must fall to this fraction.
CLIPPING_GAIN = 0.5
SAMPLED_VALUES = 4096
SAMPLED_CALLS = 16
MIN_PAIRS, MAX_PAIRS = 3, 50
# Time for measuring one size of a layer, in seconds.
MAX_MEASURING_S = 0.1
# int8 that is slower than this multiple of float32 is not measured further.
HOPELESS_TIME_RATIO = 3.0

Signature = Tuple[Any, ...]


class Observer:
    """Takes the place of a layer's function: computes in float32 and records inputs."""

    def __init__(self, layer: nn.Module, inputs: Dict[Signature, Tensor]) -> None:
        self.layer: Any = layer
        self._inputs = inputs
        self.num_calls = 0
        self.signatures: List[Signature] = []
        self.low, self.high = 0.0, 0.0
        self.samples: List[Tensor] = []
        # The latest output and its version, by which a norm that reads it is recognised.
        self._output: Callable[[], Any] = lambda: None
        self._version = 0
        self.is_supported = True
        # The module's own random numbers must not depend on the samples.
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = type(self.layer).forward(self.layer, *args, **kwargs)
        x = args[0] if args else next(iter(kwargs.values()), None)
        if len(args) + len(kwargs) != 1 or not isinstance(x, Tensor) or x.dtype != torch.float32:
            self.is_supported = False
            return made
        if x.numel() == 0:
            return made
        self.num_calls += 1
        self._record_input(x)
        self._output, self._version = weakref.ref(made), read_version(made)
        return made

    def has_returned(self, x: Any) -> bool:
        """Return whether this is the latest output, unchanged."""
        return self._output() is x and read_version(x) == self._version

    def _record_input(self, x: Tensor) -> None:
        weight = self.layer.weight
        signature = (type(self.layer), tuple(weight.shape), tuple(x.shape), x.stride(), _read_sizes(self.layer))
        if signature not in self.signatures:
            self.signatures.append(signature)
        if signature not in self._inputs:
            self._inputs[signature] = x.clone()
        if is_convolution_class(self.layer):
            low, high = (each.item() for each in torch.aminmax(x))
            self.low, self.high = min(self.low, low), max(self.high, high)
            if len(self.samples) < SAMPLED_CALLS:
                places = torch.randint(x.numel(), (SAMPLED_VALUES,), generator=self._generator)
                self.samples.append(x.flatten()[places])


class NormObserver:
    """Takes the place of a norm's function and records whose output it reads."""

    def __init__(self, norm: nn.Module, convolutions: Sequence[Observer]) -> None:
        self.norm, self._convolutions = norm, convolutions
        self.num_calls = 0
        self.readings: List[Optional[Observer]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        x = args[0] if len(args) == 1 and not kwargs else None
        source = next((each for each in self._convolutions if x is not None and each.has_returned(x)), None)
        if source not in self.readings:
            self.readings.append(source)
        return type(self.norm).forward(self.norm, *args, **kwargs)


class Comparison:
    """Takes the place of a layer's function: computes in float32 and records the error of int8."""

    def __init__(self, function: Int8Layer) -> None:
        self.function = function
        self.rows: Optional[Int8Linear] = None
        if isinstance(function, Int8Linear):
            self.rows = Int8Linear(function.layer, is_transposed=function.is_transposed, by_row=True)
        self._squares = [0.0, 0.0, 0.0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wanted = self.function.compute_float(*args, **kwargs)
        scale = _sum_squares(wanted)
        try:
            error = row_error = _sum_squares(wanted, self.function(*args, **kwargs))
            if self.rows is not None and error > ROW_SCALES_ERROR**2 * scale:
                row_error = _sum_squares(wanted, self.rows(*args, **kwargs))
        except RuntimeError:
            # oneDNN lacks this operator on this CPU, or for these sizes.
            error = row_error = math.inf
        self._squares = [a + b for a, b in zip(self._squares, (scale, error, row_error))]
        return wanted

    def choose(self) -> Tuple[Int8Layer, float]:
        """Return the more exact function, with scales of the tensor or of rows, and its relative error."""
        scale, error, row_error = (each**0.5 for each in self._squares)
        if self.rows is not None and row_error < error / 2:
            return self.rows, _divide(row_error, scale)
        return self.function, _divide(error, scale)


def observe_layers(
    module: nn.Module, run: Callable[[], Any]
) -> Tuple[Any, List[Int8Layer], Dict[Int8Layer, List[Signature]], Dict[Signature, Tensor]]:
    """Run the module in float32; return the results, the int8 functions of layers, their sizes, and inputs."""
    inputs: Dict[Signature, Tensor] = {}
    layers = [
        part for part in module.modules() if is_linear(part) or is_transposed_linear(part) or is_convolution(part)
    ]
    observers = [Observer(layer, inputs) for layer in layers]
    convolutions = [each for each in observers if is_convolution(each.layer) and not has_hooks(each.layer)]
    norms = [NormObserver(part, convolutions) for part in module.modules() if _is_foldable(part)]
    with attach_functions([*[(o.layer, o) for o in observers], *[(n.norm, n) for n in norms]]):
        results = run()
    norm_of = {}
    for norm in norms:
        source = norm.readings[0] if len(norm.readings) == 1 else None
        if source is not None and source.num_calls == norm.num_calls:
            norm_of[source] = norm.norm
    signatures: Dict[Int8Layer, List[Signature]] = {}
    for observer in observers:
        if observer.num_calls and observer.is_supported:
            signatures[_build_function(observer, norm_of.get(observer))] = observer.signatures
    return results, list(signatures), signatures, inputs


def compare_layers(functions: Sequence[Int8Layer], run: Callable[[], Any]) -> Tuple[Any, Dict[Int8Layer, Comparison]]:
    """Run the module in float32, with folded norms; return the results and the comparison of each layer."""
    comparisons = {function: Comparison(function) for function in functions}
    for function in functions:
        function.attach()
    try:
        with attach_functions([(function.layer, each) for function, each in comparisons.items()]):
            results = run()
    finally:
        for function in functions:
            function.detach()
    return results, comparisons


def measure_time_ratio(function: Int8Layer, x: Tensor) -> float:
    """Return the time in int8 divided by the time in float32, from alternating calls."""
    # Outputs of earlier int8 convolutions are channels_last.
    is_image = x.dim() == 4 and isinstance(function, Int8Convolution) and not function.keeps_layout
    given = x.contiguous(memory_format=torch.channels_last) if is_image else x
    return measure_ratio(lambda: function(given), lambda: function.compute_float(x), MAX_MEASURING_S)


def measure_ratio(one: Callable[[], Any], other: Callable[[], Any], limit_s: float) -> float:
    """Return the time of one function divided by the time of another: the shortest of alternating calls.

    Other load only adds time, so the shortest call of each is the least disturbed one.
    """
    one_times, other_times = measure_alternately(one, other, limit_s)
    return min(one_times) / max(min(other_times), 1e-9)


def measure_alternately(
    one: Callable[[], Any],
    other: Callable[[], Any],
    limit_s: float,
    switch: Callable[[bool], Any] = lambda is_one: None,
) -> Tuple[List[float], List[float]]:
    """Return the seconds of alternating calls; `switch` is called before each and not timed."""
    for is_one, call in ((True, one), (False, other)):
        switch(is_one)
        call()
    one_times: List[float] = []
    other_times: List[float] = []
    until = time.perf_counter() + limit_s
    while len(one_times) < MIN_PAIRS or (len(one_times) < MAX_PAIRS and time.perf_counter() < until):
        switch(True)
        one_times.append(_time_call(one))
        switch(False)
        other_times.append(_time_call(other))
        if len(one_times) > 1 and min(one_times) > HOPELESS_TIME_RATIO * max(other_times):
            break
    return one_times, other_times


@contextlib.contextmanager
def attach_functions(functions: Sequence[Tuple[nn.Module, Any]]) -> Iterator[None]:
    """Let functions take the place of those of modules."""
    before = [(module, vars(module).get(FORWARD)) for module, _ in functions]
    for module, function in functions:
        setattr(module, FORWARD, function)
    try:
        yield
    finally:
        for module, earlier in before:
            vars(module).pop(FORWARD, None)
            if earlier is not None:
                setattr(module, FORWARD, earlier)


def is_convolution_class(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Conv1d, nn.Conv2d))


def _is_supported(part: nn.Module) -> bool:
    return is_linear(part) or is_transposed_linear(part) or is_convolution(part)


def _build_function(observer: Observer, norm: Optional[nn.Module]) -> Int8Layer:
    layer = observer.layer
    if is_convolution_class(layer):
        return Int8Convolution(layer, *_choose_range(observer), norm)
    return Int8Linear(layer, is_transposed=not isinstance(layer, nn.Linear))


def _choose_range(observer: Observer) -> Tuple[float, float]:
    """Choose the observed range, or a clip of it that is far more exact on sampled values."""
    values = torch.cat(observer.samples).double()
    best = (_compute_rounding(values, observer.low, observer.high) * CLIPPING_GAIN, observer.low, observer.high)
    for clip in CLIPS:
        low, high = clip * observer.low, clip * observer.high
        best = min(best, (_compute_rounding(values, low, high), low, high))
    return best[1:]


def _compute_rounding(values: Tensor, low: float, high: float) -> float:
    """Return the mean square error of values that are clipped to a range and rounded to 8 bits."""
    scale = max((high - low) / LEVELS, SMALLEST_SCALE)
    rounded = torch.round(values.clamp(low, high) / scale) * scale
    return float((rounded - values).square().mean())


def _is_foldable(part: nn.Module) -> bool:
    is_norm = any(isinstance(part, cls) and type(part).forward is cls.forward for cls in NORMS)
    if not is_norm or has_hooks(part) or FORWARD in vars(part) or part.training:
        return False
    tensors = (part.weight, part.bias, part.running_mean, part.running_var)
    return part.running_mean is not None and all(each is None or each.dtype == torch.float32 for each in tensors)


def _read_sizes(layer: nn.Module) -> Union[Tuple[Any, ...], bool]:
    if is_convolution_class(layer):
        return (layer.stride, layer.padding, layer.dilation, layer.groups)
    return layer.bias is None


def _sum_squares(values: Tensor, others: Optional[Tensor] = None) -> float:
    difference = values if others is None else values - others
    return float(difference.double().square().sum())


def _divide(error: float, scale: float) -> float:
    return error / scale if scale > 0 else (0.0 if error == 0 else float("inf"))


def _time_call(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
