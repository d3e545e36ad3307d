"""Code written for torchrun runs unchanged under `corewise launch`."""

import pytest

from .conftest import Bench
from .test_launch import TWO, launch, write_script

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

# Written like the examples of torchrun: ranks are read from the environment only.
DATA_PARALLEL = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert int(os.environ["LOCAL_RANK"]) == rank and dist.is_torchelastic_launched()
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(rank)
model(torch.randn(8, 4)).sum().backward()
gradient = model.module.weight.grad.clone()
gathered = [torch.empty_like(gradient) for _ in range(size)]
dist.all_gather(gathered, gradient)
assert torch.equal(gathered[0], gathered[1])
print(f"rank {rank} of {size}: sum {total.item():g}, {torch.get_num_threads()} threads", flush=True)
dist.barrier()
# Threads of gloo sometimes abort a process that shuts down normally.
os._exit(0)
"""


def test_data_parallel_ranks_find_each_other_and_stay_on_their_cpus(bench: Bench) -> None:
    done = launch(bench, *TWO, "--verify", *write_script(bench, DATA_PARALLEL), timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] rank {r} of 2: sum 3, 1 threads" for r in (0, 1)]
    assert "every thread stayed within its rank's CPUs" in done.stderr


OPENMP_THREADS = """
import os, torch
torch.set_num_threads(2)
torch.randn(600, 600) @ torch.randn(600, 600)
masks = set()
for tid in os.listdir("/proc/self/task"):
    masks.add(tuple(os.sched_getaffinity(int(tid))))
print(os.environ["OMP_PLACES"], max(len(mask) for mask in masks), len(set(masks)))
"""


def test_binding_to_cores_gives_each_openmp_thread_one_cpu(bench: Bench) -> None:
    import os

    first, second, *_ = [*sorted(os.sched_getaffinity(0)), -1, -1]
    if second < 0:
        pytest.skip("needs two CPUs")
    done = launch(bench, "-t", "2", "--bind", "core", "--verify", *write_script(bench, OPENMP_THREADS), timeout=300)
    assert done.stdout == f"{{{first}}},{{{second}}} 1 2\n", done.stderr
    assert done.returncode == 0
