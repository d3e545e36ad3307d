"""Time an empty Python program under `corewise launch`, torchrun and run_cpu, compared with plain python.

All of them start `python -c pass` (run_cpu and torchrun: an empty file) on one core, in turns, so that drift
affects all alike. Byte code is cached in a separate folder, as for an installed package.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import describe_machine, show_seconds, write_figures

from corewise.launch.tuned_file_fit import read_fingerprint
from corewise.machine.allocation import read_allocation
from corewise.machine.topology import read_topology
from corewise.study.tuned_file import TunedSettings, TuningSubject, write_tuned

ASKED_S = 0.25


def build_commands(folder: Path) -> dict[str, list[str]]:
    """Build the command of each contestant."""
    python = sys.executable
    empty, tuned = folder / "empty.py", folder / "tuned.yaml"
    empty.write_text("pass\n")
    topology = read_topology()
    machine = read_fingerprint(topology, read_allocation(topology))
    write_tuned(
        tuned, TunedSettings(subject=TuningSubject(command=("python",)), params={"threads": 1}, machine=machine)
    )
    launch = [python, "-m", "corewise", "launch"]
    plain = [python, "-c", "pass"]
    own = {
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
    return own | peers


def time_command(command: list[str], env: dict[str, str]) -> float:
    """Return the seconds from start to end of a command."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
        contestants = build_commands(folder)
        # The first start writes the byte code.
        for command in contestants.values():
            time_command(command, env)
        rows: dict[str, list[float]] = {each: [] for each in contestants}
        for _ in range(args.repeats):
            for each, command in contestants.items():
                rows[each].append(time_command(command, env))
    print(describe_machine())
    show_seconds(rows)
    plain_s = statistics.median(rows["python"])
    overheads_s = {each: statistics.median(values) - plain_s for each, values in rows.items() if each != "python"}
    ours_s = overheads_s["corewise launch"]
    for each, overhead_s in overheads_s.items():
        print(f"{each}: {overhead_s:.3f} s over plain python, {overhead_s / ours_s:.1f} times ours")
    print(f"asked: at most {ASKED_S:g} s; reached: {'yes' if ours_s <= ASKED_S else 'no'}")
    write_figures(args.out, seconds=rows, overheads_s=overheads_s)


if __name__ == "__main__":
    main()
