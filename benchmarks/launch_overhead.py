"""Seconds of an empty Python under `corewise launch`, torchrun and run_cpu, beside plain python.

All of them start `python -c pass` (run_cpu and torchrun an empty file) on one core, in turn, so that drift
falls on all alike. Byte code is kept in a folder of its own, as it would be for an installed package.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import keep, machine_line, show_seconds

from corewise.launcher.adapt import read_fingerprint
from corewise.machine.allocation import read_allocation
from corewise.machine.topology import read_topology
from corewise.spec.tuned import Subject, Tuned, write_tuned

ASKED_S = 0.2


def commands(folder: Path) -> dict[str, list[str]]:
    """The words of each contestant, by name."""
    python = sys.executable
    empty, tuned = folder / "empty.py", folder / "tuned.yaml"
    empty.write_text("pass\n")
    topology = read_topology()
    machine = read_fingerprint(topology, read_allocation(topology))
    write_tuned(tuned, Tuned(subject=Subject(command=("python",)), params={"threads": 1}, machine=machine))
    launch = [python, "-m", "corewise", "launch"]
    plain = [python, "-c", "pass"]
    words = {
        "python": plain,
        "corewise launch": [*launch, "--", *plain],
        "corewise launch --processes 2": [*launch, "--processes", "2", "--oversubscribe", "--", *plain],
        "corewise launch --config tuned.yaml": [*launch, "--config", str(tuned), "--", *plain],
        "corewise launch --verify": [*launch, "--verify", "--", *plain],
    }
    peers = {
        "torchrun": [python, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(empty)],
        "torch.backends.xeon.run_cpu": [
            *(python, "-m", "torch.backends.xeon.run_cpu", "--ninstances", "1", "--ncores-per-instance", "1"),
            str(empty),
        ],
    }
    return words | peers


def seconds(words: list[str], env: dict[str, str]) -> float:
    """Seconds from start to end of a command."""
    began = time.perf_counter()
    subprocess.run(words, check=True, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
        contestants = commands(folder)
        for words in contestants.values():  # writes the byte code
            seconds(words, env)
        rows: dict[str, list[float]] = {each: [] for each in contestants}
        for _ in range(args.repeats):
            for each, words in contestants.items():
                rows[each].append(seconds(words, env))
    print(machine_line())
    show_seconds(rows)
    plain_s = statistics.median(rows["python"])
    overheads_s = {
        each: statistics.median(values) - plain_s for each, values in rows.items() if each != "python"
    }
    ours_s = overheads_s["corewise launch"]
    for each, overhead_s in overheads_s.items():
        print(f"{each}: {overhead_s:.3f} s over plain python, {overhead_s / ours_s:.1f} times ours")
    print(f"asked: at most {ASKED_S:g} s; reached: {'yes' if ours_s <= ASKED_S else 'no'}")
    keep(args.out, seconds=rows, overheads_s=overheads_s)


if __name__ == "__main__":
    main()
