"""Cases that the tests run on every rank: ranks that die, stop, hang or differ, and systems that refuse memory."""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from corewise.collectives import CollectiveError, SharedAllreduce, attach

# The numbers of system calls differ between machines; pidfd_open has the same one on all.
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
PIDFD_OPEN = 434


def expect_failure(call: Any) -> str:
    try:
        call()
    except (CollectiveError, RuntimeError) as problem:
        return str(problem)
    return "no error"


def lose_rank(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=60)
    reducer.allreduce(torch.ones(10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return expect_failure(lambda: reducer.allreduce(torch.ones(2_000_000)))


def hang_rank(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=1)
    reducer.allreduce(torch.ones(10))
    if rank == 1:
        # The other ranks write their results before this one continues.
        while not all(Path(sys.argv[4], f"{other}.json").exists() for other in range(num_ranks) if other != 1):
            time.sleep(0.05)
    return expect_failure(lambda: reducer.allreduce(torch.ones(100)))


def mismatch_sizes(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=60)
    return expect_failure(lambda: reducer.allreduce(torch.ones(100 + rank)))


def _lose_rank_amid(signal_number: int, rank: int, timeout_s: float, node: str | None = None) -> Any:
    """Send a signal to the last rank while all ranks reduce without a pause."""
    reducer = SharedAllreduce(timeout_s=timeout_s, node=node)
    tensor = torch.ones(2_000_000)
    if rank == reducer.num_ranks - 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal_number)).start()

    def reduce_for_ever() -> None:
        while True:
            reducer.allreduce(tensor)

    start = time.monotonic()
    text = expect_failure(reduce_for_ever)
    return [text, time.monotonic() - start]


def kill_amid_sums(rank: int, num_ranks: int) -> Any:
    return _lose_rank_amid(signal.SIGKILL, rank, timeout_s=60)


def kill_amid_sums_over_nodes(rank: int, num_ranks: int) -> Any:
    return _lose_rank_amid(signal.SIGKILL, rank, timeout_s=60, node=f"node {rank // 2}")


def stop_amid_sums(rank: int, num_ranks: int) -> Any:
    return _lose_rank_amid(signal.SIGSTOP, rank, timeout_s=2)


def kill_without_pidfd(rank: int, num_ranks: int) -> Any:
    _forbid_system_calls(PIDFD_OPEN)
    return _lose_rank_amid(signal.SIGKILL, rank, timeout_s=3)


def attach_without_memfd(rank: int, num_ranks: int) -> Any:
    _forbid_system_calls(MEMFD_CREATE[platform.machine()])
    return attach(DistributedDataParallel(nn.Linear(3, 3))).explain()


def attach_with_small_files(rank: int, num_ranks: int) -> Any:
    ddp = DistributedDataParallel(nn.Linear(3, 3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    return attach(ddp).explain()


def _forbid_system_calls(*numbers: int) -> None:
    """Let system calls of this process fail with ENOSYS, as the filters of old containers do."""
    load, jump_if_equal, leave = 0x20, 0x15, 0x06
    count = len(numbers)
    filters = [struct.pack("HBBI", load, 0, 0, 0)]
    filters += [struct.pack("HBBI", jump_if_equal, count - i, 0, number) for i, number in enumerate(numbers)]
    filters += [struct.pack("HBBI", leave, 0, 0, value) for value in (0x7FFF0000, 0x00050000 | 38)]
    code = ctypes.create_string_buffer(b"".join(filters))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filters), ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    assert library.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert library.prctl(set_seccomp, filter_mode, program, 0, 0) == 0
