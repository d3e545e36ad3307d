"""Are equal trials called equal, is a planted 5 % slowdown found, and is a co-runner noticed?

One convolution workload is measured again and again. Each trial's processes run one after another, so two
trials are two occasions; the second of each pair comes half a session after the first, so that the machine
has had time to drift. The slowdown is one more convolution per twenty: arithmetic, no sleeping. Beside our
rule stand the fixed 7 % threshold that a well-known model benchmark uses, and a plain t test over pooled
steps, on the very same data.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import WORKLOADS, keep, machine_line, plan_of
from scipy.stats import ttest_ind

from corewise.engine.collect import collect_run
from corewise.engine.progress import TrialProgress, is_settled, must_repeat
from corewise.engine.warm_parent import ParentPool
from corewise.spec.run import Run
from corewise.spec.trial import Trial, to_json, write_json_aside
from corewise.stats.compare import compare
from corewise.stats.drift import estimate_drift

STUDY = """
question: Are equal trials equal?
workload: {workloads}/convolutions.py:factory
mode: infer
runtime: torch
axes: {{args.repeats: [20, 21]}}
fixed: {{threads: {threads}, batch: 1, args.occasion: 0}}
protocol: {{min_runs: {min_runs}, max_runs: {max_runs}, min_sample_s: {sample_s}, min_samples: 20}}
"""
FIXED_THRESHOLD = 0.07
NUM_CALIBRATION = 20  # occasions before the pairs, from which the machine's drift is learnt


class Bench:
    """Measures one trial from its first run to its last."""

    def __init__(self, trials: Sequence[Trial], pool: ParentPool, folder: Path) -> None:
        self.trials = {int(t.params["args.repeats"]): t for t in trials}
        self.pool, self.folder = pool, folder
        self.num = 0

    def measure(self, repeats: int) -> TrialProgress:
        """One occasion: runs in fresh processes until the protocol is content."""
        trial = self.trials[repeats]
        progress = TrialProgress(trial, "")
        while not is_settled(progress):
            run = self.run_once(trial)
            (progress.disturbed if must_repeat(progress, run) else progress.runs).append(run)
        return progress

    def run_once(self, trial: Trial) -> Run:
        self.num += 1
        out_dir = self.folder / str(self.num)
        out_dir.mkdir()
        write_json_aside(out_dir / "trial.json", to_json(trial))
        results = self.pool.get(trial).run(trial, out_dir / "trial.json", out_dir, lambda _phase: None)
        run = collect_run(trial, results)
        if run.status != "ok":
            raise SystemExit(f"a trial failed: {run.reason}")
        return run


def medians(progress: TrialProgress) -> list[float]:
    return [run.metrics["step_s"] for run in progress.runs]


def pooled(progress: TrialProgress) -> list[float]:
    return [s for run in progress.runs for s in run.samples_s]


def verdicts(a: TrialProgress, b: TrialProgress, drift_sd: float, degrees: float) -> dict[str, bool]:
    """Which rules call B different from A; only "slower" counts as found when a slowdown was planted."""
    protocol = a.trial.protocol
    ours = compare(
        medians(a),
        medians(b),
        drift_sd=drift_sd,
        drift_degrees=degrees,
        looks=(protocol.min_runs, protocol.max_runs),
    )
    ratio = statistics.median(medians(b)) / statistics.median(medians(a))
    return {
        "corewise": ours.verdict in ("faster", "slower"),
        "corewise, drift unknown": compare(
            medians(a), medians(b), looks=(protocol.min_runs, protocol.max_runs)
        ).verdict
        in ("faster", "slower"),
        "fixed threshold of 7 %": abs(ratio - 1) > FIXED_THRESHOLD,
        "t test over pooled steps": float(ttest_ind(pooled(a), pooled(b), equal_var=False).pvalue) < 0.05,
    }


def co_runner(bench: Bench, num: int) -> tuple[int, int]:
    """Runs marked as disturbed, of `num` with a busy process on one of the CPUs, and of `num` without."""
    trial = bench.trials[20]
    cpu = trial.ranks[0].cpus[-1]
    with_it = without = 0
    for _ in range(num):
        without += bool(bench.run_once(trial).disturbances)
        burn = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        burner = subprocess.Popen([sys.executable, "-c", burn])
        try:
            with_it += bool(bench.run_once(trial).disturbances)
        finally:
            burner.kill()
            burner.wait()
    return with_it, without


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--min-runs", type=int, default=5)
    parser.add_argument("--max-runs", type=int, default=10)
    parser.add_argument("--sample-s", type=float, default=0.15)
    parser.add_argument("--co-runner", type=int, default=10, help="runs with and without a co-runner")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    study = STUDY.format(
        workloads=WORKLOADS,
        threads=args.threads,
        min_runs=args.min_runs,
        max_runs=args.max_runs,
        sample_s=args.sample_s,
    )
    plan = plan_of(study)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        pool = ParentPool(plan.worker, Path(name))
        bench = Bench(plan.trials, pool, Path(name))
        calibration = [bench.measure(20) for _ in range(NUM_CALIBRATION)]
        first = [bench.measure(20) for _ in range(args.pairs)]
        second = [(bench.measure(20), bench.measure(21)) for _ in range(args.pairs)]
        marked = co_runner(bench, args.co_runner)
        pool.close()
    drift = estimate_drift([medians(p) for p in calibration])
    equal = [verdicts(a, b, drift.sd or 0.0, drift.degrees) for a, (b, _) in zip(first, second, strict=True)]
    slower = [verdicts(a, b, drift.sd or 0.0, drift.degrees) for a, (_, b) in zip(first, second, strict=True)]
    true_ratio = statistics.median(
        statistics.median(medians(b)) / statistics.median(medians(a)) for a, b in second
    )
    print(machine_line())
    print(f"{args.pairs} pairs half a session apart, {time.monotonic() - began:.0f} s in all")
    print(f"planted: one convolution more per twenty; measured side by side {true_ratio - 1:+.2%}")
    print(f"drift between occasions learnt from {NUM_CALIBRATION}: {(drift.sd or 0.0):.2%}")
    print(f"{'rule':28} {'false verdicts':>15} {'slowdowns found':>16}")
    table = {}
    for rule in equal[0]:
        false_part = statistics.fmean(v[rule] for v in equal)
        found_part = statistics.fmean(v[rule] for v in slower)
        table[rule] = {"false": false_part, "found": found_part}
        print(f"{rule:28} {false_part:15.1%} {found_part:16.1%}")
    print(f"co-runner: {marked[0]} of {args.co_runner} runs marked with it, {marked[1]} without")
    keep(
        args.out,
        table=table,
        planted_ratio=true_ratio,
        drift_sd=drift.sd,
        co_runner={"num": args.co_runner, "marked_with": marked[0], "marked_without": marked[1]},
        first_s=[medians(a) for a in first],
        second_s=[medians(b) for b, _ in second],
        slowed_s=[medians(b) for _, b in second],
        num_cpus=os.cpu_count(),
    )


if __name__ == "__main__":
    main()
