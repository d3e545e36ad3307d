"""Arrays for kernels on torch, in host memory or on a GPU.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, cast

import torch

from corewise.measured.runtimes.arrays.random_fill import DRAWABLE_DTYPES, MAX_INT8, fill_normal
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes
from corewise.measured.runtimes.torch.cuda_graphs import CudaGraphFunction
from corewise.measured.runtimes.torch.sparse import TorchCsrMatrix, build_csr, multiply_csr

Tensor = torch.Tensor


class TorchArrays:
    """Torch on one device."""

    runtime = "torch"
    writes_in_place = True
    memory_factor = 1.0
    threads_elementwise = True
    dtypes: Tuple[str, ...] = ("float64", "float32", "bfloat16", "float16", "int8", "int32", "complex64", "complex128")

    def __init__(self, device: Any = "cpu") -> None:
        self._device = torch.device(device)
        self.device = self._device.type

    def create_empty(self, shape: Tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=_find_dtype(dtype), device=self._device)

    def create_zeros(self, shape: Tuple[int, ...], dtype: str) -> Tensor:
        # All threads fill the array, so that each touches the pages it will work on first.
        return self.create_empty(shape, dtype).zero_()

    def draw_normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Tensor:
        if self.device == "cpu":
            return self._draw_on_host(shape, dtype, seed)
        generator = torch.Generator(self._device).manual_seed(seed)
        array = self.create_empty(shape, dtype)
        if dtype == "int8":
            return array.random_(-MAX_INT8, MAX_INT8 + 1, generator=generator)
        return array.normal_(generator=generator)

    def _draw_on_host(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Tensor:
        array = self.create_zeros(shape, dtype)
        if dtype in DRAWABLE_DTYPES:
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
        return torch.mul(a, self._convert_factor(factor), out=out)

    def add(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return torch.add(a, b, out=out)

    def multiply(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return torch.mul(a, b, out=out)

    def add_scaled(self, a: Tensor, factor: Any, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        factor = self._convert_factor(factor)
        # Reading the value of a tensor on a GPU would wait for it.
        if isinstance(factor, Tensor):
            return torch.addcmul(a, b, factor, out=out)
        return torch.add(a, b, alpha=factor, out=out)

    def compute_dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.dot(a, b)

    def matmul(self, a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        if a.dtype == torch.int8:
            return _multiply_int8(a, b, out)
        return torch.matmul(a, b, out=out)

    def prepare_right_factor(self, matrix: Tensor) -> Tensor:
        if self.device == "cpu" or matrix.dtype != torch.int8:
            return matrix
        # A column-major factor is eight times as fast on a GPU.
        return matrix.t().contiguous().t()

    def subtract_scaled(self, a: Tensor, factor: Any, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
        factor = self._convert_factor(factor)
        if isinstance(factor, Tensor):
            return torch.addcmul(a, b, factor, value=-1, out=out)
        return torch.sub(a, b, alpha=factor, out=out)

    def add_quotient(
        self, a: Tensor, b: Tensor, divisor: Tensor, sign: float = 1.0, out: Optional[Tensor] = None
    ) -> Tensor:
        return torch.addcdiv(a, b, divisor, value=sign, out=out)

    def transpose(self, a: Tensor) -> Tensor:
        return a.T

    def reshape(self, a: Tensor, shape: Tuple[int, ...]) -> Tensor:
        return a.reshape(shape)

    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(tuple(arrays), axis)

    def stack(self, numbers: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(numbers))

    def build_csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> TorchCsrMatrix:
        return build_csr(starts, columns, values, num_columns, self._device)

    def multiply_csr(self, matrix: TorchCsrMatrix, x: Tensor, out: Optional[Tensor] = None) -> Tensor:
        return multiply_csr(matrix, x, out)

    def compute_fft(self, x: Tensor) -> Tensor:
        transformed: Tensor = torch.fft.fft(x)
        return transformed

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return CudaGraphFunction(function) if self.device == "cuda" else function

    def finish(self, *arrays: Tensor) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize(self._device)

    def free_bytes(self) -> int:
        if self.device == "cpu":
            return read_free_host_bytes()
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        cached_bytes = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free_bytes) + int(cached_bytes)

    def _convert_factor(self, factor: Any) -> Any:
        """Convert a factor to a number, or on a GPU keep it as a tensor, which avoids waiting."""
        if isinstance(factor, Tensor):
            return factor.item() if self.device == "cpu" else factor
        return factor.item() if hasattr(factor, "item") else factor


def _multiply_int8(a: Tensor, b: Tensor, out: Optional[Tensor]) -> Tensor:
    """Multiply int8 matrices; the result is int32."""
    if not hasattr(torch, "_int_mm"):
        raise Infeasible(f"torch {torch.__version__} has no int8 matrix product; use torch 2.1 or later")
    try:
        product: Tensor = torch._int_mm(a, b) if out is None else torch._int_mm(a, b, out=out)
    except RuntimeError as problem:
        raise Infeasible(f"torch does not multiply these int8 matrices: {problem}") from problem
    return product


def _find_dtype(name: str) -> torch.dtype:
    if name not in TorchArrays.dtypes:
        raise Infeasible(f"torch arrays have no dtype {name}; supported: {', '.join(TorchArrays.dtypes)}")
    return cast(torch.dtype, getattr(torch, name))
