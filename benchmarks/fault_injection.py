"""Let every system call on a store fail in turn, or kill the process there, and check what remains.

A preloaded library (fault_shim.c) sits under the real code. Two programs are tried: `store`, which claims
trials and appends their records, and `run`, a whole `corewise run` of a quick numpy study. For each call, each
error and each moment, a forked process runs the program with that fault. Then the store must be readable and
hold every record that was acknowledged, no record twice, and a run without faults must complete the rest.
"""

import argparse
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import write_figures

from corewise.cli.render.run_progress import SilentObserver
from corewise.errors import UserError
from corewise.run import study_runner
from corewise.run.plan import Plan, plan_study
from corewise.run.study_runner import StudyRun
from corewise.store.leases import acquire_lease, remove_stale_leases
from corewise.store.store import Store
from corewise.study.record import Record, format_utc_now
from corewise.study.study import load_study

SOURCE = Path(__file__).with_name("fault_shim.c")
CALLS = ("open", "write", "fsync", "rename", "link", "unlink", "readdir", "truncate", "mkdir", "utime")
# Actions of the shim that are no error numbers.
SHORT_WRITE, KILL_BEFORE, KILL_AFTER = -1, -2, -3
ACTIONS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EACCES": errno.EACCES,
    "EINTR": errno.EINTR,
    "short write": SHORT_WRITE,
    "killed before": KILL_BEFORE,
    "killed after": KILL_AFTER,
}
# A fault that stays, such as a full disk, besides faults that occur once.
LASTING = ("ENOSPC", "EIO")
NUM_TRIALS = 4
# Exit codes of a forked program: it ended well, reported the fault, or raised something else.
DONE, REPORTED, UNCAUGHT = 0, 2, 70
STUDY = """
question: Does a fault lose a record?
workload: own.py:build
mode: infer
runtime: numpy
axes: {batch: [1, 2]}
fixed: {threads: 1}
protocol: {min_runs: 1, max_runs: 1, min_samples: 2, min_sample_s: 0.001, max_warmup_s: 0.01, timeout_s: 60,
           max_repeats_disturbed: 0}
"""
OWN = 'def build(batch, mode):\n    return {"step": lambda: None, "samples_per_step": batch}\n'


@dataclass(frozen=True)
class Fault:
    """One system call that fails: its name, its number from 0, how, and whether later ones fail too."""

    call: str
    at: int
    action: str
    lasts: bool


@dataclass(frozen=True)
class Violation:
    """What a fault broke."""

    fault: Fault
    what: str


def record_trials(path: Path, acknowledge: Callable[[str], None]) -> None:
    """Claim each trial that has no record and append one, as a run does."""
    store = Store.open(path)
    done = store.read_done_ids()
    remove_stale_leases(store.leases_folder, lambda name: name.removeprefix("trial-") in done)
    for trial_id in (f"t{number}" for number in range(NUM_TRIALS)):
        if trial_id in done:
            continue
        with acquire_lease(store.leases_folder, f"trial-{trial_id}") as lease:
            if trial_id in store.read_done_ids():
                continue
            lease.send_heartbeat()
            values = {"study": "s", "status": "ok", "finished_at": format_utc_now(), "lease": lease.token}
            store.append(Record(trial_id=trial_id, **values))
            acknowledge(trial_id)
    store.close()


class AcknowledgingObserver(SilentObserver):
    """Acknowledges each record once the run has written it."""

    def __init__(self, acknowledge: Callable[[str], None]) -> None:
        self.acknowledge = acknowledge

    def report_record(self, record: Record) -> None:
        self.acknowledge(record.trial_id)


def run_study(plan: Plan, path: Path, acknowledge: Callable[[str], None]) -> None:
    """Run a whole study."""
    StudyRun(plan, Store.open(path), AcknowledgingObserver(acknowledge)).execute()


Program = Callable[[Path, Callable[[str], None]], None]


