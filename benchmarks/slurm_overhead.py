"""Overhead of trials through Slurm: one job with all trials, compared with one job per trial (submitit's array).

Starts a real Slurm on this machine (a controller and two nodes, as the tests do; needs root, slurm-wlm and munge)
and does three things on it:

1. `corewise run --on slurm` runs 200 short trials in one job. The overhead is the wall time of the command minus
   the time that the trials spent sampling.
2. submitit runs a function of the same length 200 times as an array on the same node: one job per trial. Rounds of
   both alternate. The next job starts when the node is free again.
3. The same study is disturbed: `scancel`, `kill -9` of the node's slurmd and a restart of the controller, each while
   trials run. Afterwards every trial must have exactly one record.

Every call of squeue, sacct, sbatch, scontrol and sinfo is counted by wrappers on PATH. submitit is installed from PyPI
into a temporary environment; `--python` names one that has it already.
Exits with 1 if a record is lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import write_figures

from corewise.store.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.slurm_cluster import CONTROLLER, SEARCH_PATH, SlurmCluster, run_slurm

STUDY = """
workload: stream
runtime: numpy
fixed: {{threads: 1, args.operation: triad}}
axes: {{args.size_bytes: [{sizes}]}}
protocol: {{min_runs: 1, max_runs: 1, min_samples: 3, min_sample_s: {sample_s}, max_warmup_s: 0.02,
  max_repeats_disturbed: 0}}
"""
# Both sides use the first node only, so that their trials run one after the other.
PARTITIONS = "PartitionName=one Nodes=cw1 Default=YES State=UP\nPartitionName=all Nodes=ALL State=UP"
COUNTED = ("squeue", "sacct", "sbatch", "scontrol", "sinfo")
WRAPPER = """#!/bin/sh
echo "$(date +%s.%N) {name} $PPID" >> {log}
exec {program} "$@"
"""
# The peer: a function that samples for the same time and returns it, and the loop that waits for all results.
PEER = """
import json, sys, time
import submitit

def measure(size_bytes, seconds):
    import numpy
    num = size_bytes // 24
    a, b, c = numpy.zeros(num), numpy.ones(num), numpy.ones(num)
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        numpy.multiply(c, 3.0, out=a)
        numpy.add(a, b, out=a)
    return passed

folder, num, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
executor = submitit.SlurmExecutor(folder=folder)
executor.update_parameters(time=10, partition="one", ntasks_per_node=1, array_parallelism=num, job_name="peer")
start = time.perf_counter()
jobs = executor.map_array(measure, [65536 + 64 * index for index in range(num)], [seconds] * num)
waiting = list(jobs)
while waiting:
    # A finished job has written its result: no question to the scheduler is needed.
    waiting = [job for job in waiting if not job.paths.result_pickle.exists()]
    time.sleep(0.05)
wall_s = time.perf_counter() - start
print(json.dumps({"wall_s": wall_s, "measured_s": sum(job.result() for job in jobs)}))
"""
LIMIT_S = 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sample-s", type=float, default=0.1)
    parser.add_argument("--python", type=Path, help="an interpreter that has submitit")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cw-overhead-", dir="/tmp") as name:
        folder = Path(name)
        peer = None if options.without_peer else options.python or install_submitit(folder / "venv")
        with run_slurm(partitions=PARTITIONS, extra="SlurmdTimeout=20\nMaxArraySize=2000") as cluster:
            calls = count_calls(cluster, folder)
            write_site(cluster, folder)
            ours: list[dict[str, Any]] = []
            theirs: list[dict[str, Any]] = []
            for index in range(options.rounds):
                ours.append(run_ours(cluster, folder / f"ours-{index}", options.trials, options.sample_s, calls))
                print(f"corewise: {ours[-1]}", flush=True)
                if peer is not None:
                    seconds = ours[-1]["measured_s"] / options.trials
                    theirs.append(run_theirs(cluster, folder / f"theirs-{index}", options.trials, seconds, peer, calls))
                    print(f"submitit: {theirs[-1]}", flush=True)
            faults = run_with_faults(cluster, folder / "faults", options.trials, options.sample_s, calls)
            print(f"with faults: {faults}", flush=True)
    per_trial = {
        side: [each["overhead_s"] / options.trials for each in rounds]
        for side, rounds in (("corewise", ours), ("submitit", theirs))
    }
    ratios = [b / a for a, b in zip(per_trial["corewise"], per_trial["submitit"], strict=False)]
    print(f"overhead per trial, s: {per_trial}; submitit / corewise: {ratios}")
    write_figures(
        options.out,
        num_trials=options.trials,
        corewise=ours,
        submitit=theirs,
        overhead_per_trial_s=per_trial,
        overhead_ratios=ratios,
        faults=faults,
    )
    return 0 if faults["is_complete"] and all(each["is_complete"] for each in ours) else 1


def install_submitit(folder: Path) -> Path:
    """Make an environment with submitit and the numpy of this one; return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    subprocess.run([python, "-P", "-m", "pip", "install", "--quiet", "submitit", "numpy"], check=True)
    return python


def count_calls(cluster: SlurmCluster, folder: Path) -> Path:
    """Put wrappers of Slurm's commands on PATH that log each call; return the log."""
    log, wrappers = folder / "calls.log", folder / "bin"
    wrappers.mkdir()
    log.touch()
    for name in COUNTED:
        program = shutil.which(name, path=SEARCH_PATH)
        (wrappers / name).write_text(WRAPPER.format(name=name, log=log, program=program))
        (wrappers / name).chmod(0o755)
    cluster.env["PATH"] = f"{wrappers}:{cluster.env['PATH']}"
    return log


