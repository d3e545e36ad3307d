"""JAX's arrays for kernels, in host memory or on a GPU.

Measured side: standard library, numpy and jax only, Python 3.9. JAX never writes an array, but an array that
is given up (donated) lends its memory to the result. That is what `out` becomes here: without it every result
takes fresh pages from the kernel, which costs several times what the operation does.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from corewise.runtimes.base import Infeasible
from corewise.runtimes.cuda_driver import free_gpu_bytes
from corewise.runtimes.filling import DRAWN, LARGEST_INT8, fill_normal
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.jax.settings import wait_for
from corewise.runtimes.jax.sparse import make_csr, multiply_csr

PIECE_ELEMENTS = 2**26  # random numbers made at a time, so that what they are made of stays small
DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "complex64", "complex128")


class JaxArrays:
    """JAX on one device; float64 is float64."""

    runtime = "jax"
    writes_in_place = False
    memory_factor = 1.5
    threads_elementwise = True
    dtypes: Tuple[str, ...] = DTYPES

    def __init__(self, device: Any = None) -> None:
        # Without it JAX makes float32 of float64, unasked.
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
        self._device = jax.devices("cpu")[0] if device is None else device
        self.device = "cpu" if self._device.platform == "cpu" else "cuda"
        self._given_up: List[Any] = []  # what a function that is being compiled has used as `out`

    def empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return self.zeros(shape, dtype)

    def zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return jnp.zeros(shape, _known(dtype), device=self._device)

    def normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        if self.device == "cpu":
            drawn = np.empty(shape, _known(dtype) if dtype in DRAWN else np.float32)
            fill_normal(drawn, seed)
            there = jax.device_put(drawn, self._device)
            # Copied by XLA's threads, so that each makes the pages it will work on.
            return self.copy(there) if dtype in DRAWN else there.astype(_known(dtype))
        with jax.default_device(self._device):
            return _drawn(jax.random.key(seed), tuple(shape), _known(dtype))

    def from_host(self, array: Any) -> Any:
        return jnp.array(array, copy=True, device=self._device)

    def to_host(self, array: Any) -> Any:
        if array.dtype in (jnp.bfloat16, jnp.float16):
            array = array.astype(jnp.float32)
        return np.array(array)

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, jnp.copy, a)

    def scale(self, factor: Any, a: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, _scale, factor, a)

    def add(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, jnp.add, a, b)

    def multiply(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, jnp.multiply, a, b)

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, _add_scaled, a, factor, b)

    def dot(self, a: Any, b: Any) -> Any:
        return self._into(None, jnp.dot, a, b)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, _matmul, a, b)

    def right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, _subtract_scaled, a, factor, b)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        return self._into(out, _add_scaled, a, sign / divisor, b)

    def transpose(self, a: Any) -> Any:
        return a.T

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        return jnp.concatenate(arrays, axis)

    def stack(self, numbers: Sequence[Any]) -> Any:
        return jnp.stack(numbers)

    def csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        return make_csr(starts, columns, values, self._device)

    def csr_matvec(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        return self._into(out, multiply_csr, matrix, x)

    def fft(self, x: Any) -> Any:
        return self._into(None, jnp.fft.fft, x)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under jax.jit; arguments it uses as `out` are given up in each call."""
        return _Compiled(function, self._given_up)

    def finish(self, *arrays: Any) -> None:
        wait_for(arrays or None)

    def free_bytes(self) -> int:
        """On a GPU the lesser of what JAX allows itself and what nobody has taken."""
        if self.device == "cpu":
            return free_host_bytes()
        stats = self._device.memory_stats() or {}
        used = int(stats.get("bytes_in_use", 0))
        limit = int(stats.get("bytes_limit", 0)) - used
        kept = max(0, int(stats.get("pool_bytes", 0)) - used)
        untaken = free_gpu_bytes(int(self._device.local_hardware_id))
        return limit if untaken is None else min(limit, untaken + kept)

    def _into(self, out: Optional[Any], function: Callable[..., Any], *operands: Any) -> Any:
        """What the function makes of its operands, in the memory of `out` where that can be given up."""
        places = [place for place, operand in enumerate(operands) if operand is out]
        if any(isinstance(each, jax.core.Tracer) for each in (out, *operands)):
            self._given_up.append(out)
            return function(*operands)
        if out is None or len(places) > 1:  # what is read twice cannot be written meanwhile
            return _jitted(function)(*operands)
        if places:
            return _jitted(function, places[0])(*operands)
        return _jitted_into(function, len(operands))(*operands, out)


