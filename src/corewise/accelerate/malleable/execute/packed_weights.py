"""Hold weights packed for oneDNN's kernels and ours; pack them again when the weights change.

Measured side: standard library and torch only, Python 3.9. Every call hashes all bytes of the weights: torch
does not count writes through `.data`, and a result from outdated weights would be wrong.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Sequence

import torch

from corewise.accelerate.capture.program import Pack
from corewise.accelerate.capture.weight_packing import PackingError, pack_weights
from corewise.accelerate.kernels.build import load_native_module

# Calls with changed weights after which some calls skip the check.
_MISSES_BEFORE_SKIPPING = 8
# Maximum number of times that the number of skipped calls doubles.
_MAX_DOUBLINGS = 6


class PackedWeights:
    """The packed tensors of one program."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self._packs = packs
        self._contents = load_native_module().contents
        self._sources = [(number, value) for number, pack in enumerate(packs) for value in _list_sources(pack)]
        # Tensors of each pack, or None.
        self._tensors: List[Any] = [None] * len(packs)
        # Hashes of the weights that the tensors were packed from.
        self._packed_contents: List[Optional[int]] = [None] * len(self._sources)
        self._last_contents: List[int] = []
        # Hashes of weights that could not be packed.
        self._refused_contents: List[int] = []
        # Calls with changed weights minus calls with the packed ones.
        self._num_misses = 0
        # Remaining calls that skip the check.
        self._num_skipped = 0
        # Reentrant, because a signal handler may call the model.
        self._lock = threading.RLock()

    def drop(self) -> None:
        """Free the packed tensors until they are needed again."""
        with self._lock:
            self._tensors = [None] * len(self._packs)
            self._packed_contents = [None] * len(self._sources)

    def fill_values(self, values: List[Any], at_once: bool) -> bool:
        """Put the packed tensors in their places among the values of a call.

        Returns False if the weights differ from those of the previous call and `at_once` is not set.
        Otherwise a caller that changes weights in every call would wait for packing in every call. The more
        often that happens, the fewer calls check the weights at all.
        """
        with self._lock:
            if self._num_skipped > 0 and not at_once:
                self._num_skipped -= 1
                return False
        contents = self._contents([values[value] for _, value in self._sources])
        with self._lock:
            if contents is None:
                return False
            is_steady, self._last_contents = contents == self._last_contents, contents
            if contents == self._packed_contents:
                self._num_misses = max(0, self._num_misses - 1)
            else:
                self._num_misses = min(self._num_misses + 1, _MISSES_BEFORE_SKIPPING + _MAX_DOUBLINGS)
                if contents == self._refused_contents or not (is_steady or at_once):
                    self._num_skipped = (1 << max(0, self._num_misses - _MISSES_BEFORE_SKIPPING)) - 1
                    return False
                if not self._make(contents, values):
                    return False
            for pack, tensors in zip(self._packs, self._tensors):
                for value, tensor in zip(pack.results, tensors):
                    values[value] = tensor
        return True

    def _make(self, current: List[int], values: Sequence[Any]) -> bool:
        changed = {
            number
            for (number, _), content, packed in zip(self._sources, current, self._packed_contents)
            if content != packed
        }
        # Hashes by value, of the packs to build.
        contents: Dict[int, Dict[int, int]] = {number: {} for number in changed}
        for (number, value), content in zip(self._sources, current):
            if number in changed:
                contents[number][value] = content
        tensors_by_pack: Dict[int, List[torch.Tensor]] = {}
        try:
            with torch.inference_mode(False), torch.no_grad():
                for number, hashes in contents.items():
                    copies = {value: values[value].detach().clone() for value in hashes}
                    if self._contents(list(copies.values())) != list(hashes.values()):
                        # Another thread has written to the weights since.
                        return False
                    tensors_by_pack[number] = pack_weights(self._packs[number], copies)
        # Memory may be exhausted.
        except (PackingError, RuntimeError):
            self._refused_contents = current
            return False
        for number, tensors in tensors_by_pack.items():
            self._tensors[number] = tensors
        self._packed_contents = list(current)
        return True


def _list_sources(pack: Pack) -> List[int]:
    return [value for value in dict.fromkeys(pack.sources) if value is not None]
