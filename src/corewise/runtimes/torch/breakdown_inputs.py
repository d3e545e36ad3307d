"""Inputs like those of a call in a model: the same shapes, strides and number formats, new random numbers.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from corewise.runtimes.torch.breakdown_work import tensors_in

POOL_ELEMENTS = (
    2**22
)  # random numbers are drawn once and copied from: drawing them takes longer than most operators


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tensor to be made: normal numbers with mean, spread and, if it has one, the sign of the one met."""

    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mean: float = 0.0
    deviation: float = 1.0
    never_negative: bool = False
    values: Optional[Tensor] = (
        None  # of whole numbers and truth values, which cannot be drawn: indices, masks
    )
    place: int = 0  # tensors of one call with the same place share memory
    offset: int = 0  # elements of that memory before its own
    held: int = 0  # elements of that memory; 0: its own alone

    @property
    def extent(self) -> int:
        """Elements of its memory from the first to the last."""
        return max(self.held, self.offset + extent_of(self.size, self.stride))

    @property
    def num_bytes(self) -> int:
        return self.extent * self.dtype.itemsize


def wanted(value: Any) -> Any:
    """The arguments with a `Wanted` for each tensor; views that lie between each other stay views of one."""
    found: Dict[int, Tensor] = {id(each): each for each in tensors_in(value)}
    met = {number: _wanted_tensor(each, place) for place, (number, each) in enumerate(found.items())}
    for together in _interwoven([found[number] for number, each in met.items() if each.values is None]):
        begins = [int(each.storage_offset()) for each in together]
        held = max(map(operator.add, begins, map(_reach, together))) - min(begins)
        place = met[id(together[0])].place
        for each, begin in zip(together, begins):
            own = met[id(each)]
            met[id(each)] = dataclasses.replace(own, place=place, offset=begin - min(begins), held=held)
    return _replaced(value, met)


def _interwoven(tensors: Sequence[Tensor]) -> List[List[Tensor]]:
    """Tensors of one storage that together reach over less memory than one by one: queries and keys."""
    by_storage: Dict[Any, List[Tensor]] = {}
    for each in tensors:
        by_storage.setdefault((each.untyped_storage().data_ptr(), each.dtype), []).append(each)
    found = []
    for together in by_storage.values():
        begins = [int(each.storage_offset()) for each in together]
        whole = max(map(operator.add, begins, map(_reach, together))) - min(begins)
        if len(together) > 1 and whole < sum(map(_reach, together)):
            found.append(together)
    return found


def _reach(tensor: Tensor) -> int:
    """Elements of memory from its first to its last."""
    return extent_of(tuple(tensor.shape), tuple(tensor.stride()))


def _replaced(value: Any, met: Mapping[int, Wanted]) -> Any:
    if isinstance(value, Tensor):
        return met[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, met) for each in value)
    if isinstance(value, Mapping):
        return {name: _replaced(each, met) for name, each in value.items()}
    return value


def wanted_in(value: Any) -> List[Wanted]:
    """Every tensor to be made, in the order of the arguments."""
    if isinstance(value, Wanted):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in wanted_in(part)]
    return []


def _wanted_tensor(tensor: Tensor, place: int) -> Wanted:
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    plain = tensor.detach()
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return Wanted(size, stride, tensor.dtype, tensor.device, values=copied(plain), place=place)
    numbers = plain.float()
    deviation = float(numbers.std()) if numbers.numel() > 1 else 0.0
    if not deviation > 0.0:  # one number again and again, or one alone
        return Wanted(size, stride, tensor.dtype, tensor.device, values=copied(plain), place=place)
    return Wanted(
        size,
        stride,
        tensor.dtype,
        tensor.device,
        mean=float(numbers.mean()),
        deviation=deviation,
        never_negative=bool(numbers.min() >= 0),
        place=place,
    )


def extent_of(size: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Elements of memory that sizes and strides reach over."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride))


def copied(value: Any) -> Any:
    """The same numbers elsewhere in memory, strides kept; anything but tensors as it is."""
    if isinstance(value, Tensor):
        return _copy_into(_flat(value.shape, value.stride(), value.dtype, value.device), value.detach())
    if isinstance(value, (list, tuple)):
        return type(value)(copied(each) for each in value)
    if isinstance(value, Mapping):
        return {name: copied(each) for name, each in value.items()}
    return value


def _flat(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(extent_of(tuple(size), tuple(stride)), dtype=dtype, device=device)


def _copy_into(flat: Tensor, source: Tensor) -> Tensor:
    size, stride = tuple(source.shape), tuple(source.stride())
    once = tuple(
        1 if step == 0 and n > 0 else n for n, step in zip(size, stride)
    )  # what is expanded is there once
    if source.numel():
        flat.as_strided(once, stride).copy_(source.as_strided(once, stride, source.storage_offset()))
    return flat.as_strided(size, stride)


class Maker:
    """Makes arguments; every tensor comes with the flat memory it lies in."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(POOL_ELEMENTS, generator=generator)
        self._placed: Dict[Tuple[torch.dtype, torch.device], Tensor] = {}
        self._offset = 0

    def make(self, args: Any, made: Dict[int, Tensor]) -> Any:
        """The arguments with tensors; `made` is filled with each one's flat memory, by its place."""
        if isinstance(args, Wanted):
            if args.place not in made:
                made[args.place] = self._filled(args)
            return made[args.place].as_strided(args.size, args.stride, args.offset)
        if isinstance(args, (list, tuple)):
            return type(args)(self.make(each, made) for each in args)
        if isinstance(args, Mapping):
            return {name: self.make(each, made) for name, each in args.items()}
        return args

    def _filled(self, what: Wanted) -> Tensor:
        flat = torch.empty(what.extent, dtype=what.dtype, device=what.device)
        if what.values is not None:
            _copy_into(flat, what.values)
            return flat
        pool, begin = self._pool_for(what), 0
        while begin < what.extent:
            num = min(what.extent - begin, POOL_ELEMENTS - self._offset)
            flat[begin : begin + num].copy_(pool[self._offset : self._offset + num])
            begin += num
            self._offset = (self._offset + num + 7) % POOL_ELEMENTS
        flat.mul_(what.deviation).add_(what.mean)
        return flat.abs_() if what.never_negative else flat

    def _pool_for(self, what: Wanted) -> Tensor:
        kind = (what.dtype, what.device)
        if kind not in self._placed:
            self._placed[kind] = self._pool.to(what.device, what.dtype)
        return self._placed[kind]
