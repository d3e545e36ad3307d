"""What a rank of the tests runs: `python rank_scripts.py CASE RANK NUM_RANKS FOLDER`, result in FOLDER/RANK.json."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from corewise.collectives import CollectiveError, SharedAllreduce, attach

SIZES = (0, 1, 2, 17, 4099, 70_001, 3_000_017)


def draw(rank: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def sum_sizes(rank: int, num_ranks: int, node: str | None = None) -> Any:
    reducer = SharedAllreduce(timeout_s=60, node=node)
    rows = []
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 0.05)):
        for size in SIZES:
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


class Branches(nn.Module):
    """A model with a parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(40, 300), nn.Linear(300, 7), nn.Linear(5, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs)))


def compare_gradients(rank: int, num_ranks: int) -> Any:
    torch.manual_seed(3)
    rows = []
    models = [Branches(), Branches()]
    models[1].load_state_dict(models[0].state_dict())
    pair = [
        DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.01, gradient_as_bucket_view=bool(i))
        for i, model in enumerate(models)
    ]
    attached = attach(pair[1], timeout_s=60)
    for step in range(4):
        inputs = draw(rank, 8 * 40, torch.float32, step + int(time.time())).view(8, 40)
        for ddp in pair:
            ddp.zero_grad()
            ddp(inputs).square().mean().backward()
            # The second backward pass accumulates.
            ddp(inputs * 0.5).square().mean().backward()
        for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
            if left.grad is not None:
                rows.append(torch.allclose(left.grad, right.grad, rtol=1e-5, atol=1e-7))
    backend = attached.backend
    spent_s = attached.communication_s
    attached.close()
    return {"close": rows, "backend": backend, "explain": attached.explain(), "communicates": spent_s > 0}


def train_transformer(rank: int, num_ranks: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    ddp = DistributedDataParallel(BertForSequenceClassification(config), gradient_as_bucket_view=True)
    attached = attach(ddp, timeout_s=60)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * rank + step)
        optimizer.zero_grad()
        tokens = torch.randint(0, 50, (4, 12))
        ddp(input_ids=tokens, labels=torch.randint(0, 2, (4,))).loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    attached.close()
    return [attached.backend, hashlib.sha256(weights.numpy().tobytes()).hexdigest()]


def lose_rank(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=60)
    reducer.allreduce(torch.ones(10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _expect_failure(lambda: reducer.allreduce(torch.ones(2_000_000)))


def hang_rank(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=1)
    reducer.allreduce(torch.ones(10))
    if rank == 1:
        # The other ranks write their results before this one goes on.
        while not all(Path(sys.argv[4], f"{other}.json").exists() for other in range(num_ranks) if other != 1):
            time.sleep(0.05)
    return _expect_failure(lambda: reducer.allreduce(torch.ones(100)))


def mismatch_sizes(rank: int, num_ranks: int) -> Any:
    reducer = SharedAllreduce(timeout_s=60)
    return _expect_failure(lambda: reducer.allreduce(torch.ones(100 + rank)))


def lose_rank_in_backward(rank: int, num_ranks: int) -> Any:
    ddp = DistributedDataParallel(nn.Linear(10, 10))
    attached = attach(ddp, timeout_s=60)
    loss = ddp(torch.ones(2, 10)).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [attached.backend, _expect_failure(loss.backward)]


def fall_back(rank: int, num_ranks: int) -> Any:
    attached = attach(DistributedDataParallel(nn.Linear(3, 3).half()))
    return [attached.backend, attached.reason, attached.explain()]


def _expect_failure(call: Any) -> str:
    try:
        call()
    except (CollectiveError, RuntimeError) as problem:
        return str(problem)
    return "no error"


def main() -> None:
    case, rank, num_ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(os.path.join(folder, "store"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    result = globals()[case](rank, num_ranks)
    aside = Path(folder, f"{rank}.aside")
    aside.write_text(json.dumps(result))
    aside.rename(Path(folder, f"{rank}.json"))
    # The process group of a dead rank cannot be destroyed.
    os._exit(0)


if __name__ == "__main__":
    main()
