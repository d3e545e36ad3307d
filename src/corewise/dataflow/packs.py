"""Weights packed for oneDNN's kernels, made anew whenever those they are made of have changed.

Measured side: standard library and torch only, Python 3.9. Every call looks at every byte of the weights:
torch does not count what is written through `.data`, and a result from old weights would be wrong.
"""

from __future__ import annotations

import threading
from typing import Any, List, Optional, Sequence

import torch

from corewise.dataflow.native.build import native_module
from corewise.dataflow.program import Pack


class CannotPack(Exception):
    """Why weights cannot be packed as they are now."""


class Packs:
    """The packed tensors of one program."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self._packs = packs
        self._contents = native_module().contents
        self._sources = [(number, value) for number, pack in enumerate(packs) for value in _given(pack)]
        self._made: List[Any] = [None] * len(packs)  # tensors of each pack
        self._known: List[Optional[int]] = [None] * len(self._sources)  # contents that they are made of
        self._last_seen: List[int] = []
        self._lock = threading.Lock()  # of the contents and what is made of them

    def put(self, values: List[Any], at_once: bool) -> bool:
        """Puts the packed tensors in their places among the values of a call.

        False where the weights were others in the call before and do not have to be packed at once: who
        changes them in every call would wait for packing in every call.
        """
        seen = self._contents([values[value] for _, value in self._sources])
        with self._lock:
            if seen is None:
                return False
            if seen != self._known:
                is_steady = seen == self._last_seen
                self._last_seen = seen
                if not (is_steady or at_once):
                    return False
                if not self._make(seen, values):
                    return False
            for pack, tensors in zip(self._packs, self._made):
                for value, tensor in zip(pack.results, tensors):
                    values[value] = tensor
        return True

    def _make(self, seen: List[int], values: Sequence[Any]) -> bool:
        pairs = zip(self._sources, seen, self._known)
        changed = {number for (number, _), now, known in pairs if now != known}
        with torch.inference_mode(False), torch.no_grad():
            made = {number: packed(self._packs[number], values) for number in changed}
        if any(one is None for one in made.values()):
            return False
        for number, tensors in made.items():
            self._made[number] = tensors
        self._known = list(seen)
        return True


def _given(pack: Pack) -> List[int]:
    return [value for value in pack.sources if value is not None]


def packed(pack: Pack, values: Sequence[Any]) -> Optional[List[torch.Tensor]]:
    """The tensors of a pack; None where scaling by what is not finite would give other numbers."""
    given = [None if value is None else values[value].detach() for value in pack.sources]
    if not pack.is_convolution:
        num_rows = torch.Size(pack.input_size[:-1]).numel()
        return [torch.ops.mkldnn._reorder_linear_weight(given[0], num_rows)]
    weight, bias, scale, shift, mean, variance = given
    assert weight is not None
    if mean is not None and variance is not None:
        factor = (variance.double() + pack.eps).rsqrt()
        factor = factor if scale is None else factor * scale.double()
        before = mean.double().neg() if bias is None else bias.double() - mean.double()
        moved = before * factor if shift is None else before * factor + shift.double()
        if not bool(torch.isfinite(factor).all()) or not bool(torch.isfinite(moved).all()):
            return None
        weight = (weight * factor.float().view(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
        bias = moved.float()
    elif bias is None:
        bias = weight.new_zeros(len(weight))
    else:
        bias = bias.clone()
    padding, stride, dilation, groups = pack.geometry
    size = list(pack.input_size)
    made = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, size)
    return [made, bias]
