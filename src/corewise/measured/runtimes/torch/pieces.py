"""Work on arrays in pieces with torch, in host memory or on a GPU.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Tuple

import torch

Tensor = torch.Tensor
# One piece is copied in, one is computed, one is copied out.
GPU_STREAMS = 3


class ObjectPool:
    """A pool of reusable objects: torch never frees the memory of a stream."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: List[Any] = []

    @contextlib.contextmanager
    def take(self) -> Iterator[Any]:
        """Take an object for the time of the block."""
        try:
            taken = self._idle.pop()
        except IndexError:
            taken = self._make()
        try:
            yield taken
        finally:
            self._idle.append(taken)


class TorchPieces:
    """Pieces on the device of torch's arrays."""

    writes_in_place = True
    num_spare = 0

    def __init__(self, arrays: Any) -> None:
        self._device: torch.device = arrays.create_empty((0,), "float32").device
        self.is_host = self._device.type == "cpu"
        self.num_streams = 1 if self.is_host else GPU_STREAMS
        self._streams = ObjectPool(lambda: torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def allocate_host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=not self.is_host).numpy()

    def move_to_device(self, host: Any, out: Optional[Tensor] = None) -> Tensor:
        shared = torch.from_numpy(host)
        if self.is_host:
            return shared
        copied = shared.to(self._device, non_blocking=True) if out is None else out.copy_(shared, non_blocking=True)
        # The caller may refill the host's buffer afterwards.
        self.wait()
        return copied

    def as_numpy(self, array: Tensor) -> Any:
        return array.numpy()

    def copy_to_host(self, array: Tensor, host: Any) -> None:
        torch.from_numpy(host).copy_(array, non_blocking=True)
        self.wait()

    def use_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext() if self.is_host else self._enter_pooled_stream()

    @contextlib.contextmanager
    def _enter_pooled_stream(self) -> Iterator[None]:
        with self._streams.take() as ours:
            ours.wait_stream(torch.cuda.default_stream(self._device))
            with torch.cuda.stream(ours):  # type: ignore[no-untyped-call, unused-ignore]
                yield

    def wait(self, *results: Tensor) -> None:
        if not self.is_host:
            torch.cuda.current_stream(self._device).synchronize()

    def compute_fft(self, x: Tensor, axis: int, out: Optional[Tensor] = None) -> Tensor:
        transformed: Tensor = torch.fft.fft(x, dim=axis)
        return transformed if out is None else out.copy_(transformed)

    def add_product(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(c, a, b, out=c)