class _Compiled:
    """A function compiled at its first call, when it is seen which of its arguments it gives up."""

    def __init__(self, function: Callable[..., Any], given_up: List[Any]) -> None:
        self._function, self._given_up = function, given_up
        self._plain = jax.jit(function)
        self._donating: Optional[Callable[..., Any]] = None

    def __call__(self, *args: Any) -> Any:
        if any(isinstance(each, jax.core.Tracer) for each in args):  # within another compiled function
            return self._function(*args)
        if self._donating is None:
            places = self._places(args)
            self._donating = jax.jit(self._function, donate_argnums=places, keep_unused=True)
        arrays = [id(each) for each in args if isinstance(each, jax.Array)]
        return (self._plain if len(set(arrays)) < len(arrays) else self._donating)(*args)

    def _places(self, args: Sequence[Any]) -> Tuple[int, ...]:
        """Where the arguments stand that the function uses as `out` and that fit one of its results."""
        used: List[int] = []

        def traced(*tracers: Any) -> Any:
            result = self._function(*tracers)
            used.extend(i for i, each in enumerate(tracers) if any(each is out for out in self._given_up))
            return result

        self._given_up.clear()
        try:
            results = _kinds(jax.tree.leaves(jax.eval_shape(traced, *args)))
        finally:
            self._given_up.clear()
        places = []
        for place in used:
            kind = (args[place].shape, args[place].dtype)
            if kind in results:
                results.remove(kind)
                places.append(place)
        return tuple(places)


def _kinds(arrays: Iterable[Any]) -> List[Any]:
    return [(each.shape, each.dtype) for each in arrays]


@functools.cache
def _jitted(function: Callable[..., Any], place: Optional[int] = None) -> Callable[..., Any]:
    """The function compiled; the argument at `place` is given up."""
    return jax.jit(function, donate_argnums=() if place is None else place)


@functools.cache
def _jitted_into(function: Callable[..., Any], num_operands: int) -> Callable[..., Any]:
    """The function compiled with one argument more, which is given up."""

    def into(*operands_and_out: Any) -> Any:
        return function(*operands_and_out[:-1])

    return jax.jit(into, donate_argnums=num_operands, keep_unused=True)


def _scale(factor: Any, a: Any) -> Any:
    return jnp.asarray(factor).astype(a.dtype) * a


def _add_scaled(a: Any, factor: Any, b: Any) -> Any:
    return a + jnp.asarray(factor).astype(b.dtype) * b


def _subtract_scaled(a: Any, factor: Any, b: Any) -> Any:
    return a - jnp.asarray(factor).astype(b.dtype) * b


def _matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, preferred_element_type=jnp.int32 if a.dtype == jnp.int8 else None)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _drawn(key: Any, shape: Tuple[int, ...], dtype: str) -> Any:
    """Random numbers, made piece by piece."""
    num_elements = int(np.prod(shape, dtype=np.int64))
    length = min(num_elements, PIECE_ELEMENTS)

    def fill(number: Any, flat: Any) -> Any:
        own = jax.random.fold_in(key, number)
        if dtype == "int8":
            piece = jax.random.randint(own, (length,), -LARGEST_INT8, LARGEST_INT8 + 1, jnp.int8)
        else:
            piece = jax.random.normal(own, (length,), dtype)
        return jax.lax.dynamic_update_slice(flat, piece, (number * length,))  # the last one is moved to fit

    flat = jnp.zeros((num_elements,), dtype)
    if not length:
        return flat.reshape(shape)
    return jax.lax.fori_loop(0, -(-num_elements // length), fill, flat).reshape(shape)


def _known(dtype: str) -> str:
    if dtype not in DTYPES and dtype != "int32":
        raise Infeasible(f"jax arrays have no dtype {dtype}; they have {', '.join(DTYPES)}")
    return dtype
