"""The communication workload: latency and bandwidth of messages among the ranks of a trial.

Measured side: standard library and numpy only, Python 3.9. Sizes and bus factors follow NCCL's tests, so that a figure
can be compared with the hardware whatever the number of ranks. A ping-pong is measured as in the OSU benchmarks:
half of the round trip. `push_add` is the STREAM of Chien et al., "TensorFlow Doing HPC" (2019): push a vector to
another rank and add it there.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.parameters import Collectives, Device, TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible
from corewise.measured.runtimes.communication.communicator import list_shared_operations
from corewise.measured.runtimes.communication.network_interface import read_link_gbyte_per_s
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.kernel import Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_choice, read_whole_number
from corewise.measured.workloads.registry import load_attribute

ITEM_BYTES = 4
# Arrays of a run and of its check, relative to the size of the message.
NUM_ARRAYS = 6
# Seeds travel as float32, which holds whole numbers up to here.
MAX_SEED = 2**24
# Steps timed before the warm-up, to know how long a rank that takes no part has to wait.
NUM_TRIAL_STEPS = 3
# A rank that takes no part sleeps if a step is longer than this, and spins otherwise.
MIN_SLEEP_S = 0.002
GRPC_RUN = "corewise.measured.runtimes.tensorflow.communication.grpc_push:GrpcPushRun"


@dataclasses.dataclass(frozen=True)
class Operation:
    """What the figures of an operation depend on; `n` is the number of ranks, sizes are relative to `size_bytes`.

    Attributes:
        bus_factor: the bus bandwidth relative to the algorithm bandwidth.
        traffic: the least bytes that all ranks of a node read and write together.
        num_messages: operations in one call; a ping-pong is two.
        is_pairwise: only the first and the last rank take part.
        is_sum: the result is rounded.
    """

    bus_factor: Callable[[int], float]
    traffic: Callable[[int], float]
    num_messages: int = 1
    is_pairwise: bool = False
    is_sum: bool = False


OPERATIONS: Mapping[str, Operation] = {
    "point_to_point": Operation(lambda n: 1.0, lambda n: 2.0, num_messages=2, is_pairwise=True),
    "exchange": Operation(lambda n: 1.0, lambda n: 2.0 * n),
    "allreduce": Operation(lambda n: 2.0 * (n - 1) / n, lambda n: 2.0 * n, is_sum=True),
    "allgather": Operation(lambda n: (n - 1) / n, lambda n: 1.0 + n),
    "all_to_all": Operation(lambda n: (n - 1) / n, lambda n: 2.0 * n),
    "broadcast": Operation(lambda n: 1.0, lambda n: float(n)),
    "reduce_scatter": Operation(lambda n: (n - 1) / n, lambda n: 1.0 + n, is_sum=True),
    "push_add": Operation(lambda n: 1.0, lambda n: 3.0, is_pairwise=True, is_sum=True),
}
# What carries messages, by runtime; the first is the default.
BACKENDS: Mapping[str, Tuple[str, ...]] = {
    "torch": ("gloo", "shared", "mpi", "nccl"),
    "numpy": ("mpi",),
    "tensorflow": ("grpc",),
}


@dataclasses.dataclass(frozen=True)
class Communication(Kernel):
    """One step runs an operation `num_calls` times on float32 arrays of `size_bytes`."""

    name: str = "communication"
    summary: str = "latency and bandwidth of messages among ranks (args.operation, args.size_bytes)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = tuple(BACKENDS)
    concurrent: bool = False
    is_distributed = True

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"operation": "allreduce", "size_bytes": 2**20, "num_calls": 1}

    @property
    def axis_defaults(self) -> Mapping[str, Any]:
        return {"processes": 2}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float32",)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count the bytes of the messages of one step; over its time they give the algorithm bandwidth."""
        name, size_bytes, num_calls = self._read_parameters(args)
        num_bytes = float(size_bytes * num_calls * OPERATIONS[name].num_messages)
        return Work(flops_per_sample=0.0, bytes_per_sample=num_bytes, num_parameters=0)

    def derive_metrics(self, params: TrialParameters, step_s: float) -> Mapping[str, float]:
        """Return the time of one operation, one way, and its bus bandwidth."""
        name, size_bytes, num_calls = self._read_parameters(params.arguments)
        operation = OPERATIONS[name]
        latency_s = step_s / (num_calls * operation.num_messages)
        bus_factor = operation.bus_factor(params.num_ranks)
        return {"latency_s": latency_s, "bus_gbyte_per_s": bus_factor * size_bytes / latency_s / 1e9}

    def count_memory_traffic(self, params: TrialParameters) -> Optional[float]:
        """Count the least bytes that the ranks of a node read and write in a step; 0 if a network carries them."""
        if params.nodes > 1:
            return 0.0
        name, size_bytes, num_calls = self._read_parameters(params.arguments)
        operation = OPERATIONS[name]
        return operation.traffic(params.num_ranks) * size_bytes * num_calls * operation.num_messages

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why this combination of ranks, backend and operation does not exist."""
        name, size_bytes, _ = self._read_parameters(params.arguments)
        if params.num_ranks < 2:
            return "communication needs at least two ranks; set processes: 2"
        if size_bytes < ITEM_BYTES * params.num_ranks:
            return f"args.size_bytes {size_bytes} holds no float32 number for each of {params.num_ranks} ranks"
        known, on_gpu = BACKENDS.get(params.runtime, ()), params.device == Device.CUDA
        if not known:
            return None
        backend = params.collectives.value
        if params.collectives == Collectives.DEFAULT:
            backend = "nccl" if on_gpu and "nccl" in known else known[0]
        if backend not in known:
            return f"collectives: {backend} does not exist in {params.runtime}, which has {', '.join(known)}"
        if (backend == "nccl") != on_gpu:
            return f"collectives: {backend} is not for arrays on device: {params.device}"
        operations = list_operations(backend, params.nodes)
        if name not in operations:
            place = f"{backend} on {params.nodes} nodes" if params.nodes > 1 else backend
            return f"collectives: {place} has {', '.join(operations)}, not {name}"
        if backend == "grpc" and params.nodes > 1:
            return "collectives: grpc runs on one node"
        return None

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return NUM_ARRAYS * self._read_parameters(args)[1]

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        size_bytes = free_bytes // NUM_ARRAYS // ITEM_BYTES * ITEM_BYTES
        return {**args, "size_bytes": size_bytes} if size_bytes else dict(args)

    def build(self, setup: KernelSetup) -> KernelRun:
        name, size_bytes, num_calls = self._read_parameters(setup.args)
        communicator = setup.communicator
        if communicator.num_ranks < 2:
            raise Infeasible("communication needs at least two ranks; set processes: 2")
        reason = communicator.explain_unsupported(name)
        if reason:
            raise Infeasible(reason)
        num_elements = size_bytes // ITEM_BYTES // communicator.num_ranks * communicator.num_ranks
        if not num_elements:
            raise Infeasible(f"{size_bytes} bytes hold no float32 number for each of {communicator.num_ranks} ranks")
        if communicator.backend == "grpc":
            run: KernelRun = load_attribute(GRPC_RUN)(communicator, num_elements, num_calls)
            return run
        return CommunicationRun(setup, name, num_elements, num_calls)

    def _read_parameters(self, args: Mapping[str, Any]) -> Tuple[str, int, int]:
        """Return the operation, the size of its arrays, and the number of calls in a step."""
        filled = fill_defaults(self.name, self.parameters, args)
        return (
            read_choice(self.name, filled, "operation", tuple(OPERATIONS)),
            read_whole_number(self.name, filled, "size_bytes", ITEM_BYTES),
            read_whole_number(self.name, filled, "num_calls"),
        )


class CommunicationRun(KernelRun):
    """The arrays of one rank for one operation."""

    def __init__(self, setup: KernelSetup, name: str, num_elements: int, num_calls: int) -> None:
        self._arrays, self._communicator = setup.arrays, setup.communicator
        self._name, self._operation, self._num_calls = name, OPERATIONS[name], num_calls
        self._num_elements, self._first_address = num_elements, setup.first_address
        self._rank, self._num_ranks = self._communicator.rank, self._communicator.num_ranks
        self._last = self._num_ranks - 1
        self.takes_part = not self._operation.is_pairwise or self._rank in (0, self._last)
        # A broadcast starts at another rank each time: a constant root would run ahead of the others.
        self._root = 0
        self._idle_s = 0.0
        self._mine: Any = None
        self._other: Any = None
        self._call: Callable[[], None] = getattr(self, f"_{name}")

    def step(self) -> None:
        if not self.takes_part:
            wait_idle(self._idle_s)
            return
        for _ in range(self._num_calls):
            self._call()

    def check(self) -> Check:
        """Compare the result on this rank with one computed from the seeds of all ranks; then prepare for timing."""
        seeds = self._agree_on_seeds()
        self._place_arrays(self._draw(seeds[self._rank]), self._draw(seeds[self._rank] + 1))
        self._root = 0
        if self.takes_part:
            self._call()
        error = self._compute_error(seeds)
        # Sums that are repeated would overflow, those of zeros do not.
        zeros = np.zeros(self._num_elements, np.float32)
        self._place_arrays(zeros, zeros)
        self._root = 0
        self._idle_s = self._measure_idle_time()
        tolerance = self._num_ranks * 2.0**-23 if self._operation.is_sum else 0.0
        return Check(error, tolerance, f"all {self._num_elements} elements in float64, from the seeds of all ranks")

    def read_facts(self) -> Mapping[str, Any]:
        return {"message_bytes": self._num_elements * ITEM_BYTES, "takes_part": self.takes_part}

    def collect_metrics(self) -> Mapping[str, float]:
        """Return the nominal rate of the link between the nodes, where it is known."""
        rate = read_link_gbyte_per_s(self._first_address) if self._first_address else None
        return {} if rate is None else {"link_gbyte_per_s": rate}

    def close(self) -> None:
        self._mine = self._other = None

    def _point_to_point(self) -> None:
        if self._rank == 0:
            self._communicator.send(self._mine, self._last)
            self._communicator.receive(self._other, self._last)
        else:
            self._communicator.receive(self._other, 0)
            self._communicator.send(self._other, 0)

    def _exchange(self) -> None:
        after, before = (self._rank + 1) % self._num_ranks, (self._rank - 1) % self._num_ranks
        self._communicator.exchange(self._mine, after, self._other, before)

    def _allreduce(self) -> None:
        self._communicator.allreduce(self._mine)

    def _allgather(self) -> None:
        self._communicator.allgather(self._other, self._mine)

    def _all_to_all(self) -> None:
        self._communicator.all_to_all(self._other, self._mine)

    def _broadcast(self) -> None:
        self._communicator.broadcast(self._mine, self._root)
        self._root = (self._root + 1) % self._num_ranks

    def _reduce_scatter(self) -> None:
        self._communicator.reduce_scatter(self._other, self._mine)

    def _push_add(self) -> None:
        if self._rank == 0:
            self._communicator.send(self._mine, self._last)
            return
        self._communicator.receive(self._other, 0)
        self._mine = self._arrays.add(self._mine, self._other, out=self._mine)
        self._arrays.finish(self._mine)

    def _place_arrays(self, mine: Any, other: Any) -> None:
        """Place what this rank contributes, and what it receives into, on the device."""
        num_piece = self._num_elements // self._num_ranks
        if self._name == "allgather":
            mine = mine[:num_piece]
        if self._name == "reduce_scatter":
            other = other[:num_piece]
        self._mine, self._other = self._arrays.from_host(mine), self._arrays.from_host(other)

    def _draw(self, seed: int) -> Any:
        return draw_array(seed, self._num_elements)

    def _agree_on_seeds(self) -> List[int]:
        """Let every rank draw a seed, and return those of all ranks."""
        seeds = np.zeros(self._num_ranks, np.float32)
        seeds[self._rank] = draw_seed()
        return [int(seed) for seed in self._sum_over_ranks(seeds)]

    def _sum_over_ranks(self, values: Any) -> Any:
        array = self._arrays.from_host(values)
        self._communicator.allreduce(array)
        return self._arrays.to_host(array)

    def _compute_error(self, seeds: List[int]) -> float:
        expected, scale = self._compute_expected(seeds)
        if expected is None:
            return 0.0
        in_place = self._name in ("allreduce", "broadcast", "push_add")
        result = self._arrays.to_host(self._mine if in_place else self._other)
        # np.max propagates NaN.
        return float(np.max(np.abs(result - expected) / scale))

    def _compute_expected(self, seeds: List[int]) -> Tuple[Any, Any]:
        """Return the result of this rank in float64 and the magnitude of its summands; None if it receives nothing."""
        name, rank, num_piece = self._name, self._rank, self._num_elements // self._num_ranks
        piece = slice(rank * num_piece, (rank + 1) * num_piece)
        if name == "push_add":
            if rank != self._last:
                return None, None
            return sum_arrays([self._draw(seeds[0]), self._draw(seeds[rank])])
        if name in ("allreduce", "reduce_scatter"):
            kept = piece if name == "reduce_scatter" else slice(None)
            return sum_arrays(self._draw(seed)[kept] for seed in seeds)
        if name in ("point_to_point", "broadcast"):
            return (self._draw(seeds[0]), 1.0) if self.takes_part else (None, None)
        if name == "exchange":
            return self._draw(seeds[(rank - 1) % self._num_ranks]), 1.0
        kept = slice(0, num_piece) if name == "allgather" else piece
        return np.concatenate([self._draw(seed)[kept] for seed in seeds]), 1.0

    def _measure_idle_time(self) -> float:
        """Return how long a rank that takes no part waits in each step: half of the time of the others."""
        if not self._operation.is_pairwise or self._num_ranks == 2:
            return 0.0
        step_s = time_steps(self.step) if self.takes_part else 0.0
        # Both partners contribute their time.
        summed = self._sum_over_ranks(np.full(1, step_s, np.float32))
        return float(summed[0]) / 4.0


def list_operations(backend: str, num_nodes: int) -> Tuple[str, ...]:
    """List the operations that a backend carries among ranks on this many nodes."""
    if backend == "shared":
        return list_shared_operations(num_nodes)
    return ("push_add",) if backend == "grpc" else tuple(OPERATIONS)


def draw_seed() -> int:
    """Draw a seed that no other rank or run is likely to have."""
    return int.from_bytes(os.urandom(4), "little") % MAX_SEED


def draw_array(seed: int, num_elements: int) -> Any:
    """Draw normal random numbers; every rank can draw those of another one."""
    return np.random.default_rng(seed).standard_normal(num_elements, np.float32)


def sum_arrays(arrays: Any) -> Tuple[Any, Any]:
    """Return the sum of arrays in float64, and the sum of their magnitudes."""
    total, scale = 0.0, 0.0
    for array in arrays:
        total, scale = total + array.astype(np.float64), scale + np.abs(array)
    return total, scale


def time_steps(step: Callable[[], None]) -> float:
    """Return the shortest of a few steps in seconds."""
    times_s = []
    for _ in range(NUM_TRIAL_STEPS):
        started = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - started)
    return min(times_s)


def wait_idle(seconds: float) -> None:
    """Wait without disturbing the ranks that pass messages; a short wait is exact, so that it is steady."""
    if seconds >= MIN_SLEEP_S:
        time.sleep(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


COMMUNICATION = Communication()
