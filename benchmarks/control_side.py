"""Time `corewise --help` and `corewise doctor`, and measure the parent's CPU share while a trial runs."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measuring import WORKLOADS, describe_machine, show_seconds, write_figures

STUDY = """
question: Does the parent sleep?
workload: {workloads}/matmul_step.py:factory
mode: infer
runtime: torch
fixed: {{threads: 1, batch: 1, args.size: 256}}
protocol: {{min_runs: 1, max_runs: 1, min_sample_s: {seconds}, max_samples: 100000}}
"""


def time_command(arguments: list[str]) -> float:
    """Return the seconds of one command."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "corewise", *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


def measure_parent_share(seconds: float) -> float:
    """Return the parent's CPU time over wall time while its trial is sampled."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study.yaml"
        study.write_text(STUDY.format(workloads=WORKLOADS, seconds=seconds))
        arguments = [sys.executable, "-m", "corewise", "run", str(study), "--store", f"{folder}/store"]
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
            parent = psutil.Process(process.pid)
            while not any("cw-rank" in child.name() for child in parent.children(recursive=True)):
                time.sleep(0.05)
            time.sleep(1.0)
            times, began = parent.cpu_times(), time.perf_counter()
            time.sleep(seconds - 3.0)
            used = parent.cpu_times()
            wall_s = time.perf_counter() - began
        if process.returncode:
            raise SystemExit("the trial failed")
    return (used.user + used.system - times.user - times.system) / wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the trial that the parent watches")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    commands = {
        "corewise --help": ["--help"],
        "corewise doctor": ["doctor"],
        "corewise doctor --json": ["doctor", "--json"],
    }
    rows: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(args.repeats):
        for name, arguments in commands.items():
            rows[name].append(time_command(arguments))
    share = measure_parent_share(args.seconds)
    print(describe_machine())
    show_seconds(rows)
    print(f"parent's share of one CPU while a trial runs: {share:.3%}")
    write_figures(
        args.out, seconds=rows, parent_share=share, medians={n: statistics.median(v) for n, v in rows.items()}
    )


if __name__ == "__main__":
    main()
