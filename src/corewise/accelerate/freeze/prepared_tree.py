"""Replace layers in a copy of a module by prepared layers, where they are faster; needs no graph.

Measured side: standard library and torch only, Python 3.9. The copy keeps its class, its attributes and its Python
code, so it accepts every input that the module accepts.
"""

from __future__ import annotations

import copy
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, Hashable, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.module_state import ModuleState, TooManyAttributesError
from corewise.accelerate.freeze.lstm_replacement import RowLstm, can_replace_lstm
from corewise.accelerate.freeze.packed_layers import PreparedConvolution, PreparedLayer, PreparedLinear, compute_padding
from corewise.accelerate.freeze.weight_folding import has_hooks, is_standard_layer
from corewise.accelerate.unsupported import Unsupported

# A prepared layer must take less than this fraction of the plain layer's time.
MAX_TIME_RATIO = 0.97
# Pairs of calls that are compared, and the seconds after which no further pair starts.
MIN_ROUNDS, MAX_ROUNDS, MAX_MEASURING_S = 3, 12, 0.03
# Why a layer that could be prepared stays as it is.
AS_FAST = "torch's operator is as fast"
# The linear layer of GPT-2 in transformers, whose weight is transposed.
_TRANSPOSED_LINEAR = ("transformers.pytorch_utils", "Conv1D")
_READERS_OF_WEIGHTS = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
Call = Callable[[], Any]


class PreparedTree:
    """A copy of a module with prepared layers.

    Attributes:
        module: The copy.
        num_prepared: How many layers are prepared.
        plain_layers: Names of layers that stay as they are, with the reason.
    """

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.plain_layers: Dict[str, str] = {}
        try:
            self.module = copy.deepcopy(module)
        except Exception as problem:
            raise Unsupported(f"freezing full: the module cannot be copied: {problem}") from problem
        self.module.requires_grad_(False)
        # Whether the prepared layer was faster, by the sizes of layer and input.
        self._decisions: Dict[Hashable, bool] = {}
        self._made: Dict[int, Optional[nn.Module]] = {}
        self._inputs = self._record_inputs(args, kwargs)
        self._replace_layers()
        self.num_prepared = sum(each is not None for each in self._made.values())

    @property
    def has_fast_layers(self) -> bool:
        """Whether a layer could be prepared, but is as fast as it is."""
        return AS_FAST in self.plain_layers.values()

    def _record_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dict[int, Tensor]:
        """Run the copy on the example; return the first input of each layer that may be prepared."""
        inputs: Dict[int, Tensor] = {}

        def record(layer: nn.Module, given: Tuple[Any, ...]) -> None:
            if len(given) == 1 and isinstance(given[0], Tensor):
                inputs.setdefault(id(layer), given[0].detach())

        layers = [each for each in self.module.modules() if _can_prepare(each)]
        hooks = [layer.register_forward_pre_hook(record) for layer in layers]
        try:
            before = ModuleState(self.module)
            try:
                with torch.no_grad():
                    self.module(*copy_tensors(args), **copy_tensors(kwargs))
            finally:
                before.restore()
        except TooManyAttributesError as problem:
            raise Unsupported(f"freezing full: {problem}") from problem
        finally:
            for hook in hooks:
                hook.remove()
        return inputs

    def _replace_layers(self) -> None:
        names = {id(part): name for name, part in self.module.named_modules()}
        for part in list(self.module.modules()):
            # These read the weights of their layers themselves.
            if isinstance(part, _READERS_OF_WEIGHTS):
                continue
            for name, child in list(part._modules.items()):
                if child is None or isinstance(child, PreparedLayer):
                    continue
                if id(child) not in self._made:
                    self._made[id(child)] = self._prepare(child, names[id(child)])
                made = self._made[id(child)]
                if made is not None:
                    part._modules[name] = made

    def _prepare(self, layer: nn.Module, name: str) -> Optional[nn.Module]:
        if isinstance(layer, nn.LSTM):
            return RowLstm(layer, reverse=False) if self.dtype == torch.float32 and can_replace_lstm(layer) else None
        if not isinstance(layer, (nn.Linear, nn.Conv2d)) and not is_transposed_linear(layer):
            return None
        if not _can_prepare(layer):
            self.plain_layers[name] = "it has hooks, computed weights, another padding than zeros, or another forward"
            return None
        x = self._inputs.get(id(layer))
        if x is None:
            self.plain_layers[name] = "it is not called on the example"
            return None
        made = prepare_layer(layer, x, self.dtype)
        if made is None:
            self.plain_layers[name] = "its input is neither a batch of rows nor of images in floating point"
            return None
        if not self._is_faster(layer, made, x):
            self.plain_layers[name] = AS_FAST
            return None
        return made

    def _is_faster(self, layer: nn.Module, made: PreparedLayer, x: Tensor) -> bool:
        # Plain layers convert their weights at every call.
        if self.dtype != torch.float32:
            return True
        sizes = tuple(tuple(each.shape) for each in layer.parameters())
        settings = (getattr(layer, "stride", None), getattr(layer, "padding", None), getattr(layer, "dilation", None))
        key = (type(layer), sizes, settings, getattr(layer, "groups", None), tuple(x.shape), x.stride())
        if key not in self._decisions:
            with torch.no_grad():
                ratio = compare_times(lambda: layer(x), lambda: made(x))
            self._decisions[key] = ratio < MAX_TIME_RATIO
        return self._decisions[key]


def compare_times(one: Call, other: Call, max_s: float = MAX_MEASURING_S) -> float:
    """Return the time of the second call relative to the first: the best of a few rounds of either."""
    best = [float("inf"), float("inf")]
    one()
    other()
    began = time.perf_counter()
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.perf_counter() - began > max_s:
            break
        for place, call in enumerate((one, other)):
            start = time.perf_counter()
            call()
            best[place] = min(best[place], time.perf_counter() - start)
    return best[1] / max(1e-9, best[0])


def prepare_layer(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Optional[PreparedLayer]:
    """Prepare a layer for inputs of this size; None if it does not support them."""
    if not x.is_floating_point() or x.dtype not in (torch.float32, dtype) or not x.numel():
        return None
    if isinstance(layer, nn.Conv2d):
        return PreparedConvolution(layer, x.shape, dtype) if x.dim() == 4 else None
    if x.dim() < 2:
        return None
    given: Any = layer
    if is_transposed_linear(layer):
        given = SimpleNamespace(weight=layer.weight.detach().t().contiguous(), bias=layer.bias)  # type: ignore[operator]
    return PreparedLinear(given, x.shape, dtype)


def is_transposed_linear(layer: nn.Module) -> bool:
    """Return whether it is a linear layer of transformers with a transposed weight."""
    cls = type(layer)
    return (cls.__module__, cls.__name__) == _TRANSPOSED_LINEAR


def _can_prepare(layer: nn.Module) -> bool:
    is_layer = isinstance(layer, (nn.Linear, nn.Conv2d)) and is_standard_layer(layer)
    if not (is_layer or is_transposed_linear(layer)) or "forward" in vars(layer):
        return False
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or compute_padding(layer) is None):
        return False
    has_plain_weights = all(type(each) is nn.Parameter and each.dtype == torch.float32 for each in layer.parameters())
    return has_plain_weights and not has_hooks(layer) and not is_parametrized(layer) and bool(list(layer.parameters()))


def copy_tensors(tree: Any) -> Any:
    """Copy the tensors of nested inputs, because a module may write to its inputs."""
    return pytree.tree_map_only(Tensor, Tensor.clone, tree)
