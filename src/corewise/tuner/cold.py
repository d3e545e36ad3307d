"""The printed command, started from cold: what a user who types it will see."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from corewise.engine.collect import collect_run
from corewise.engine.plan import Plan
from corewise.engine.recording import by_hand
from corewise.engine.warm_parent import ANSWER_GRACE_S, START_LIMIT_S, read_result
from corewise.spec.record import Record
from corewise.spec.trial import Trial, to_json, write_json_aside
from corewise.store.store import Store

TOLERANCE = 0.10


@dataclass(frozen=True)
class ColdStart:
    """What the command gave; a throughput of 0 when it failed, for the reason."""

    command: str
    throughput: float
    reason: str = ""
    disturbances: tuple[str, ...] = ()  # of this start

    def disagreement(self, record: Record) -> str:
        """Why the command of a setting and its record do not agree; empty when they do."""
        if not self.throughput:
            return f"its command failed when started from cold: {self.reason}"
        metrics = record.metrics
        measured = metrics["samples_per_s"]
        low = min(metrics.get("samples_per_s_low", measured), measured * (1 - TOLERANCE))
        high = max(metrics.get("samples_per_s_high", measured), measured * (1 + TOLERANCE))
        if low <= self.throughput <= high:
            return ""
        return (
            f"its command, started twice from cold, gave {self.throughput:.4g} samples/s where "
            f"{measured:.4g} were measured: do not trust either before it is measured again"
            f"{self._why(record)}"
        )

    def _why(self, record: Record) -> str:
        """What disturbed the start or the runs that it is compared with, as the end of a sentence."""
        if self.disturbances:
            return f" on a quiet machine ({self.disturbances[0]})"
        num, num_runs = int(record.metrics.get("num_disturbed_runs", 0)), len(record.runs)
        return f" on a quiet machine ({num} of {num_runs} runs were disturbed)" if num else ""


def start_cold(plan: Plan, trial: Trial, store: Store) -> ColdStart:
    """Run the trial's command by a shell, as a user would."""
    file = store.trial_file(trial.trial_id)
    file.parent.mkdir(exist_ok=True)  # a store that was copied without it
    write_json_aside(file, to_json(trial))
    out = file.with_name(f"{trial.trial_id}-results")
    line = by_hand(plan, trial, str(file.parent))
    limit_s = trial.protocol.timeout_s + START_LIMIT_S + ANSWER_GRACE_S
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        _, told = process.communicate(timeout=limit_s)
        results = [read_result(out / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]
        run = collect_run(trial, results)
    except subprocess.TimeoutExpired:
        return ColdStart(line, 0.0, f"no result within {limit_s:.0f} s")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(out, ignore_errors=True)
    if run.status != "ok":
        last = told.strip().splitlines()[-1:] or [run.reason]
        return ColdStart(line, 0.0, last[0])
    return ColdStart(line, run.metrics["samples_per_s"], disturbances=tuple(run.disturbances))
