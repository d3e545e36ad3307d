"""Two ranks forked from a warm parent, as the worker does it; run by test_torch_parallel.

Prints one line of JSON per rank and writes what the test compares to the folder it is given.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from corewise.runtimes.base import RankContext
from corewise.runtimes.registry import find_runtime

NUM_RANKS = 2
SMALL = {"args.image_size": 32}


def be_rank(rank: int, folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    import torch

    from corewise.runtimes.torch.parallel import RankGroup

    def prepare(name: str, **values: Any) -> Any:
        rendezvous = folder / name
        rendezvous.mkdir(exist_ok=True)
        return runtime.prepare({**params, **values}, RankContext(rank, NUM_RANKS, str(rendezvous), 1))

    told: dict[str, Any] = {"rank": rank}

    job = prepare("custom", workload=f"{folder / 'mine.py'}:make", batch=3)
    inputs, targets = job._batches.next()
    before = job._module.state_dict()
    torch.save({k: v.clone() for k, v in before.items()}, folder / f"weights-{rank}.pt")
    told["custom_check"] = job.check().passed
    job.step()
    gradients = {name: p.grad for name, p in job._module.named_parameters()}
    torch.save((inputs[0], targets, gradients), folder / f"step-{rank}.pt")
    told["independent"] = job.independent
    told["votes"] = [job.agree(True), job.agree(rank == 0), job.agree(False)]
    job.close()

    job = prepare("model", workload="resnet18", **SMALL, batch=4)
    told["model_check"] = job.check().passed
    job.step()
    told["first_loss"] = job.loss()
    job.step()
    told["weights_sum"] = float(sum(p.double().abs().sum() for p in job._module.parameters()))
    job.close()

    wrap, RankGroup.wrap = RankGroup.wrap, lambda self, module: module  # type: ignore[method-assign]
    job = prepare("forgetful", workload="resnet18", **SMALL, batch=4)
    told["check_without_averaging"] = job.check().passed
    job.close()
    RankGroup.wrap = wrap  # type: ignore[method-assign]

    job = prepare("replicas", workload="resnet18", **SMALL, batch=2, mode="infer")
    told["replica_check"] = job.check().passed
    told["replica_independent"] = job.independent
    told["replica_vote"] = job.agree(rank == 0)
    job.close()
    return told


if __name__ == "__main__":
    folder, params = Path(sys.argv[1]), json.loads(sys.argv[2])
    runtime: Any = find_runtime("torch")
    runtime.warm()
    runtime.warm_for(params)
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
