"""JAX arrays for kernels, in host memory or on a GPU.

Measured side: standard library, numpy and jax only, Python 3.9. JAX arrays are immutable, but a donated array
gives its memory to the result. `out` is donated here: without it every result would take new pages from the
operating system, which costs several times as much as the operation.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from corewise.measured.runtimes.arrays.random_fill import DRAWABLE_DTYPES, MAX_INT8, fill_normal
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.devices.cuda_driver import read_free_gpu_bytes
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes
from corewise.measured.runtimes.jax.settings import wait_for
from corewise.measured.runtimes.jax.sparse import build_csr, multiply_csr

# Random numbers drawn at a time, which limits temporary memory.
PIECE_ELEMENTS = 2**26
DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "complex64", "complex128")


class JaxArrays:
    """JAX arrays on one device, with float64 enabled."""

    runtime = "jax"
    writes_in_place = False
    memory_factor = 1.5
    threads_elementwise = True
    dtypes: Tuple[str, ...] = DTYPES

    def __init__(self, device: Any = None) -> None:
        # Without this option JAX silently converts float64 to float32.
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
        self._device = jax.devices("cpu")[0] if device is None else device
        self.device = "cpu" if self._device.platform == "cpu" else "cuda"
        # The arrays that a function under compilation has used as `out`.
        self._donated: List[Any] = []

    def create_empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return self.create_zeros(shape, dtype)

    def create_zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return jnp.zeros(shape, _check_dtype(dtype), device=self._device)

    def draw_normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        if self.device == "cpu":
            numbers = np.empty(shape, _check_dtype(dtype) if dtype in DRAWABLE_DTYPES else np.float32)
            fill_normal(numbers, seed)
            array = jax.device_put(numbers, self._device)
            # The threads of XLA make the copy, so each thread touches its pages first.
            return self.copy(array) if dtype in DRAWABLE_DTYPES else array.astype(_check_dtype(dtype))
        with jax.default_device(self._device):
            return _draw_normal(jax.random.key(seed), tuple(shape), _check_dtype(dtype))

    def from_host(self, array: Any) -> Any:
        return jnp.array(array, copy=True, device=self._device)

    def to_host(self, array: Any) -> Any:
        if array.dtype in (jnp.bfloat16, jnp.float16):
            array = array.astype(jnp.float32)
        return np.array(array)

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, jnp.copy, a)

    def scale(self, factor: Any, a: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, _scale, factor, a)

    def add(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, jnp.add, a, b)

    def multiply(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, jnp.multiply, a, b)

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, _add_scaled, a, factor, b)

    def compute_dot(self, a: Any, b: Any) -> Any:
        return self._compute_into(None, jnp.dot, a, b)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, _matmul, a, b)

    def prepare_right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, _subtract_scaled, a, factor, b)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, _add_scaled, a, sign / divisor, b)

    def transpose(self, a: Any) -> Any:
        return a.T

    def reshape(self, a: Any, shape: Tuple[int, ...]) -> Any:
        return a.reshape(shape)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        return jnp.concatenate(arrays, axis)

    def stack(self, numbers: Sequence[Any]) -> Any:
        return jnp.stack(numbers)

    def build_csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        return build_csr(starts, columns, values, self._device)

    def multiply_csr(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        return self._compute_into(out, multiply_csr, matrix, x)

    def compute_fft(self, x: Any) -> Any:
        return self._compute_into(None, jnp.fft.fft, x)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with jax.jit; arguments that the function uses as `out` are donated in each call."""
        return _CompiledFunction(function, self._donated)

    def finish(self, *arrays: Any) -> None:
        wait_for(arrays or None)

    def free_bytes(self) -> int:
        """Read the free memory; on a GPU the lesser of the limit of JAX and the free memory of the device."""
        if self.device == "cpu":
            return read_free_host_bytes()
        stats = self._device.memory_stats() or {}
        used = int(stats.get("bytes_in_use", 0))
        limit = int(stats.get("bytes_limit", 0)) - used
        pooled = max(0, int(stats.get("pool_bytes", 0)) - used)
        free = read_free_gpu_bytes(int(self._device.local_hardware_id))
        return limit if free is None else min(limit, free + pooled)

    def _compute_into(self, out: Optional[Any], function: Callable[..., Any], *operands: Any) -> Any:
        """Apply the function to its operands, in the memory of `out` if that can be donated."""
        places = [place for place, operand in enumerate(operands) if operand is out]
        if any(isinstance(each, jax.core.Tracer) for each in (out, *operands)):
            self._donated.append(out)
            return function(*operands)
        # An array that is read twice cannot be donated.
        if out is None or len(places) > 1:
            return _compile(function)(*operands)
        if places:
            return _compile(function, places[0])(*operands)
        return _compile_into(function, len(operands))(*operands, out)


