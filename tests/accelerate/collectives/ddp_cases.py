"""Cases that the tests run on every rank: models in DistributedDataParallel."""

import hashlib
import os
import signal
import time
from typing import Any

import torch
from tests.accelerate.collectives.fault_cases import expect_failure
from tests.accelerate.collectives.sum_cases import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from corewise.collectives import AttachedCollectives, CollectiveError, attach


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


def lose_rank_in_backward(rank: int, num_ranks: int) -> Any:
    ddp = DistributedDataParallel(nn.Linear(10, 10))
    attached = attach(ddp, timeout_s=60)
    loss = ddp(torch.ones(2, 10)).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [attached.backend, expect_failure(loss.backward)]


def fall_back(rank: int, num_ranks: int) -> Any:
    attached = attach(DistributedDataParallel(nn.Linear(3, 3).half()))
    return [attached.backend, attached.reason, attached.explain()]


class MixedTypes(nn.Module):
    """Layers of three number formats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 30), nn.Linear(30, 20, dtype=torch.float64)
        self.third = nn.Linear(20, 10, dtype=torch.bfloat16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(inputs).double())
        output: torch.Tensor = self.third(hidden.bfloat16())
        return output.float()


def _build_pair(build: Any, node: str | None = None, **options: Any) -> tuple[Any, Any, AttachedCollectives]:
    """Build the same model over gloo and in shared memory."""
    modules = [build(), build()]
    modules[1].load_state_dict(modules[0].state_dict())
    plain, shared = (DistributedDataParallel(module, **options) for module in modules)
    return plain, shared, attach(shared, timeout_s=60, node=node)


def _have_equal_gradients(plain: nn.Module, shared: nn.Module) -> bool:
    pairs = zip(plain.parameters(), shared.parameters(), strict=True)
    return all(
        torch.allclose(left.grad.float(), right.grad.float(), rtol=2e-2 if left.dtype == torch.bfloat16 else 1e-5)
        for left, right in pairs
        if left.grad is not None and right.grad is not None
    )


def train_variants(rank: int, num_ranks: int) -> Any:
    """Compare gradients in every use of DDP that changes when or what is averaged."""
    torch.manual_seed(5)
    inputs = draw(rank, 8 * 40, torch.float32, 1).view(8, 40)
    equal = {}

    plain, shared, attached = _build_pair(lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)))
    for model in (plain, shared):
        with model.no_sync():
            model(inputs).square().mean().backward()
        model(inputs * 2).square().mean().backward()
    equal["no_sync"] = _have_equal_gradients(plain, shared)

    others = _build_pair(lambda: nn.Linear(40, 3))
    for first, second in ((plain, others[0]), (shared, others[1])):
        first.zero_grad()
        (first(inputs).square().mean() + second(inputs).square().mean()).backward()
    equal["two models in one backward pass"] = _have_equal_gradients(plain, shared) and _have_equal_gradients(
        *others[:2]
    )

    for name, build, options in (
        ("static_graph", lambda: nn.Linear(40, 3), {"static_graph": True}),
        ("mixed types", MixedTypes, {"gradient_as_bucket_view": True}),
    ):
        left, right, third = _build_pair(build, **options)
        for _ in range(3):
            for model in (left, right):
                model.zero_grad()
                model(inputs).square().mean().backward()
        equal[name] = _have_equal_gradients(left, right)
        third.close()

    left, right, over_nodes = _build_pair(lambda: nn.Linear(40, 3), node=f"node {rank}")
    for model in (left, right):
        model(inputs).square().mean().backward()
    equal["two nodes"] = _have_equal_gradients(left, right)
    return {"equal": equal, "nodes": over_nodes.explain(), "again": attach(shared) is attached}


def use_after_fork_and_close(rank: int, num_ranks: int) -> Any:
    """Use attached models in a forked process, beside a data loader, and after they were closed."""
    ddp = DistributedDataParallel(nn.Linear(4, 2))
    attached = attach(ddp, timeout_s=60)
    child = os.fork()
    if child == 0:
        try:
            attached.average(torch.ones(4))
        except CollectiveError:
            os._exit(7)
        os._exit(0)
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    loader = torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2, num_workers=1)
    num_batches = 0
    for batch in loader:
        ddp(batch).sum().backward()
        num_batches += 1
    loss = ddp(torch.ones(2, 4)).sum()
    attached.close()
    return {"forked": refused, "batches": num_batches, "closed": expect_failure(loss.backward)}


def explain_fallbacks(rank: int, num_ranks: int) -> Any:
    """Attach where shared memory cannot be used; return the reasons."""
    hooked = DistributedDataParallel(nn.Linear(3, 3))
    hooked.register_comm_hook(None, lambda state, bucket: None)
    return attach(hooked).explain()


def average_once(rank: int, num_ranks: int) -> Any:
    """Average one gradient; return how, and whether it is right."""
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    attached = attach(ddp, timeout_s=60)
    (ddp(torch.ones(1, 1)) * (rank + 1)).sum().backward()
    gradient = next(ddp.parameters()).grad
    assert gradient is not None
    return [attached.backend, attached.explain(), gradient.item()]
