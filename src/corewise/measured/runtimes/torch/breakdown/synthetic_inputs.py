"""Generate inputs like those of a call in a model: same shapes, strides and dtypes, new random numbers.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from corewise.measured.runtimes.torch.breakdown.work_classes import list_tensors

# Random numbers are drawn once and copied, because drawing takes longer than most operators.
POOL_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True)
class TensorDescription:
    """A tensor to generate: normal numbers with the mean, deviation and sign of the recorded tensor.

    Attributes:
        values: Values to copy, of integers and booleans (indices, masks) and of constants.
        buffer_index: Tensors of one call with the same index share a buffer.
        offset: Elements of the buffer before the first of this tensor.
        buffer_elements: Elements of a shared buffer; 0: only its own.
    """

    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mean: float = 0.0
    deviation: float = 1.0
    never_negative: bool = False
    values: Optional[Tensor] = None
    buffer_index: int = 0
    offset: int = 0
    buffer_elements: int = 0

    @property
    def extent(self) -> int:
        """Elements of its buffer, from the first to the last."""
        return max(self.buffer_elements, self.offset + compute_extent(self.size, self.stride))

    @property
    def num_bytes(self) -> int:
        return self.extent * self.dtype.itemsize


def describe_arguments(value: Any) -> Any:
    """Replace each tensor by its description; interleaved views stay views of one buffer."""
    found: Dict[int, Tensor] = {id(each): each for each in list_tensors(value)}
    descriptions = {number: _describe_tensor(each, index) for index, (number, each) in enumerate(found.items())}
    for group in _find_interleaved([found[number] for number, each in descriptions.items() if each.values is None]):
        begins = [int(each.storage_offset()) for each in group]
        num_elements = max(map(operator.add, begins, map(_compute_tensor_extent, group))) - min(begins)
        index = descriptions[id(group[0])].buffer_index
        for each, begin in zip(group, begins):
            own = descriptions[id(each)]
            descriptions[id(each)] = dataclasses.replace(
                own, buffer_index=index, offset=begin - min(begins), buffer_elements=num_elements
            )
    return _replace_tensors(value, descriptions)


def _find_interleaved(tensors: Sequence[Tensor]) -> List[List[Tensor]]:
    """Find tensors of one storage that together span less memory than one by one, as queries and keys do."""
    by_storage: Dict[Any, List[Tensor]] = {}
    for each in tensors:
        by_storage.setdefault((each.untyped_storage().data_ptr(), each.dtype), []).append(each)
    found = []
    for group in by_storage.values():
        begins = [int(each.storage_offset()) for each in group]
        whole = max(map(operator.add, begins, map(_compute_tensor_extent, group))) - min(begins)
        if len(group) > 1 and whole < sum(map(_compute_tensor_extent, group)):
            found.append(group)
    return found


def _compute_tensor_extent(tensor: Tensor) -> int:
    """Compute the elements of memory from the tensor's first to its last."""
    return compute_extent(tuple(tensor.shape), tuple(tensor.stride()))


def _replace_tensors(value: Any, descriptions: Mapping[int, TensorDescription]) -> Any:
    if isinstance(value, Tensor):
        return descriptions[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(_replace_tensors(each, descriptions) for each in value)
    if isinstance(value, Mapping):
        return {name: _replace_tensors(each, descriptions) for name, each in value.items()}
    return value


def list_descriptions(value: Any) -> List[TensorDescription]:
    """List every tensor description, in the order of the arguments."""
    if isinstance(value, TensorDescription):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in list_descriptions(part)]
    return []


def _describe_tensor(tensor: Tensor, index: int) -> TensorDescription:
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    plain = tensor.detach()
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return TensorDescription(
            size, stride, tensor.dtype, tensor.device, values=copy_tensors(plain), buffer_index=index
        )
    numbers = plain.float()
    deviation = float(numbers.std()) if numbers.numel() > 1 else 0.0
    # A constant or a single number cannot be drawn.
    if not deviation > 0.0:
        return TensorDescription(
            size, stride, tensor.dtype, tensor.device, values=copy_tensors(plain), buffer_index=index
        )
    return TensorDescription(
        size,
        stride,
        tensor.dtype,
        tensor.device,
        mean=float(numbers.mean()),
        deviation=deviation,
        never_negative=bool(numbers.min() >= 0),
        buffer_index=index,
    )


def compute_extent(size: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Compute the elements of memory that sizes and strides span."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride))


def copy_tensors(value: Any) -> Any:
    """Copy all tensors with their strides; other values stay unchanged."""
    if isinstance(value, Tensor):
        return _copy_into(_allocate_flat(value.shape, value.stride(), value.dtype, value.device), value.detach())
    if isinstance(value, (list, tuple)):
        return type(value)(copy_tensors(each) for each in value)
    if isinstance(value, Mapping):
        return {name: copy_tensors(each) for name, each in value.items()}
    return value


def _allocate_flat(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(compute_extent(tuple(size), tuple(stride)), dtype=dtype, device=device)


def _copy_into(flat: Tensor, source: Tensor) -> Tensor:
    size, stride = tuple(source.shape), tuple(source.stride())
    # Expanded dimensions have one element in memory.
    once = tuple(1 if step == 0 and n > 0 else n for n, step in zip(size, stride))
    if source.numel():
        flat.as_strided(once, stride).copy_(source.as_strided(once, stride, source.storage_offset()))
    return flat.as_strided(size, stride)


class InputGenerator:
    """Generates arguments with random tensors."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(POOL_ELEMENTS, generator=generator)
        self._placed: Dict[Tuple[torch.dtype, torch.device], Tensor] = {}
        self._offset = 0

    def generate(self, args: Any, made: Dict[int, Tensor]) -> Any:
        """Generate tensors for descriptions; `made` receives each one's flat buffer by its index."""
        if isinstance(args, TensorDescription):
            if args.buffer_index not in made:
                made[args.buffer_index] = self._fill_buffer(args)
            return made[args.buffer_index].as_strided(args.size, args.stride, args.offset)
        if isinstance(args, (list, tuple)):
            return type(args)(self.generate(each, made) for each in args)
        if isinstance(args, Mapping):
            return {name: self.generate(each, made) for name, each in args.items()}
        return args

    def _fill_buffer(self, what: TensorDescription) -> Tensor:
        flat = torch.empty(what.extent, dtype=what.dtype, device=what.device)
        if what.values is not None:
            _copy_into(flat, what.values)
            return flat
        pool, begin = self._convert_pool(what), 0
        while begin < what.extent:
            num = min(what.extent - begin, POOL_ELEMENTS - self._offset)
            flat[begin : begin + num].copy_(pool[self._offset : self._offset + num])
            begin += num
            self._offset = (self._offset + num + 7) % POOL_ELEMENTS
        flat.mul_(what.deviation).add_(what.mean)
        return flat.abs_() if what.never_negative else flat

    def _convert_pool(self, what: TensorDescription) -> Tensor:
        key = (what.dtype, what.device)
        if key not in self._placed:
            self._placed[key] = self._pool.to(what.device, what.dtype)
        return self._placed[key]