class FaultLab:
    """Runs a program with faults; the preloaded library must be present."""

    def __init__(self, program: Program, num_trials: int, folder: Path) -> None:
        self.program, self.num_trials, self.folder = program, num_trials, folder
        self.shim = ctypes.CDLL(None)
        self.mark = f"/{folder.name}/store"
        self.store_path = folder / "store"

    def count_calls(self) -> dict[str, int]:
        """Count the calls of a run without faults."""
        self._clear()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._run_program(None)
            counts = {call: int(self.shim.fault_count(call.encode())) for call in CALLS}
            os.write(write_fd, json.dumps(counts).encode())
            os._exit(0)
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            counts = json.loads(pipe.read())
        os.waitpid(pid, 0)
        return {str(call): int(num) for call, num in counts.items()}

    def try_fault(self, fault: Fault) -> tuple[str, list[Violation]]:
        """Return how the program ended, and what the fault broke."""
        self._clear()
        code, acknowledged = self._fork_program(fault)
        broken: list[str] = []
        if code == UNCAUGHT:
            broken.append("an exception was not caught")
        broken += self._check_store(acknowledged)
        code_after, _ = self._fork_program(None)
        if code_after != DONE:
            broken.append(f"the next run ended with {code_after}")
        broken += self._check_store(acknowledged)
        broken += self._check_complete()
        outcome = {DONE: "completed", REPORTED: "reported", -signal.SIGKILL: "killed"}.get(code, f"exit {code}")
        return outcome, [Violation(fault, what) for what in broken]

    def _fork_program(self, fault: Fault | None) -> tuple[int, list[str]]:
        """Run the program in a child; return its exit code and the acknowledged trials."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_fd)
            os._exit(self._run_program(fault, lambda trial_id: void(os.write(write_fd, f"{trial_id}\n".encode()))))
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            acknowledged = pipe.read().split()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), acknowledged

    def _run_program(self, fault: Fault | None, acknowledge: Callable[[str], None] = lambda trial_id: None) -> int:
        self.shim.fault_mark(self.mark.encode())
        if fault is not None:
            self.shim.fault_arm(fault.call.encode(), fault.at, ACTIONS[fault.action], int(fault.lasts))
        try:
            self.program(self.store_path, acknowledge)
        except (UserError, OSError):
            return REPORTED
        except BaseException:
            traceback.print_exc()
            return UNCAUGHT
        return DONE

    def _check_store(self, acknowledged: list[str]) -> Iterator[str]:
        if not self.store_path.exists():
            return
        try:
            result = Store.open(self.store_path).read_records()
        except UserError as error:
            yield f"the store cannot be read: {error}"
            return
        lost = set(acknowledged) - {record.trial_id for record in result.records}
        if lost:
            yield f"lost: {', '.join(sorted(lost))}"
        if result.duplicates or result.late:
            yield f"{len(result.duplicates) + len(result.late)} records doubled"

    def _check_complete(self) -> Iterator[str]:
        store = Store.open(self.store_path)
        num_records = len(store.read_records().records)
        if num_records != self.num_trials:
            yield f"{num_records} of {self.num_trials} trials have a record in the end"
        left = sorted(path.name for path in store.leases_folder.glob("*.json"))
        if left:
            yield f"leases left: {', '.join(left)}"

    def _clear(self) -> None:
        shutil.rmtree(self.store_path, ignore_errors=True)


def void(value: object) -> None:
    """Drop a value."""


def list_faults(counts: dict[str, int]) -> list[Fault]:
    """List all faults of a program with these numbers of calls."""
    faults = []
    for call, num in counts.items():
        for action in ACTIONS:
            if action == "short write" and call != "write":
                continue
            for at in range(num):
                faults.append(Fault(call, at, action, lasts=False))
                if action in LASTING:
                    faults.append(Fault(call, at, action, lasts=True))
    return faults


def build_shim(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "fault_shim.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"], check=True
    )
    return library


def build_lab(program: str, folder: Path) -> FaultLab:
    """Prepare one of the two programs."""
    if program == "store":
        return FaultLab(record_trials, NUM_TRIALS, folder)
    os.chdir(folder)
    Path("own.py").write_text(OWN)
    Path("study.yaml").write_text(STUDY)
    plan = plan_study(load_study("study.yaml", []))
    study_runner.POLL_OTHERS_S = 0.05
    return FaultLab(lambda path, acknowledge: run_study(plan, path, acknowledge), len(plan.trials), folder)


def inject_faults(program: str, folder: Path, limit: int, seed: int) -> dict[str, object]:
    """Try all faults of a program, or as many as allowed, drawn at random; print a table and return figures."""
    lab = build_lab(program, folder)
    counts = lab.count_calls()
    faults = list_faults(counts)
    num_possible = len(faults)
    if limit and limit < num_possible:
        faults = random.Random(seed).sample(faults, limit)
    outcomes: Counter[str] = Counter()
    violations: list[Violation] = []
    for number, fault in enumerate(faults):
        outcome, broken = lab.try_fault(fault)
        outcomes[outcome] += 1
        violations += broken
        for each in broken:
            print(f"  {fault}: {each.what}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{program}: {number + 1} of {len(faults)} faults", end="", file=sys.stderr, flush=True)
    calls = ", ".join(f"{num} {call}" for call, num in counts.items() if num)
    print(f"{program}: {len(faults)} of {num_possible} faults ({calls})")
    print("  " + ", ".join(f"{num} {outcome}" for outcome, num in sorted(outcomes.items())))
    print(f"  violations: {len(violations)}")
    return {
        "calls": counts,
        "num_faults": len(faults),
        "num_possible": num_possible,
        "outcomes": dict(outcomes),
        "violations": [asdict(each) for each in violations],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=("store", "run"), default=["store", "run"])
    parser.add_argument("--limit", type=int, default=0, help="try at most this many faults per program, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    if "COREWISE_FAULT_FOLDER" not in os.environ:
        # The library must be loaded before the interpreter, so this script starts itself again.
        with tempfile.TemporaryDirectory(prefix="corewise-faults-") as folder:
            env = {**os.environ, "COREWISE_FAULT_FOLDER": folder, "LD_PRELOAD": str(build_shim(Path(folder)))}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=env).returncode)
    folder = Path(os.environ["COREWISE_FAULT_FOLDER"])
    out = args.out.absolute() if args.out else None
    figures = {program: inject_faults(program, folder, args.limit, args.seed) for program in args.programs}
    if out:
        write_figures(out, programs=figures)
    sys.exit(any(each["violations"] for each in figures.values()))


if __name__ == "__main__":
    main()
