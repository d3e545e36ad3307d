"""Time the start of a trial until its first sample, compared with torchrun and torch.backends.xeon.run_cpu.

All of them run one operator under the same Python, interleaved. Ours includes everything: read the trial file,
fork, pin, build, check the numbers, warm up, wait for "go". The peers are timed from starting the command to
the end of the first operator, without check and warm-up.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import describe_machine, plan_text, show_seconds, write_figures

from corewise.measured.trial import Trial, to_json, write_json_atomically
from corewise.run.warm_parent import ParentPool

STUDY = """
question: How long does a trial take to start?
workload: {workload}
mode: {mode}
runtime: torch
axes: {{processes: [{processes}]}}
fixed: {{threads: 1, batch: {processes}, {args}}}
protocol: {{min_runs: 1, max_runs: 1, min_samples: 3, min_sample_s: 0.01}}
"""
CHILD = """
import os, time, torch
torch.mm(torch.randn(64, 64), torch.randn(64, 64))
open(os.environ["STARTED_FILE"], "w").write(str(time.monotonic_ns()))
"""


def time_our_start(trial: Trial, pool: ParentPool, folder: Path) -> float:
    """Return the seconds to the first sample, as the rank measures them on the monotonic clock."""
    out_dir = Path(tempfile.mkdtemp(dir=folder))
    trial_file = out_dir / "trial.json"
    write_json_atomically(trial_file, to_json(trial))
    results = pool.get(trial).run(trial, trial_file, out_dir, lambda _phase: None)
    for result in results:
        if result.status != "ok":
            raise SystemExit(f"the trial failed: {result.reason}\n{result.traceback}")
    return max(result.metrics["start_s"] for result in results)


def time_peer_start(command: list[str], folder: Path) -> float:
    """Return the seconds from starting the peer's command to the end of the child's first operator."""
    child, started_file = folder / "child.py", folder / "started"
    child.write_text(CHILD)
    env = {**os.environ, "STARTED_FILE": str(started_file), "OMP_NUM_THREADS": "1"}
    began = time.monotonic_ns()
    subprocess.run([*command, str(child)], check=True, env=env, capture_output=True)
    return (int(started_file.read_text()) - began) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    one = plan_text(STUDY.format(workload="matmul", mode="infer", processes=1, args="args.size: 64"))
    two_study = STUDY.format(workload="resnet18", mode="train", processes=2, args="args.image_size: 32")
    two = plan_text(two_study) if (os.cpu_count() or 1) > 1 else None
    python = sys.executable
    peers = {
        "torchrun": [python, "-m", "torch.distributed.run", "--nproc-per-node", "1"],
        "torch.backends.xeon.run_cpu": [
            *(python, "-m", "torch.backends.xeon.run_cpu"),
            *("--ninstances", "1", "--ncores-per-instance", "1"),
        ],
    }
    rows: dict[str, list[float]] = {"corewise, second trial on": [], **{name: [] for name in peers}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pool = ParentPool(one.worker, folder)
        began = time.monotonic()
        pool.get(one.trials[0]).wait_until_warm()
        import_s = time.monotonic() - began
        rows["corewise, first trial (cold)"] = [import_s + time_our_start(one.trials[0], pool, folder)]
        for _ in range(args.repeats):
            for peer_name, command in peers.items():
                rows[peer_name].append(time_peer_start(command, folder))
            for _ in range(3):
                rows["corewise, second trial on"].append(time_our_start(one.trials[0], pool, folder))
        if two is not None and two.trials:
            key = "corewise, 2 ranks data-parallel ResNet-18"
            pool.get(two.trials[0]).wait_until_warm()
            rows[key] = [time_our_start(two.trials[0], pool, folder) for _ in range(args.repeats)]
        pool.close()
    print(describe_machine())
    show_seconds(rows)
    mine = statistics.median(rows["corewise, second trial on"])
    for peer_name in peers:
        print(f"{peer_name} takes {statistics.median(rows[peer_name]) / mine:.1f} times as long")
    write_figures(args.out, seconds=rows)


if __name__ == "__main__":
    main()
