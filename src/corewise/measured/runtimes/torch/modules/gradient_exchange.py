"""How data-parallel ranks average their gradients: gloo, shared memory, nccl, or a library outside of torch.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import abc
import importlib
import queue
import threading
import time
from typing import Any, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from corewise.accelerate.collectives.attach_hook import AttachedCollectives, attach
from corewise.accelerate.collectives.shared_allreduce import DEFAULT_TIMEOUT_S
from corewise.measured.runtimes.base import Infeasible, NotNow, RankContext
from corewise.measured.runtimes.mpi.mpi_communicator import MpiCommunicator
from corewise.measured.runtimes.torch.modules.step_timeline import StepTimeline

# A rank that waits longer for another one fails before the run's time limit, so that it can name the other rank.
FRACTION_OF_TIME_LIMIT = 0.8


class Reduction(abc.ABC):
    """A library outside of torch that averages buffers."""

    @abc.abstractmethod
    def average(self, buffer: Tensor) -> None:
        """Average the buffer over all ranks, in place; return when it is complete. A helper thread calls this."""

    def read_facts(self) -> Mapping[str, Any]:
        """Return facts that prove what carries the gradients."""
        return {}

    def close(self) -> None:
        """Release the library after the last average; all ranks call it."""
        return


def choose_backend(collectives: str, device: str) -> str:
    """Return what carries the gradients; raise Infeasible if it cannot on this device."""
    if collectives == "default":
        return "nccl" if device == "cuda" else "gloo"
    if collectives == "nccl" and device != "cuda":
        raise Infeasible("collectives nccl: it connects GPUs; use gloo, shared or mpi with device: cpu")
    if collectives in ("shared", "mpi", "horovod") and device == "cuda":
        raise Infeasible(f"collectives {collectives}: gradients are on GPUs; use nccl")
    return collectives


def choose_process_group(backend: str) -> str:
    """Return the backend of torch's process group; what torch does not carry itself, gloo coordinates."""
    return "nccl" if backend == "nccl" else "gloo"


def open_reduction(backend: str, context: RankContext) -> Reduction:
    """Open a library outside of torch that averages buffers; this is the place to add one.

    Raises:
        Infeasible: the library cannot be used here.
        NotNow: the library is not installed.
    """
    if backend == "horovod":
        return HorovodReduction(context)
    if backend == "mpi":
        return MpiReduction(context)
    raise Infeasible(f"collectives {backend}: training has gloo, shared, nccl, mpi and horovod")


class GradientExchange:
    """Wraps a module so that its gradients are averaged over all ranks."""

    def __init__(self, backend: str, context: RankContext, timeline: StepTimeline) -> None:
        self.backend = backend
        self._context, self._timeline = context, timeline
        self._attached: Optional[AttachedCollectives] = None
        self._reduction: Optional[Reduction] = None
        self._thread: Optional[ReductionThread] = None
        if backend not in ("gloo", "shared", "nccl"):
            self._reduction = open_reduction(backend, context)
            self._thread = ReductionThread(self._reduction, timeline)

    def wrap(self, module: nn.Module, device: torch.device, *, is_traced: bool = False) -> nn.Module:
        """Wrap the module; raise Infeasible with the reason if the backend cannot carry its gradients.

        Args:
            is_traced: a compiler traces the module, so it gets no hook.
        """
        if self.backend == "nccl":
            return DistributedDataParallel(module, device_ids=[device])
        # With views, the average needs no copy back to the gradients.
        wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
        if self.backend == "shared":
            limit_s = (self._context.time_limit_s or DEFAULT_TIMEOUT_S) * FRACTION_OF_TIME_LIMIT
            self._attached = attach(wrapped, timeout_s=limit_s)
            if self._attached.backend != "shared":
                raise Infeasible(f"collectives shared: {self._attached.reason}; use collectives: gloo")
            self._attached.observer = self._timeline.add_bucket
        elif self._thread is not None:
            # DDP refuses hooks whose annotations are texts, as they are in this file, so the hooks have none.
            wrapped.register_comm_hook(self._thread, lambda state, bucket: state.average(bucket.buffer()))
        else:
            wrapped.register_comm_hook(self._timeline, lambda state, bucket: average_over_gloo(state, bucket.buffer()))
        if not is_traced:
            module.register_forward_pre_hook(lambda *_: self._timeline.mark_forward())
        return wrapped

    def read_facts(self) -> Mapping[str, Any]:
        """Return facts that prove what carries the gradients."""
        facts = self._reduction.read_facts() if self._reduction is not None else {}
        return {**facts, "collectives_backend": self.backend, "num_buckets": self._timeline.num_buckets}

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()
        if self._thread is not None:
            self._thread.close()
        if self._reduction is not None:
            self._reduction.close()


