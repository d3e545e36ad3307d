"""Weights packed for oneDNN's kernels and ours, made anew whenever those they are made of have changed.

Measured side: standard library and torch only, Python 3.9. Every call looks at every byte of the weights:
torch does not count what is written through `.data`, and a result from old weights would be wrong.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from corewise.dataflow.native.build import native_module
from corewise.dataflow.program import Pack

_FEW = 8  # calls with other weights than those packed, after which not every call looks at them
_MOST_DOUBLINGS = 6  # of the calls that do not


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
        self._refused: List[int] = []  # contents that nothing can be made of
        self._num_others = 0  # calls with other weights than those packed, less those with these
        self._unlooked = 0  # calls to come that do not look at weights
        self._lock = threading.RLock()  # of all this; a handler of signals may call meanwhile

    def forget(self) -> None:
        """Lets go of what is packed, until it is asked for again."""
        with self._lock:
            self._made = [None] * len(self._packs)
            self._known = [None] * len(self._sources)

    def put(self, values: List[Any], at_once: bool) -> bool:
        """Puts the packed tensors in their places among the values of a call.

        False where the weights were others in the call before and do not have to be packed at once: who
        changes them in every call would wait for packing in every call. The more often that was so, the
        fewer of the calls that follow look at the weights at all.
        """
        with self._lock:
            if self._unlooked > 0 and not at_once:
                self._unlooked -= 1
                return False
        seen = self._contents([values[value] for _, value in self._sources])
        with self._lock:
            if seen is None:
                return False
            is_steady, self._last_seen = seen == self._last_seen, seen
            if seen == self._known:
                self._num_others = max(0, self._num_others - 1)
            else:
                self._num_others = min(self._num_others + 1, _FEW + _MOST_DOUBLINGS)
                if seen == self._refused or not (is_steady or at_once):
                    self._unlooked = (1 << max(0, self._num_others - _FEW)) - 1
                    return False
                if not self._make(seen, values):
                    return False
            for pack, tensors in zip(self._packs, self._made):
                for value, tensor in zip(pack.results, tensors):
                    values[value] = tensor
        return True

    def _make(self, seen: List[int], values: Sequence[Any]) -> bool:
        changed = {
            number for (number, _), now, known in zip(self._sources, seen, self._known) if now != known
        }
        contents: Dict[int, Dict[int, int]] = {number: {} for number in changed}  # of their sources
        for (number, value), now in zip(self._sources, seen):
            if number in changed:
                contents[number][value] = now
        made: Dict[int, List[torch.Tensor]] = {}
        try:
            with torch.inference_mode(False), torch.no_grad():
                for number, given in contents.items():
                    copies = {value: values[value].detach().clone() for value in given}
                    if self._contents(list(copies.values())) != list(given.values()):
                        return False  # another thread has written to them meanwhile
                    made[number] = packed(self._packs[number], copies)
        except (CannotPack, RuntimeError):  # there may be no memory for them
            self._refused = seen
            return False
        for number, tensors in made.items():
            self._made[number] = tensors
        self._known = list(seen)
        return True


def _given(pack: Pack) -> List[int]:
    return [value for value in dict.fromkeys(pack.sources) if value is not None]


def packed(pack: Pack, values: Mapping[int, torch.Tensor]) -> List[torch.Tensor]:
    """The tensors of a pack."""
    given = [None if value is None else values[value] for value in pack.sources]
    weight = given[0]
    assert weight is not None
    if not pack.is_convolution:
        num_rows = torch.Size(pack.input_size[:-1]).numel()
        return [torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)]
    _, bias, scale, shift, mean, variance = given
    if mean is not None and variance is not None:
        factor = (variance.double() + pack.eps).rsqrt()
        factor = factor if scale is None else factor * scale.double()
        before = mean.double().neg() if bias is None else bias.double() - mean.double()
        moved = before * factor if shift is None else before * factor + shift.double()
        weight = (weight * factor.float().view(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
        bias = moved.float()
        if not all(bool(torch.isfinite(one).all()) for one in (factor, weight, bias)):
            raise CannotPack("scaling by what is not finite would give other numbers")
    elif bias is None:
        bias = weight.new_zeros(len(weight))
    if pack.is_winograd:
        return [torch.ops.corewise.winograd_weight(weight), bias]
    padding, stride, dilation, groups = pack.geometry
    size = list(pack.input_size)
    made = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, size)
    return [made, bias]
