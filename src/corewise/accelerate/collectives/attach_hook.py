"""Average the gradients of DistributedDataParallel in shared memory.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from corewise.accelerate.collectives.shared_allreduce import DEFAULT_TIMEOUT_S, SPINS, CollectiveError, SharedAllreduce
from corewise.accelerate.unsupported import Unsupported

# Polls before the helper thread sleeps. It shares its core with the backward pass, so it sleeps early.
OVERLAPPED_SPINS = 200
# The models whose gradients are averaged in shared memory.
_attached: weakref.WeakKeyDictionary[nn.Module, AttachedCollectives] = weakref.WeakKeyDictionary()


class AttachedCollectives:
    """What `attach` returns: which backend averages the gradients, and why.

    Attributes:
        backend: `shared`, or the name of the process group's backend, for example `gloo`.
        reason: why shared memory is not used; empty if it is.
        overlap: buckets are averaged while the backward pass runs, not after it.
        communication_s: the seconds that the helper thread has spent in reductions.
        observer: if set, it is called for every bucket with the times of `perf_counter` at which its local gradients
            were complete and at which it was averaged.
    """

    def __init__(
        self, backend: str, reason: str, reducer: Optional[SharedAllreduce], num_ranks: int, overlap: bool = True
    ) -> None:
        self.backend, self.reason = backend, reason
        self.num_ranks, self.overlap = num_ranks, overlap
        self.communication_s = 0.0
        self._process = os.getpid()
        self.observer: Optional[Callable[[float, float], None]] = None
        self._reducer = reducer
        self._tasks: queue.SimpleQueue[Optional[Tuple[Tensor, Any, float]]] = queue.SimpleQueue()
        # Buckets that wait for the end of the backward pass.
        self._waiting: List[Tuple[Tensor, Any]] = []
        self._thread: Optional[threading.Thread] = None
        if reducer is not None:
            # A rank that ends must not wait for reductions that no other rank takes part in.
            self._thread = threading.Thread(target=self._reduce_buckets, name="corewise-allreduce", daemon=True)
            self._thread.start()

    def explain(self) -> str:
        """Describe in one sentence how gradients are averaged."""
        if self._reducer is None:
            return f"Gradients are averaged over {self.backend}: {self.reason}."
        between = f"; gloo between {self._reducer.num_nodes} nodes" if self._reducer.num_nodes > 1 else ""
        return f"Gradients of {self.num_ranks} ranks are averaged in shared memory{between}."

    def close(self) -> None:
        """Stop the helper thread and release the shared memory; the model cannot be trained afterwards."""
        if self._thread is not None and self._reducer is not None and self._process == os.getpid():
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
            self._reducer.close()

    def average(self, buffer: Tensor, is_last: bool = True) -> Any:
        """Average the buffer in place, now or with the last one of this backward pass; return a future of it."""
        if self._thread is None or self._process != os.getpid():
            raise CollectiveError(
                "the shared memory of this model is closed, or belongs to the process that forked this one; "
                "wrap the module in DistributedDataParallel and attach again"
            )
        raw: Any = torch.futures.Future()
        # An error must be raised in a callback: DDP does not recognize one that is set as the result.
        checked = raw.then(_raise_problem)
        self._waiting.append((buffer, raw))
        if self.overlap or is_last:
            now, waiting = time.perf_counter(), self._waiting
            self._waiting = []
            for each, future in waiting:
                self._tasks.put((each, future, now))
        return checked

    def _reduce_buckets(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            buffer, future, ready = task
            start = time.perf_counter()
            problem: Optional[Exception] = None
            try:
                self._average_now(buffer)
            except Exception as error:
                problem = error
            done = time.perf_counter()
            self.communication_s += done - start
            if self.observer is not None:
                self.observer(ready, done)
            future.set_result((buffer, problem))
            del task, buffer, future

    def _average_now(self, buffer: Tensor) -> None:
        assert self._reducer is not None
        self._reducer.allreduce(buffer, 1.0 / self.num_ranks, OVERLAPPED_SPINS if self.overlap else SPINS)


def attach(
    model: nn.Module,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    node: Optional[str] = None,
    overlap: Optional[bool] = None,
) -> AttachedCollectives:
    """Average the gradients of a DDP model in shared memory instead of over gloo.

    All ranks call it together, after they have wrapped their model and before the first backward pass. If the ranks
    cannot share memory, the model keeps its process group's backend, and the result says why. A second call for the
    same model returns the first result. Pass `gradient_as_bucket_view=True` to DistributedDataParallel to save two
    copies of the gradients.

    Args:
        model: a DistributedDataParallel module.
        timeout_s: how long a rank waits for another one before the backward pass raises an error.
        node: the name of this rank's node; default: found from the kernel's boot and namespaces.
        overlap: whether buckets are averaged while the backward pass runs; default: only between nodes. Within a node
            a sum is work for the same cores, and ranks that compute let each other wait for every chunk of it.

    Returns:
        An object with `backend`, `reason` and `explain()`.

    Raises:
        TypeError: the model is not wrapped in DistributedDataParallel.

    Example:
        >>> ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)  # doctest: +SKIP
        >>> print(corewise.collectives.attach(ddp).explain())  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"attach takes a DistributedDataParallel module, not {type(model).__name__}; "
            "wrap the model in torch.nn.parallel.DistributedDataParallel first"
        )
    if model in _attached:
        return _attached[model]
    group = model.process_group
    num_ranks = dist.get_world_size(group)
    # All ranks hold the same parameters and the same group, so all of them choose alike.
    reason = _explain_unsupported(model, num_ranks)
    reducer: Optional[SharedAllreduce] = None
    if not reason:
        try:
            reducer = SharedAllreduce(group, timeout_s, node)
        except Unsupported as problem:
            reason = str(problem)
    backend = str(dist.get_backend(group)) if reducer is None else "shared"
    if overlap is None:
        # DDP may leave out the last bucket, whose end the others would wait for.
        is_incomplete = getattr(model, "skip_all_reduce_unused_params", False)
        overlap = is_incomplete or (reducer is not None and reducer.num_nodes > 1)
    attached = AttachedCollectives(backend, reason, reducer, num_ranks, overlap)
    if reducer is not None:
        # DDP refuses hooks whose annotations are texts, as they are in this file, so the hook has none.
        model.register_comm_hook(attached, lambda state, bucket: state.average(bucket.buffer(), bucket.is_last()))
        _attached[model] = attached
    return attached


def _explain_unsupported(model: DistributedDataParallel, num_ranks: int) -> str:
    if num_ranks == 1:
        return "there is only one rank"
    # Mixed precision of DDP has a hook, too. The list exists since torch 2.1.
    if getattr(model, "_comm_hooks", None):
        return "the model has a communication hook already"
    parameters: List[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = sorted({parameter.device.type for parameter in parameters} - {"cpu"})
    if devices:
        return f"parameters are on {', '.join(devices)}"
    supported = (torch.float32, torch.float64, torch.bfloat16)
    types = sorted(
        {str(parameter.dtype).replace("torch.", "") for parameter in parameters if parameter.dtype not in supported}
    )
    if types:
        return f"sums of {', '.join(types)} are not supported in shared memory"
    return ""


def _raise_problem(future: Any) -> Tensor:
    buffer, problem = future.value()
    if problem is not None:
        raise problem
    result: Tensor = buffer
    return result
