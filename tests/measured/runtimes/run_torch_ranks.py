"""Run two ranks forked from a warm parent, as the worker does, for test_torch_data_parallel.

Prints one line of JSON per rank and writes what the test compares to the folder it is given.
"""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime

NUM_RANKS = 2
SMALL = {"args.image_size": 32}


def be_rank(rank: int, folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    import torch

    from corewise.measured.runtimes.torch.modules.data_parallel import RankGroup

    def prepare(name: str, **values: Any) -> Any:
        rendezvous = folder / name
        rendezvous.mkdir(exist_ok=True)
        point = TrialParameters.from_mapping({**params, **values})
        return runtime.prepare(point, RankContext(rank, NUM_RANKS, str(rendezvous), 1))

    results: dict[str, Any] = {"rank": rank}

    job = prepare("custom", workload=f"{folder / 'mine.py'}:make", batch=3)
    inputs, targets = job._batches.next()
    before = job._module.state_dict()
    torch.save({k: v.clone() for k, v in before.items()}, folder / f"weights-{rank}.pt")
    results["custom_check"] = job.check().passed
    job.step()
    gradients = {name: p.grad for name, p in job._module.named_parameters()}
    torch.save((inputs[0], targets, gradients), folder / f"step-{rank}.pt")
    results["independent"] = job.independent
    results["votes"] = [job.agree(True), job.agree(rank == 0), job.agree(False)]
    job.close()

    job = prepare("model", workload="resnet18", **SMALL, batch=4)
    results["model_check"] = job.check().passed
    job.step()
    results["first_loss"] = job.read_loss()
    job.step()
    results["weights_sum"] = float(sum(p.double().abs().sum() for p in job._module.parameters()))
    job.close()

    job = prepare("shared", workload="resnet18", **SMALL, batch=4, collectives="shared", data="labelled")
    results["shared_check"] = job.check().passed
    for _ in range(3):
        job.step()
    results["shared_facts"] = {
        name: job.read_facts()[name] for name in ("collectives_backend", "global_batch", "learning_rate")
    }
    results["shared_metrics"] = dict(job.collect_sampled_metrics(2))
    results["shared_weights_sum"] = float(sum(p.double().abs().sum() for p in job._module.parameters()))
    job.close()

    job = prepare("library", workload="resnet18", **SMALL, batch=4, collectives="horovod")
    results["library_check"] = job.check().passed
    job.step()
    results["library_backend"] = job.read_facts()["collectives_backend"]
    job.close()

    wrap, RankGroup.wrap = RankGroup.wrap, lambda self, module: module  # type: ignore[method-assign]
    job = prepare("forgetful", workload="resnet18", **SMALL, batch=4)
    results["check_without_averaging"] = job.check().passed
    job.close()
    RankGroup.wrap = wrap  # type: ignore[method-assign]

    job = prepare("replicas", workload="resnet18", **SMALL, batch=2, mode="infer")
    results["replica_check"] = job.check().passed
    results["replica_independent"] = job.independent
    results["replica_vote"] = job.agree(rank == 0)
    job.close()

    if shutil.which("mpirun"):
        results.update(train_over_mpi(prepare))
    return results


def train_over_mpi(prepare: Callable[..., Any]) -> dict[str, Any]:
    """Check and train over MPI, which a process can initialize once; then reduce what MPI has no type for."""
    import torch

    job = prepare("mpi", workload="resnet18", **SMALL, batch=4, collectives="mpi")
    results = {"mpi_check": job.check().passed}
    for _ in range(3):
        job.step()
    results["mpi_facts"] = {name: job.read_facts()[name] for name in ("collectives_backend", "mpi_library")}
    results["mpi_weights_sum"] = float(sum(p.double().abs().sum() for p in job._module.parameters()))
    halves = torch.full((8,), float(job._group.rank), dtype=torch.bfloat16)
    job._group._exchange._reduction.average(halves)
    results["mpi_halves"] = halves.tolist()
    job.close()
    return results


if __name__ == "__main__":
    folder, params = Path(sys.argv[1]), json.loads(sys.argv[2])
    # Holds a library with the functions of Horovod.
    sys.path.insert(0, str(folder / "libraries"))
    runtime: Any = find_runtime("torch")
    runtime.warm()
    runtime.warm_for(TrialParameters.from_mapping(params))
    children = []
    for rank in range(NUM_RANKS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                print(json.dumps(be_rank(rank, folder, params)), flush=True)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
