"""Start the printed command from cold: what a user sees who types it."""

import math
import os
import shutil
import tempfile
from dataclasses import dataclass

from corewise.launch.supervision.supervised_command import SupervisedCommand
from corewise.measured.trial import Trial, to_json, write_json_atomically
from corewise.run.plan import Plan
from corewise.run.rank_results import read_result
from corewise.run.record_builder import format_manual_command
from corewise.run.run_collector import collect_run
from corewise.run.warm_parent import ANSWER_GRACE_S, START_LIMIT_S
from corewise.store.store import Store
from corewise.study.record import Record

# Relative difference between a cold start and the fresh runs that counts as agreement.
TOLERANCE = 0.10


@dataclass(frozen=True)
class ColdStart:
    """The throughput of a command; 0 if it failed, with the reason, and what disturbed this start."""

    command: str
    throughput: float
    reason: str = ""
    disturbances: tuple[str, ...] = ()

    def explain_disagreement(self, record: Record) -> str:
        """Explain why command and record of a setting disagree; return an empty text if they agree."""
        if not self.throughput:
            return f"its command failed when started from cold: {self.reason}"
        metrics = record.metrics
        measured = metrics["samples_per_s"]
        low = min(metrics.get("samples_per_s_low", measured), measured * (1 - TOLERANCE))
        high = max(metrics.get("samples_per_s_high", measured), measured * (1 + TOLERANCE))
        if low <= self.throughput <= high:
            return ""
        return (
            f"its command, started twice from cold, gave {self.throughput:.4g} samples/s, but the fresh runs "
            f"gave {measured:.4g}: trust neither figure until it is measured again"
            f"{self._describe_disturbance(record)}"
        )

    def _describe_disturbance(self, record: Record) -> str:
        """Describe what disturbed the start or the runs it is compared with, as the end of a sentence."""
        if self.disturbances:
            return f" on a quiet machine ({self.disturbances[0]})"
        num, num_runs = int(record.metrics.get("num_disturbed_runs", 0)), len(record.runs)
        return f" on a quiet machine ({num} of {num_runs} runs were disturbed)" if num else ""


def start_cold(plan: Plan, trial: Trial, store: Store, limit_s: float = math.inf) -> ColdStart:
    """Run the trial's command in a shell, as a user would; give it up after the time limit."""
    file = store.get_trial_file(trial.trial_id)
    # A store may have been copied without this folder.
    file.parent.mkdir(exist_ok=True)
    write_json_atomically(file, to_json(trial))
    out = file.with_name(f"{trial.trial_id}-results")
    line = format_manual_command(plan, trial, str(file.parent))
    limit_s = min(limit_s, trial.protocol.timeout_s + START_LIMIT_S + ANSWER_GRACE_S)
    with tempfile.TemporaryFile() as errors:
        process = SupervisedCommand(["/bin/sh", "-c", line], env=os.environ, stderr=errors)
        try:
            if not process.wait(limit_s):
                return ColdStart(line, 0.0, f"no result within {limit_s:.0f} s")
            results = [read_result(out / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]
        finally:
            process.end()
            shutil.rmtree(out, ignore_errors=True)
        errors.seek(0)
        printed = errors.read().decode("utf-8", "replace").strip().splitlines()
    run = collect_run(trial, results)
    if run.status != "ok":
        return ColdStart(line, 0.0, printed[-1] if printed else run.reason)
    return ColdStart(line, run.metrics["samples_per_s"], disturbances=tuple(run.disturbances))
