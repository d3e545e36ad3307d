"""Torch's arrays for kernels, in host memory or on a GPU.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, cast

import torch

from corewise.runtimes.base import Infeasible
from corewise.runtimes.filling import DRAWN, LARGEST_INT8, fill_normal
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.torch.graphs import Replayed
from corewise.runtimes.torch.sparse import CsrMatrix, make_csr, multiply_csr

Tensor = torch.Tensor


class TorchArrays:
    """Torch on one device."""

    runtime = "torch"
    writes_in_place = True
    memory_factor = 1.0
    threads_elementwise = True
    dtypes: Tuple[str, ...] = (
        "float64",
        "float32",
        "bfloat16",
        "float16",
        "int8",
        "int32",
        "complex64",
        "complex128",
    )

    def __init__(self, device: Any = "cpu") -> None:
        self._device = torch.device(device)
        self.device = self._device.type

    def empty(self, shape: Tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=_dtype(dtype), device=self._device)

    def zeros(self, shape: Tuple[int, ...], dtype: str) -> Tensor:
        return self.empty(shape, dtype).zero_()  # by every thread: each makes the pages it will work on

    def normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Tensor:
        if self.device == "cpu":
            return self._normal_on_host(shape, dtype, seed)
        generator = torch.Generator(self._device).manual_seed(seed)
        array = self.empty(shape, dtype)
        if dtype == "int8":
            return array.random_(-LARGEST_INT8, LARGEST_INT8 + 1, generator=generator)
        return array.normal_(generator=generator)

    def _normal_on_host(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Tensor:
        array = self.zeros(shape, dtype)
        if dtype in DRAWN:
            fill_normal(array.numpy(), seed)
            return array
        return array.normal_(generator=torch.Generator().manual_seed(seed))

    def from_host(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device, copy=True)

    def to_host(self, array: Tensor) -> Any:
        if array.dtype in (torch.bfloat16, torch.float16):
            array = array.float()
        return array.detach().to("cpu", copy=True).numpy()

    def copy(self, a: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return a.clone() if out is None else out.copy_(a)

    def scale(self, factor: Any, a: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return torch.mul(a, self._number(factor), out=out)

    def add(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return torch.add(a, b, out=out)

    def multiply(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return torch.mul(a, b, out=out)

    def add_scaled(self, a: Tensor, factor: Any, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        factor = self._number(factor)
        if isinstance(factor, Tensor):  # on a GPU: taking it as a number would wait for it
            return torch.addcmul(a, b, factor, out=out)
        return torch.add(a, b, alpha=factor, out=out)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.dot(a, b)

    def matmul(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        if a.dtype == torch.int8:
            return _whole_product(a, b, out)
        return torch.matmul(a, b, out=out)

    def right_factor(self, matrix: Tensor) -> Tensor:
        if self.device == "cpu" or matrix.dtype != torch.int8:
            return matrix
        return matrix.t().contiguous().t()  # by columns: eight times as fast on a GPU

    def subtract_scaled(self, a: Tensor, factor: Any, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        factor = self._number(factor)
        if isinstance(factor, Tensor):
            return torch.addcmul(a, b, factor, value=-1, out=out)
        return torch.sub(a, b, alpha=factor, out=out)

    def add_quotient(
        self, a: Tensor, b: Tensor, divisor: Tensor, sign: float = 1.0, out: Optional[Tensor] = None
    ) -> Tensor:
        return torch.addcdiv(a, b, divisor, value=sign, out=out)

    def transpose(self, a: Tensor) -> Tensor:
        return a.T

    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(tuple(arrays), axis)

    def stack(self, numbers: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(numbers))

    def csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> CsrMatrix:
        return make_csr(starts, columns, values, num_columns, self._device)

    def csr_matvec(self, matrix: CsrMatrix, x: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return multiply_csr(matrix, x, out)

    def fft(self, x: Tensor) -> Tensor:
        transformed: Tensor = torch.fft.fft(x)
        return transformed

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return Replayed(function) if self.device == "cuda" else function

    def finish(self, *arrays: Tensor) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize(self._device)

    def free_bytes(self) -> int:
        if self.device == "cpu":
            return free_host_bytes()
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free_bytes) + int(kept)

    def _number(self, factor: Any) -> Any:
        """A factor as torch takes it without waiting for the GPU: a number, or a tensor that stays there."""
        if isinstance(factor, Tensor):
            return factor.item() if self.device == "cpu" else factor
        return factor.item() if hasattr(factor, "item") else factor


def _whole_product(a: Tensor, b: Tensor, out: Optional[Tensor]) -> Tensor:
    """The product of int8 matrices, in int32."""
    if not hasattr(torch, "_int_mm"):
        raise Infeasible(f"torch {torch.__version__} has no product of int8 matrices; 2.1 and later have")
    try:
        product: Tensor = torch._int_mm(a, b) if out is None else torch._int_mm(a, b, out=out)
    except RuntimeError as problem:
        raise Infeasible(f"torch does not multiply these int8 matrices: {problem}") from problem
    return product


def _dtype(name: str) -> torch.dtype:
    if name not in TorchArrays.dtypes:
        raise Infeasible(f"torch arrays have no dtype {name}; they have {', '.join(TorchArrays.dtypes)}")
    return cast(torch.dtype, getattr(torch, name))
