"""Cases that the tests run on every rank: sums and copies in shared memory."""

import hashlib
from typing import Any

import torch

from corewise.collectives import SharedAllreduce, SharedCollectives

SIZES = (0, 1, 2, 17, 4099, 70_001, 3_000_017)


def draw(rank: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def sum_sizes(rank: int, num_ranks: int, node: str | None = None) -> Any:
    reducer = SharedAllreduce(timeout_s=60, node=node)
    rows = []
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 0.05)):
        # Drawing the numbers of many ranks takes longer than summing them.
        for size in SIZES if num_ranks < 4 else SIZES[:-1]:
            expected = sum(draw(other, size, dtype, size).double() for other in range(num_ranks))
            digests = set()
            for _ in range(2):
                result = reducer.allreduce(draw(rank, size, dtype, size))
                digests.add(hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest())
            is_close = torch.allclose(result.double(), expected, rtol=tolerance, atol=tolerance)
            rows.append([str(dtype), size, is_close, sorted(digests)])
    reducer.close()
    return rows


def sum_over_nodes(rank: int, num_ranks: int) -> Any:
    return sum_sizes(rank, num_ranks, node=f"node {rank // 2}")


def copy_sizes(rank: int, num_ranks: int) -> Any:
    """Compare every collective but the sum with what it must give; return the names of the wrong ones."""
    collectives = SharedCollectives(timeout_s=60, chunk_bytes=64 << 10)
    wrong = []
    for size in SIZES:
        pieces = [draw(other, size, torch.float32, 7) for other in range(num_ranks)]
        wholes = [draw(other, size * num_ranks, torch.float64, 8) for other in range(num_ranks)]
        gathered = torch.empty(size * num_ranks)
        collectives.allgather(gathered, pieces[rank])
        if not torch.equal(gathered, torch.cat(pieces)):
            wrong.append(f"allgather {size}")
        sent = pieces[rank].half()
        collectives.broadcast(sent, num_ranks - 1)
        if not torch.equal(sent, pieces[-1].half()):
            wrong.append(f"broadcast {size}")
        received = torch.empty_like(wholes[rank])
        collectives.all_to_all(received, wholes[rank])
        mine = slice(rank * size, (rank + 1) * size)
        if not torch.equal(received, torch.cat([whole[mine] for whole in wholes])):
            wrong.append(f"all_to_all {size}")
        piece = torch.empty(size, dtype=torch.float64)
        collectives.reduce_scatter(piece, wholes[rank])
        if not torch.allclose(piece, torch.stack([whole[mine] for whole in wholes]).sum(0), rtol=1e-12, atol=1e-12):
            wrong.append(f"reduce_scatter {size}")
    collectives.close()
    return wrong


def sum_special_values(rank: int, num_ranks: int) -> Any:
    """Sum NaN, infinity and numbers that overflow, and a tensor that begins in the middle of a cache line."""
    reducer = SharedAllreduce(timeout_s=60)
    rows = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = torch.zeros(1000, dtype=dtype)
        values[1] = float("nan") if rank == 0 else 1.0
        values[2] = float("inf") if rank == 0 else 1.0
        values[3] = float("inf") if rank == 0 else -float("inf")
        values[4] = torch.finfo(dtype).max
        total = reducer.allreduce(values)
        rows.append([str(dtype), [str(float(value)) for value in total[:5]]])
    whole = torch.ones(1003)
    reducer.allreduce(whole[3:])
    rows.append(["unaligned", whole[2:5].tolist()])
    return rows
