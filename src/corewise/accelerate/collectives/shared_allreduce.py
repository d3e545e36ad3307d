"""Sum tensors over the ranks of a process group: shared memory within a node, gloo between nodes.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from corewise.accelerate.collectives.native_library import load_library
from corewise.accelerate.collectives.node_segment import (
    SegmentServer,
    describe_node,
    explain_missing_memory,
    map_segment,
    receive_segment,
)
from corewise.accelerate.unsupported import Unsupported

# The type codes of allreduce.cpp.
TYPE_CODES: Dict[torch.dtype, int] = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
DEFAULT_TIMEOUT_S = 300.0
# The slots of all ranks should fit into the last cache together. With few ranks, chunks beyond 1 MiB gain nothing.
RING_BYTES = 16 << 20
LARGEST_CHUNK_BYTES, SMALLEST_CHUNK_BYTES = 1 << 20, 64 << 10
# The slots of each rank in allreduce.cpp.
NUM_SLOTS = 4
# Polls before a rank sleeps: about 100 µs if it has its core to itself.
SPINS = 3000
# The collectives of allreduce.cpp that this file uses.
ALLREDUCE, BROADCAST = 0, 1
# The status codes of allreduce.cpp.
_TIMED_OUT, _PEER_DIED, _MISMATCH, _FAILED_BEFORE = 1, 2, 3, 4


class CollectiveError(RuntimeError):
    """Raised if a rank died, did not take part in time, or passed another size; the text names it."""


class SharedAllreduce:
    """Sums tensors over all ranks of a process group, in place, with identical bits on every rank.

    All ranks construct it together and call `allreduce` in the same order. If a rank cannot share memory, the
    constructor raises Unsupported on every rank.

    Args:
        group: the process group; default: all ranks. Its backend must be able to gather objects (gloo or MPI).
        timeout_s: how long a rank waits for another one before CollectiveError.
        node: the name of this rank's node; default: found from the kernel's boot and namespaces.
        chunk_bytes: the size of the pieces in which a tensor is summed, the same on all ranks; default: from the cache.

    Example:
        >>> reducer = SharedAllreduce()  # doctest: +SKIP
        >>> reducer.allreduce(torch.ones(1000))  # doctest: +SKIP
    """

    def __init__(
        self,
        group: Optional[Any] = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        node: Optional[str] = None,
        chunk_bytes: Optional[int] = None,
    ) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._timeout_s = timeout_s
        self._chunk_bytes = chunk_bytes
        self._process = os.getpid()
        self._handle: Optional[int] = None
        self._leaders: Optional[Any] = None
        reason = self._load()
        facts = _gather((node or describe_node(), os.getpid(), reason), group)
        _raise_first([fact[2] for fact in facts])
        names = [fact[0] for fact in facts]
        self._node_ranks = [rank for rank, name in enumerate(names) if name == names[self.rank]]
        self._local_rank = self._node_ranks.index(self.rank)
        self.num_nodes = len(set(names))
        pids = [facts[rank][1] for rank in self._node_ranks]
        if self._chunk_bytes is None:
            self._chunk_bytes = choose_chunk_bytes(len(pids))
        server, name = self._offer_segment(group)
        reason = ""
        try:
            self._share_segment(server, name)
            self._open(pids)
        except (OSError, Unsupported) as problem:
            reason = str(problem)
        _raise_first(_gather(reason, group))
        if self.num_nodes > 1:
            leaders = sorted({names.index(name) for name in names})
            members = leaders if group is None else [dist.get_global_rank(group, rank) for rank in leaders]
            if self._local_rank == 0:
                # Only the leaders take part, also if the process group is a part of all ranks.
                self._leaders = dist.new_group(
                    members, timedelta(seconds=timeout_s), backend="gloo", use_local_synchronization=True
                )

    def _load(self) -> str:
        try:
            self._library = load_library()
        except Unsupported as problem:
            return str(problem)
        return ""

    def _offer_segment(self, group: Optional[Any]) -> Tuple[Optional[SegmentServer], str]:
        """Create the segment on the first rank of each node; return its server, if any, and the name to ask for."""
        num_local = len(self._node_ranks)
        self._segment_bytes = int(self._library.corewise_segment_bytes(num_local, self._chunk_bytes))
        server, reason = None, ""
        if self._local_rank == 0:
            reason = explain_missing_memory(self._segment_bytes)
            try:
                server = None if reason else SegmentServer(self._segment_bytes)
            except OSError as problem:
                reason = f"no shared segment can be created: {problem.strerror or problem}"
        offers = _gather((server.name if server is not None else "", reason), group)
        _raise_first([offer[1] for offer in offers])
        return server, offers[self._node_ranks[0]][0]

    def _share_segment(self, server: Optional[SegmentServer], name: str) -> None:
        wait_s = min(self._timeout_s, 60.0)
        if server is not None:
            server.serve(len(self._node_ranks) - 1, wait_s)
            descriptor = server.descriptor
        else:
            descriptor = receive_segment(name, wait_s)
        self._segment = map_segment(descriptor, self._segment_bytes)

    def _open(self, pids: List[int]) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._segment))
        numbers = (ctypes.c_int * len(pids))(*pids)
        self._handle = self._library.corewise_open(
            address, self._local_rank, len(pids), self._chunk_bytes, numbers, self._timeout_s
        )
        if not self._handle:
            raise Unsupported(f"{len(pids)} ranks on one node are too many")

    def explain_unsupported(self, tensor: Tensor) -> str:
        """Return why this tensor cannot be reduced in shared memory, or an empty text."""
        if tensor.device.type != "cpu":
            return f"the tensor is on {tensor.device}"
        if tensor.dtype not in TYPE_CODES:
            return f"sums of {str(tensor.dtype).replace('torch.', '')} are not supported"
        if not tensor.is_contiguous():
            return "the tensor is not contiguous"
        return ""

    def allreduce(self, tensor: Tensor, scale: float = 1.0, spins: int = SPINS) -> Tensor:
        """Replace the tensor by its sum over all ranks, times the scale, and return it.

        Raises:
            Unsupported: the tensor is on a GPU, has another type, or is not contiguous.
            CollectiveError: a rank died, did not come in time, or passed another size. Later calls fail, too.
        """
        reason = self.explain_unsupported(tensor)
        if reason:
            raise Unsupported(reason)
        count, code = tensor.numel(), TYPE_CODES[tensor.dtype]
        here = scale if self.num_nodes == 1 else 1.0
        self._run(ALLREDUCE, tensor, tensor, count, code, scale=here, spins=spins)
        if self.num_nodes > 1:
            if self._local_rank == 0:
                self._sum_over_nodes(tensor, scale)
            self._run(BROADCAST, tensor, tensor, count, code, spins=spins)
        return tensor

    def _sum_over_nodes(self, tensor: Tensor, scale: float) -> None:
        try:
            dist.all_reduce(tensor, group=self._leaders)
        except RuntimeError as problem:
            self.fail()
            raise CollectiveError(
                f"rank {self.rank} could not sum with the other nodes over gloo: {problem}"
            ) from problem
        tensor.mul_(scale)

    def _run(
        self,
        collective: int,
        source: Tensor,
        target: Tensor,
        count: int,
        code: int,
        *,
        scale: float = 1.0,
        root: int = 0,
        spins: int = SPINS,
    ) -> None:
        if self._handle is None:
            raise CollectiveError("the shared-memory group is closed")
        if self._process != os.getpid():
            # The segment is not mapped in processes that a rank forks.
            raise CollectiveError(f"process {os.getpid()} was forked by rank {self.rank}, and is no rank")
        status = self._library.corewise_run(
            self._handle, collective, source.data_ptr(), target.data_ptr(), count, code, scale, root, spins
        )
        if status:
            raise CollectiveError(self._describe_failure(status))

    def _describe_failure(self, status: int) -> str:
        culprit = self._node_ranks[self._library.corewise_culprit(self._handle)]
        if status == _TIMED_OUT:
            return (
                f"rank {self.rank} waited {self._timeout_s:g} s for rank {culprit} in a collective; "
                f"look at what rank {culprit} does, or raise timeout_s"
            )
        if status == _PEER_DIED:
            return f"rank {culprit} ended during a collective; look at its output for the cause"
        if status == _MISMATCH:
            return f"ranks {self.rank} and {culprit} differ in the collective, or in the size or type of their tensors"
        return f"a collective failed before because of rank {culprit}; start the ranks again"

    def fail(self) -> None:
        """Let the other ranks of this node stop waiting for this one."""
        if self._handle is not None and self._process == os.getpid():
            self._library.corewise_fail(self._handle)

    def close(self) -> None:
        """Release the segment; it vanishes with the last rank that holds it."""
        if self._handle is not None and self._process == os.getpid():
            self._library.corewise_close(self._handle)
            self._handle = None
            # The address of the mapping is exported for the lifetime of the ctypes object.
            with suppress(BufferError):
                self._segment.close()


def choose_chunk_bytes(num_ranks: int) -> int:
    """Return the largest chunk with which the slots of this many ranks stay in the last cache."""
    fitting = RING_BYTES // (num_ranks * NUM_SLOTS) // 4096 * 4096
    return max(SMALLEST_CHUNK_BYTES, min(LARGEST_CHUNK_BYTES, fitting))


def _gather(value: Any, group: Optional[Any]) -> List[Any]:
    values: List[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _raise_first(reasons: List[str]) -> None:
    """Raise Unsupported for the first rank that has a reason; all ranks hold the same list."""
    for rank, reason in enumerate(reasons):
        if reason:
            raise Unsupported(f"rank {rank}: {reason}")
