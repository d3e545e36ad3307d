"""Run a few steps of a trial in this process, for instruction counters such as cachegrind.

Measured side: standard library, numpy and the runtime's framework only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

from corewise.measured.parameters import BatchScope, TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.trial_params import compute_rank_batch
from corewise.measured.trial import Trial
from corewise.measured.worker.zygote import create_rendezvous_folder
from corewise.measured.workloads.custom import load_imports

# The file that a run leaves: its process id, and the samples of a step.
DONE_FILE = "done-{num_steps}.json"


def reduce_parameters(params: TrialParameters) -> TrialParameters:
    """Return the parameters of one rank on one thread, with the rank's batch."""
    return dataclasses.replace(
        params, nodes=1, processes=1, threads=1, batch=compute_rank_batch(params), batch_scope=BatchScope.PROCESS
    )


def run_steps(trial: Trial, num_steps: int, out_dir: Path) -> None:
    """Prepare the reduced trial and run its first step and `num_steps` more; numbers are not checked."""
    params = reduce_parameters(trial.params)
    runtime = find_runtime(params.runtime)
    runtime.warm()
    load_imports(trial.imports)
    rendezvous = create_rendezvous_folder()
    try:
        job = runtime.prepare(params, RankContext(0, 1, rendezvous, 1))
        try:
            for _ in range(1 + num_steps):
                job.step()
            done = {"pid": os.getpid(), "samples_per_step": float(job.samples_per_step)}
        finally:
            job.close()
    finally:
        shutil.rmtree(rendezvous, ignore_errors=True)
    (out_dir / DONE_FILE.format(num_steps=num_steps)).write_text(json.dumps(done), encoding="utf-8")
