"""Torch's arrays in pieces, in host memory or on a GPU.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Tuple

import torch

Tensor = torch.Tensor
GPU_STREAMS = 3  # one piece comes, one is computed, one goes


class Lent:
    """Things that are lent and taken back: torch keeps the memory of every stream there ever was."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: List[Any] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[Any]:
        """One that nobody else has meanwhile."""
        try:
            thing = self._idle.pop()
        except IndexError:
            thing = self._make()
        try:
            yield thing
        finally:
            self._idle.append(thing)


class TorchPieces:
    """Torch on the device of its arrays."""

    writes_in_place = True
    num_spare = 0

    def __init__(self, arrays: Any) -> None:
        self._device: torch.device = arrays.empty((0,), "float32").device
        self.is_host = self._device.type == "cpu"
        self.num_streams = 1 if self.is_host else GPU_STREAMS
        self._streams = Lent(lambda: torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=not self.is_host).numpy()

    def upload(self, host: Any, out: Optional[Tensor] = None) -> Tensor:
        shared = torch.from_numpy(host)
        if self.is_host:
            return shared
        copied = (
            shared.to(self._device, non_blocking=True)
            if out is None
            else out.copy_(shared, non_blocking=True)
        )
        self.wait()  # the host's buffer may be filled again
        return copied

    def view(self, array: Tensor) -> Any:
        return array.numpy()

    def download(self, array: Tensor, host: Any) -> None:
        torch.from_numpy(host).copy_(array, non_blocking=True)
        self.wait()

    def stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext() if self.is_host else self._own_stream()

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        with self._streams.one() as ours:
            ours.wait_stream(torch.cuda.default_stream(self._device))
            with torch.cuda.stream(ours):  # type: ignore[no-untyped-call, unused-ignore]
                yield

    def wait(self, *results: Tensor) -> None:
        if not self.is_host:
            torch.cuda.current_stream(self._device).synchronize()

    def fft(self, x: Tensor, axis: int, out: Optional[Tensor] = None) -> Tensor:
        transformed: Tensor = torch.fft.fft(x, dim=axis)
        return transformed if out is None else out.copy_(transformed)

    def multiply_add(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(c, a, b, out=c)
