"""Compare a step of about 1 ms as Corewise reports it with a hand-written loop, in interleaved processes."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import WORKLOADS, describe_machine, plan_text, write_figures

from corewise.measured.trial import to_json, write_json_atomically
from corewise.run.warm_parent import ParentPool

STUDY = """
question: Is a millisecond a millisecond?
workload: {workloads}/matmul_step.py:factory
mode: infer
runtime: torch
fixed: {{threads: 1, batch: 1, args.size: {size}}}
protocol: {{min_runs: 1, max_runs: 1, min_sample_s: 1.0}}
"""
BY_HAND = """
import os, statistics, sys, time
os.sched_setaffinity(0, {{{cpu}}})
import torch
torch.set_num_threads(1)
a, b, out = torch.randn({size}, {size}), torch.randn({size}, {size}), torch.empty({size}, {size})
for _ in range(50):
    torch.mm(a, b, out=out)
times = []
for _ in range(1000):
    began = time.perf_counter()
    torch.mm(a, b, out=out)
    times.append(time.perf_counter() - began)
print(statistics.median(times))
"""


def run_by_hand(code: str) -> float:
    """Return the median step that the hand-written loop prints."""
    env = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--size", type=int, default=384, help="of the matrices; 384 is about a millisecond")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    plan = plan_text(STUDY.format(workloads=WORKLOADS, size=args.size))
    trial = plan.trials[0]
    code = BY_HAND.format(cpu=trial.ranks[0].cpus[0], size=args.size)
    ours, by_hand = [], []
    with tempfile.TemporaryDirectory() as name:
        pool = ParentPool(plan.worker, Path(name))
        for pair in range(args.pairs):
            out_dir = Path(name) / str(pair)
            out_dir.mkdir()
            write_json_atomically(out_dir / "trial.json", to_json(trial))
            for who in ("ours", "by hand") if pair % 2 else ("by hand", "ours"):
                if who == "ours":
                    [result] = pool.get(trial).run(trial, out_dir / "trial.json", out_dir, lambda _phase: None)
                    ours.append(statistics.median(result.samples_s))
                else:
                    by_hand.append(run_by_hand(code))
        pool.close()
    ratio = statistics.median(ours) / statistics.median(by_hand)
    print(describe_machine())
    print(f"corewise {statistics.median(ours) * 1e3:.4f} ms, by hand {statistics.median(by_hand) * 1e3:.4f} ms")
    print(f"ratio of medians over {args.pairs} processes each, in turn: {ratio:.4f} ({ratio - 1:+.2%})")
    write_figures(args.out, corewise_s=ours, by_hand_s=by_hand, ratio=ratio)


if __name__ == "__main__":
    main()
