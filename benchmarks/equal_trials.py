"""Check that equal trials are called equal, that a planted 5 % slowdown is found, and a co-runner noticed.

One convolution workload is measured in many sessions, one after another. Each session is a study, run as
`corewise run` does: fresh processes, trials interleaved. Half of a session's trials are equal, half have one
more convolution per twenty. A pair is a trial of one session and its
namesake of the next or the one after, minutes apart. Two other rules judge the same data: the fixed 7 %
threshold of a well-known model benchmark, and a plain t test over pooled steps. The store is kept: run an
interrupted benchmark again to resume it.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import WORKLOADS, describe_machine, plan_text, write_figures
from scipy.stats import ttest_ind

from corewise.cli.render.run_progress import SilentObserver
from corewise.run.study_runner import StudyRun
from corewise.stats.occasion_comparison import compare_occasions
from corewise.stats.trial_comparison import compare_trials
from corewise.store.store import Store
from corewise.study.record import Record

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
# Equal trials of a session; it has as many slowed ones.
TRIALS_A_SESSION = 15

Session = dict[tuple[int, int], Record]


def measure(args: argparse.Namespace, repeats: list[int], occasions: list[int], max_repeats: int = 2) -> Session:
    """Measure one session; return its records by (repeats, occasion)."""
    study = STUDY.format(
        workloads=WORKLOADS,
        repeats=repeats,
        occasions=occasions,
        threads=args.threads,
        min_runs=args.min_runs,
        max_runs=args.max_runs,
        max_repeats=max_repeats,
    )
    plan = plan_text(study)
    store = Store.open(args.store)
    StudyRun(plan, store, SilentObserver()).execute()
    mine = {trial.trial_id for trial in plan.trials}
    records = [r for r in store.read_records().records if r.trial_id in mine]
    bad = [r.reason for r in records if r.status != "ok"]
    if bad:
        raise SystemExit(f"a trial failed: {bad[0]}")
    return {(r.params["args.repeats"], r.params["args.occasion"] % TRIALS_A_SESSION): r for r in records}


def pair_sessions(num: int) -> list[tuple[int, int]]:
    """Pair sessions next to each other, then those two apart."""
    return [(i, i + lag) for lag in (1, 2) for i in range(num - lag)]


def read_medians(record: Record) -> list[float]:
    return [run["metrics"]["step_s"] for run in record.runs]


def judge_pair(a: Record, b: Record, args: argparse.Namespace) -> dict[str, str]:
    """Return each rule's verdict on B against A: faster, slower or same."""
    looks = (args.min_runs, args.max_runs)
    ratio = statistics.median(read_medians(b)) / statistics.median(read_medians(a))
    pooled = float(ttest_ind(a.samples_s, b.samples_s, equal_var=False).pvalue)
    pooled_ratio = statistics.fmean(b.samples_s) / statistics.fmean(a.samples_s)
    return {
        "corewise": compare_occasions(read_medians(a), read_medians(b), looks=looks).verdict,
        "Welch over process medians": compare_trials(read_medians(a), read_medians(b), looks=looks).verdict,
        "fixed threshold of 7 %": name_direction(ratio, abs(ratio - 1) > FIXED_THRESHOLD),
        "t test over pooled steps": name_direction(pooled_ratio, pooled < 0.05),
    }


def name_direction(ratio: float, different: bool) -> str:
    return ("slower" if ratio > 1 else "faster") if different else "same"


def measure_with_co_runner(args: argparse.Namespace) -> dict[str, int]:
    """Count runs marked as disturbed, with a busy process on the trial's CPU and without."""
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
        workloads=WORKLOADS, repeats=[20], occasions=[0], threads=args.threads, min_runs=1, max_runs=1, max_repeats=0
    )
    return plan_text(study).trials[0].ranks[0].cpus


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
    while len(pair_sessions(len(sessions))) * TRIALS_A_SESSION < args.pairs:
        first = len(sessions) * TRIALS_A_SESSION
        sessions.append(measure(args, [20, 21], list(range(first, first + TRIALS_A_SESSION))))
        print(f"session {len(sessions)} done after {time.monotonic() - began:.0f} s", flush=True)
    marked = measure_with_co_runner(args)
    places = [
        (sessions[old], sessions[new], k) for old, new in pair_sessions(len(sessions)) for k in range(TRIALS_A_SESSION)
    ][: args.pairs]
    equal = [judge_pair(old[20, k], new[20, k], args) for old, new, k in places]
    slower = [judge_pair(old[20, k], new[21, k], args) for old, new, k in places]
    steps = {
        n: [statistics.median(read_medians(s[n, k])) for s in sessions for k in range(TRIALS_A_SESSION)]
        for n in (20, 21)
    }
    planted = statistics.median(b / a for a, b in zip(steps[20], steps[21], strict=True))
    print(describe_machine())
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
    write_figures(
        args.out, table=table, num_pairs=len(places), planted_ratio=planted, co_runner=marked, medians_s=steps
    )


if __name__ == "__main__":
    main()