def write_site(cluster: SlurmCluster, folder: Path) -> None:
    """Write a site file that accepts a store below /tmp and has the default interval between questions."""
    path = folder / "config/corewise/sites.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("default:\n  allow_local_store: true\n")
    cluster.env["XDG_CONFIG_HOME"] = str(folder / "config")


def build_command(folder: Path, num_trials: int, sample_s: float) -> list[str]:
    """Write the study and return the command that submits it."""
    folder.mkdir(exist_ok=True)
    study = folder / "short.yaml"
    sizes = ", ".join(str(65536 + 64 * index) for index in range(num_trials))
    study.write_text(STUDY.format(sizes=sizes, sample_s=sample_s))
    command = [sys.executable, "-P", "-m", "corewise", "run", str(study), "--store", str(folder / "store")]
    return [*command, "--on", "slurm", "--partition", "one", "--time", "60"]


def run_ours(cluster: SlurmCluster, folder: Path, num_trials: int, sample_s: float, calls: Path) -> dict[str, Any]:
    """Run the study once, undisturbed."""
    command = build_command(folder, num_trials, sample_s)
    cluster.wait_until_idle()
    with watch_calls(calls) as counted:
        start = time.perf_counter()
        done = cluster.run(command, timeout_s=LIMIT_S)
        wall_s = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    measured_s, statuses, is_complete = read_store(folder / "store", num_trials)
    return {
        "wall_s": wall_s,
        "measured_s": measured_s,
        "overhead_s": wall_s - measured_s,
        "statuses": statuses,
        "is_complete": is_complete,
        "calls": dict(counted),
        "num_waits_in_queue": counted["sbatch"],
    }


def run_theirs(
    cluster: SlurmCluster, folder: Path, num_trials: int, seconds: float, python: Path, calls: Path
) -> dict[str, Any]:
    """Run the array of submitit once."""
    folder.mkdir()
    script = folder / "peer.py"
    script.write_text(PEER)
    cluster.wait_until_idle()
    with watch_calls(calls) as counted:
        done = cluster.run(
            [str(python), str(script), str(folder / "logs"), str(num_trials), str(seconds)], timeout_s=LIMIT_S
        )
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        **figures,
        "overhead_s": figures["wall_s"] - figures["measured_s"],
        "calls": dict(counted),
        "num_waits_in_queue": num_trials,
    }


def run_with_faults(
    cluster: SlurmCluster, folder: Path, num_trials: int, sample_s: float, calls: Path
) -> dict[str, Any]:
    """Run the study through scancel, a killed slurmd and a restarted controller; count the records."""
    command = build_command(folder, num_trials, sample_s)
    store, events = folder / "store", []
    cluster.wait_until_idle()
    with watch_calls(calls) as counted:
        start = time.perf_counter()
        with start_command(cluster, command) as process:
            wait_for_records(store, num_trials // 5, process)
            job_id = cluster.run(["squeue", "--noheader", "--format=%i"]).stdout.split()[0]
            # The question above is not Corewise's.
            counted["squeue"] -= 1
            cluster.run(["scancel", job_id])
            events.append(f"scancel after {count_records(store)} records")
            print(process.communicate()[1], end="", flush=True)
        cluster.wait_until_idle()
        with start_command(cluster, command) as process:
            wait_for_records(store, 2 * num_trials // 5, process)
            cluster.kill("cw1")
            events.append(f"slurmd killed after {count_records(store)} records")
            cluster.start_node("cw1")
            wait_for_records(store, 3 * num_trials // 5, process)
            cluster.kill(CONTROLLER)
            events.append(f"controller killed after {count_records(store)} records")
            cluster.start_controller()
            print(process.communicate()[1], end="", flush=True)
        wall_s = time.perf_counter() - start
    measured_s, statuses, is_complete = read_store(store, num_trials)
    return {
        "wall_s": wall_s,
        "measured_s": measured_s,
        "events": events,
        "statuses": statuses,
        "is_complete": is_complete,
        "calls": dict(counted),
    }


@contextmanager
def start_command(cluster: SlurmCluster, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a command that reaches the cluster."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=cluster.env, stdout=subprocess.DEVNULL, stderr=pipe, text=True) as process:
        yield process


@contextmanager
def watch_calls(log: Path) -> Iterator[Counter[str]]:
    """Yield a counter that holds the calls of Slurm's commands when the block has ended."""
    num_before = len(log.read_text().splitlines())
    counted: Counter[str] = Counter()
    yield counted
    counted.update(line.split()[1] for line in log.read_text().splitlines()[num_before:])


def wait_for_records(store: Path, least: int, process: subprocess.Popen[str]) -> None:
    """Wait until the store has this many records, or the command has ended."""
    while process.poll() is None and count_records(store) < least:
        time.sleep(0.1)


def count_records(store: Path) -> int:
    """Count the trials that have a record."""
    return len(Store.open(store, create=False).read_done_ids()) if store.exists() else 0


def read_store(store: Path, num_trials: int) -> tuple[float, dict[str, int], bool]:
    """Return the seconds of sampling, the statuses, and whether each trial has exactly one good record."""
    result = Store.open(store, create=False).read_records()
    measured_s = sum(record.metrics.get("wall_s", 0.0) * len(record.runs) for record in result.records)
    statuses = Counter(record.status for record in result.records)
    is_complete = dict(statuses) == {"ok": num_trials} and not result.duplicates and not result.damage
    return measured_s, dict(statuses), is_complete


if __name__ == "__main__":
    os.environ.pop("SLURM_CONF", None)
    raise SystemExit(main())