class _CompiledFunction:
    """A function compiled at its first call, when the arguments to donate are known."""

    def __init__(self, function: Callable[..., Any], donated: List[Any]) -> None:
        self._function, self._donated = function, donated
        self._plain = jax.jit(function)
        self._with_donation: Optional[Callable[..., Any]] = None

    def __call__(self, *args: Any) -> Any:
        # This call is part of another compiled function.
        if any(isinstance(each, jax.core.Tracer) for each in args):
            return self._function(*args)
        if self._with_donation is None:
            places = self._find_donated(args)
            self._with_donation = jax.jit(self._function, donate_argnums=places, keep_unused=True)
        arrays = [id(each) for each in args if isinstance(each, jax.Array)]
        return (self._plain if len(set(arrays)) < len(arrays) else self._with_donation)(*args)

    def _find_donated(self, args: Sequence[Any]) -> Tuple[int, ...]:
        """Find the positions of arguments that the function uses as `out` and that match a result."""
        used: List[int] = []

        def trace(*tracers: Any) -> Any:
            result = self._function(*tracers)
            used.extend(i for i, each in enumerate(tracers) if any(each is out for out in self._donated))
            return result

        self._donated.clear()
        try:
            results = _list_signatures(jax.tree.leaves(jax.eval_shape(trace, *args)))
        finally:
            self._donated.clear()
        places = []
        for place in used:
            signature = (args[place].shape, args[place].dtype)
            if signature in results:
                results.remove(signature)
                places.append(place)
        return tuple(places)


def _list_signatures(arrays: Iterable[Any]) -> List[Any]:
    return [(each.shape, each.dtype) for each in arrays]


@functools.cache
def _compile(function: Callable[..., Any], place: Optional[int] = None) -> Callable[..., Any]:
    """Compile the function; the argument at `place` is donated."""
    return jax.jit(function, donate_argnums=() if place is None else place)


@functools.cache
def _compile_into(function: Callable[..., Any], num_operands: int) -> Callable[..., Any]:
    """Compile the function with one more argument, which is donated."""

    def compute(*operands_and_out: Any) -> Any:
        return function(*operands_and_out[:-1])

    return jax.jit(compute, donate_argnums=num_operands, keep_unused=True)


def _scale(factor: Any, a: Any) -> Any:
    return jnp.asarray(factor).astype(a.dtype) * a


def _add_scaled(a: Any, factor: Any, b: Any) -> Any:
    return a + jnp.asarray(factor).astype(b.dtype) * b


def _subtract_scaled(a: Any, factor: Any, b: Any) -> Any:
    return a - jnp.asarray(factor).astype(b.dtype) * b


def _matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, preferred_element_type=jnp.int32 if a.dtype == jnp.int8 else None)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _draw_normal(key: Any, shape: Tuple[int, ...], dtype: str) -> Any:
    """Draw random numbers piece by piece."""
    num_elements = int(np.prod(shape, dtype=np.int64))
    length = min(num_elements, PIECE_ELEMENTS)

    def fill(number: Any, flat: Any) -> Any:
        piece_key = jax.random.fold_in(key, number)
        if dtype == "int8":
            piece = jax.random.randint(piece_key, (length,), -MAX_INT8, MAX_INT8 + 1, jnp.int8)
        else:
            piece = jax.random.normal(piece_key, (length,), dtype)
        # dynamic_update_slice shifts the last piece so that it fits.
        return jax.lax.dynamic_update_slice(flat, piece, (number * length,))

    flat = jnp.zeros((num_elements,), dtype)
    if not length:
        return flat.reshape(shape)
    return jax.lax.fori_loop(0, -(-num_elements // length), fill, flat).reshape(shape)


def _check_dtype(dtype: str) -> str:
    if dtype not in DTYPES and dtype != "int32":
        raise Infeasible(f"jax arrays have no dtype {dtype}; they have {', '.join(DTYPES)}")
    return dtype
