"""Are equal trials called equal, is a planted 5 % slowdown found, and is a co-runner noticed?

One convolution workload is measured in many sessions, one after another, each a study of its own run by the
engine as `corewise run` does: fresh processes, trials interleaved. Half of a session's trials are equal, half
carry one more convolution per twenty: arithmetic, no sleeping. A pair is a trial of one session and its
namesake of the next or the one after, minutes apart. Beside our rule stand, on the very same data, the fixed
7 % threshold that a well-known model benchmark uses and a plain t test over pooled steps. The store is kept:
an interrupted benchmark goes on when it is started again.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import WORKLOADS, keep, machine_line, plan_of
from scipy.stats import ttest_ind

from corewise.cli.progress import Silent
from corewise.engine.run import StudyRun
from corewise.spec.record import Record
from corewise.stats.compare import compare
from corewise.stats.occasions import compare_occasions
from corewise.store.store import Store

STUDY = """
question: Are equal trials equal?
workload: {workloads}/convolutions.py:factory
mode: infer
runtime: torch
axes: {{args.repeats: {repeats}, args.occasion: {occasions}}}
fixed: {{threads: {threads}, batch: 1}}
protocol: {{min_runs: {min_runs}, max_runs: {max_runs}, target_interval: 0.01, min_sample_s: 0.1,
           max_repeats_disturbed: {max_repeats}}}
"""
FIXED_THRESHOLD = 0.07
TRIALS_A_SESSION = 15  # equal ones; as many slowed ones beside them

Session = dict[tuple[int, int], Record]


def measure(
    args: argparse.Namespace, repeats: list[int], occasions: list[int], max_repeats: int = 2
) -> Session:
    """One session's records, by (repeats, occasion)."""
    study = STUDY.format(
        workloads=WORKLOADS,
        repeats=repeats,
        occasions=occasions,
        threads=args.threads,
        min_runs=args.min_runs,
        max_runs=args.max_runs,
        max_repeats=max_repeats,
    )
    plan = plan_of(study)
    store = Store.open(args.store)
    StudyRun(plan, store, Silent()).execute()
    mine = {trial.trial_id for trial in plan.trials}
    records = [r for r in store.records().records if r.trial_id in mine]
    bad = [r.reason for r in records if r.status != "ok"]
    if bad:
        raise SystemExit(f"a trial failed: {bad[0]}")
    return {(r.params["args.repeats"], r.params["args.occasion"] % TRIALS_A_SESSION): r for r in records}


def pairs_of_sessions(num: int) -> list[tuple[int, int]]:
    """Sessions next to each other, then those two apart."""
    return [(i, i + lag) for lag in (1, 2) for i in range(num - lag)]


def medians(record: Record) -> list[float]:
    return [run["metrics"]["step_s"] for run in record.runs]


def verdicts(a: Record, b: Record, args: argparse.Namespace) -> dict[str, str]:
    """What each rule says of B against A: faster, slower or same."""
    looks = (args.min_runs, args.max_runs)
    ratio = statistics.median(medians(b)) / statistics.median(medians(a))
    pooled = float(ttest_ind(a.samples_s, b.samples_s, equal_var=False).pvalue)
    pooled_ratio = statistics.fmean(b.samples_s) / statistics.fmean(a.samples_s)
    return {
        "corewise": compare_occasions(medians(a), medians(b), looks=looks).verdict,
        "Welch over process medians": compare(medians(a), medians(b), looks=looks).verdict,
        "fixed threshold of 7 %": direction(ratio, abs(ratio - 1) > FIXED_THRESHOLD),
        "t test over pooled steps": direction(pooled_ratio, pooled < 0.05),
    }


def direction(ratio: float, different: bool) -> str:
    return ("slower" if ratio > 1 else "faster") if different else "same"


def co_runner(args: argparse.Namespace) -> dict[str, int]:
    """Runs marked as disturbed with a busy process on the trial's CPU, and without."""
    cpu = min(plan_cpus(args))
    counts = {}
    for number, name in enumerate(("without", "with")):
        burn = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        burner = subprocess.Popen([sys.executable, "-c", burn]) if name == "with" else None
        try:
            session = measure(args, [20], [-1 - number], max_repeats=0)
        finally:
            if burner is not None:
                burner.kill()
                burner.wait()
        [record] = session.values()
        counts[f"runs_{name}"] = len(record.runs)
        counts[f"marked_{name}"] = sum(bool(run["disturbances"]) for run in record.runs)
    return counts


def plan_cpus(args: argparse.Namespace) -> tuple[int, ...]:
    study = STUDY.format(
        workloads=WORKLOADS,
        repeats=[20],
        occasions=[0],
        threads=args.threads,
        min_runs=1,
        max_runs=1,
        max_repeats=0,
    )
    return plan_of(study).trials[0].ranks[0].cpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--min-runs", type=int, default=10)
    parser.add_argument("--max-runs", type=int, default=20)
    parser.add_argument("--store", type=Path, default=Path("equal-trials-store"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    sessions: list[Session] = []
    while len(pairs_of_sessions(len(sessions))) * TRIALS_A_SESSION < args.pairs:
        first = len(sessions) * TRIALS_A_SESSION
        sessions.append(measure(args, [20, 21], list(range(first, first + TRIALS_A_SESSION))))
        print(f"session {len(sessions)} done after {time.monotonic() - began:.0f} s", flush=True)
    marked = co_runner(args)
    places = [
        (sessions[old], sessions[new], k)
        for old, new in pairs_of_sessions(len(sessions))
        for k in range(TRIALS_A_SESSION)
    ][: args.pairs]
    equal = [verdicts(old[20, k], new[20, k], args) for old, new, k in places]
    slower = [verdicts(old[20, k], new[21, k], args) for old, new, k in places]
    steps = {
        n: [statistics.median(medians(s[n, k])) for s in sessions for k in range(TRIALS_A_SESSION)]
        for n in (20, 21)
    }
    planted = statistics.median(b / a for a, b in zip(steps[20], steps[21], strict=True))
    print(machine_line())
    print(f"{len(places)} pairs of sessions one or two apart; {len(sessions)} sessions")
    print(f"planted: one convolution more per twenty; seen within sessions: {planted - 1:+.2%}")
    print(f"{'rule':28} {'false verdicts':>15} {'slowdowns found':>16}")
    table = {}
    for rule in equal[0]:
        table[rule] = {
            "false": statistics.fmean(v[rule] in ("faster", "slower") for v in equal),
            "found": statistics.fmean(v[rule] == "slower" for v in slower),
        }
        print(f"{rule:28} {table[rule]['false']:15.1%} {table[rule]['found']:16.1%}")
    print(f"co-runner: {marked['marked_with']} of {marked['runs_with']} runs marked with it, ", end="")
    print(f"{marked['marked_without']} of {marked['runs_without']} without")
    keep(
        args.out, table=table, num_pairs=len(places), planted_ratio=planted, co_runner=marked, medians_s=steps
    )


if __name__ == "__main__":
    main()
