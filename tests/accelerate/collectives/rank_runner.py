"""Run a case on several ranks, each a real process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
KILLED = -9
# Many ranks on two cores take a minute to import torch.
MAX_RUN_S = 300


def run_ranks(
    case: str, num_ranks: int, folder: Path, lost_rank: int | None = None, prefix: Sequence[str] = ()
) -> dict[int, Any]:
    """Run a case on all ranks; return the results of those that ended well.

    Args:
        case: MODULE:FUNCTION of this folder.
        num_ranks: how many ranks to start.
        folder: where they meet and write their results.
        lost_rank: the rank that does not end; it is killed after the others.
        prefix: the command that starts the last rank, for example in a namespace.
    """
    command = [sys.executable, "-m", "tests.accelerate.collectives.start_rank", case]
    ranks = [
        subprocess.Popen(
            [*(prefix if rank == num_ranks - 1 else ()), *command, str(rank), str(num_ranks), str(folder)],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        for rank in range(num_ranks)
    ]
    errors = {}
    try:
        for rank in sorted(range(num_ranks), key=lambda rank: rank == lost_rank):
            if rank == lost_rank:
                ranks[rank].kill()
            errors[rank] = ranks[rank].communicate(timeout=MAX_RUN_S)[1].decode()
    finally:
        for process in ranks:
            process.kill()
    results = {}
    for rank, process in enumerate(ranks):
        assert process.returncode in (0, KILLED), errors[rank]
        if process.returncode == 0:
            results[rank] = json.loads((folder / f"{rank}.json").read_text())
    return results