def average_over_gloo(timeline: StepTimeline, buffer: Tensor) -> Any:
    """Start to average the buffer as DistributedDataParallel does without a hook; return a future of it."""
    ready = time.perf_counter()
    buffer.div_(dist.get_world_size())

    def finish(future: Any) -> Tensor:
        result: Tensor = future.value()[0]
        timeline.add_bucket(ready, time.perf_counter())
        return result

    work: Any = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(finish)


class ReductionThread:
    """Runs a blocking reduction next to the backward pass, one bucket after another."""

    def __init__(self, reduction: Reduction, timeline: StepTimeline) -> None:
        self._reduction, self._timeline = reduction, timeline
        self._tasks: queue.SimpleQueue[Optional[Tuple[Tensor, Any, float]]] = queue.SimpleQueue()
        # A rank that ends must not wait for reductions that no other rank takes part in.
        self._thread = threading.Thread(target=self._reduce_buckets, name="corewise-reduction", daemon=True)
        self._thread.start()

    def average(self, buffer: Tensor) -> Any:
        """Start to average the buffer in place; return a future of it."""
        raw: Any = torch.futures.Future()
        # An error must be raised in a callback: DDP does not recognize one that is set as the result.
        checked = raw.then(_return_or_raise)
        self._tasks.put((buffer, raw, time.perf_counter()))
        return checked

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _reduce_buckets(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            buffer, future, ready = task
            problem: Optional[Exception] = None
            try:
                self._reduction.average(buffer)
            except Exception as error:
                problem = error
            self._timeline.add_bucket(ready, time.perf_counter())
            future.set_result((buffer, problem))
            del task, buffer, future


def _return_or_raise(future: Any) -> Tensor:
    buffer, problem = future.value()
    if problem is not None:
        raise problem
    result: Tensor = buffer
    return result


class HorovodReduction(Reduction):
    """Averages through Horovod, where it is installed."""

    def __init__(self, context: RankContext) -> None:
        try:
            self._horovod: Any = importlib.import_module("horovod.torch")
        except ImportError as problem:
            # The next run tries again, with horovod installed.
            raise NotNow(
                "collectives horovod: horovod is not installed, and its last version 0.28.1 does not compile against "
                "torch 2.13; use gloo, shared or mpi"
            ) from problem
        self._horovod.init()
        if self._horovod.size() != context.num_ranks:
            raise Infeasible(
                f"collectives horovod: horovod sees {self._horovod.size()} ranks, not {context.num_ranks}; "
                "set the variables of its launcher (HOROVOD_RANK and others) in `environment`"
            )

    def average(self, buffer: Tensor) -> None:
        self._horovod.allreduce_(buffer, op=self._horovod.Average)


class MpiReduction(Reduction):
    """Averages through MPI. The helper thread has its own copy of the communicator."""

    def __init__(self, context: RankContext) -> None:
        self._communicator = MpiCommunicator(context)
        if not self._communicator.supports_threads:
            library = self._communicator.read_facts()["mpi_library"]
            self._communicator.close()
            raise Infeasible(
                f"collectives mpi: {library} lets only one thread call it, and gradients are averaged while another "
                "thread computes; use an MPI built with MPI_THREAD_MULTIPLE, or collectives gloo or shared"
            )
        self._gradients = self._communicator.duplicate()

    def average(self, buffer: Tensor) -> None:
        # MPI has no 16-bit numbers.
        summed = buffer.float() if buffer.itemsize < 4 else buffer
        self._gradients.allreduce(summed)
        torch.div(summed, self._gradients.num_ranks, out=buffer)

    def read_facts(self) -> Mapping[str, Any]:
        return self._communicator.read_facts()

    def close(self) -> None:
        self._communicator.close()
