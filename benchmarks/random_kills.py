"""Kill `corewise run` at random moments and check that nothing is lost, doubled or left behind.

Each kill is a SIGKILL to a run of a study of short numpy trials, one of which leaves a daemon. The moments are
drawn from a fixed seed: by the clock over the whole life of a run, or just after a rank has written its result,
a record has appeared, or the last record has. The run is stopped first, so that its files show in which phase
the kill hits it. After each kill:

- the store reads, every record that could be read before is unchanged, and no trial has two records;
- no process of the run is left, and no lease is held by a living process.

The next run resumes the same study. When a run ends by itself, it must have succeeded, each trial must have
exactly one record, and neither temporary files nor work folders nor leases may be left. Then a new store begins.
Exits with 1 if a check fails.
"""

import argparse
import collections
import glob
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from measuring import describe_machine, write_figures

from corewise.errors import UserError
from corewise.measured.worker.descendants import is_stopped
from corewise.store.leases import list_holders, read_clock_s
from corewise.store.store import Store

NUM_TRIALS = 8
WORKLOAD = """
import os
import numpy

def factory(batch, mode, k):
    matrix = numpy.ones((16, 16))
    if k == 0 and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execlp("sleep", "sleep", "600")
        os._exit(0)
    return {"step": lambda: matrix @ matrix, "samples_per_step": batch}
"""
STUDY = f"""
question: Is anything lost?
workload: workload.py:factory
mode: infer
runtime: numpy
axes: {{args.k: {list(range(NUM_TRIALS))}}}
fixed: {{threads: 1, batch: 1}}
protocol:
  {{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.001, max_warmup_s: 0.02, timeout_s: 60,
  max_repeats_disturbed: 0}}
"""
# What a kill hits: no lease yet; lease held, no run yet; a run in flight; its result is there; all is recorded.
PHASES = ("start-up", "preparing", "measuring", "recording", "cleaning")
# Seconds between two looks at a run.
POLL_S = 0.0005
# Seconds that processes have to end after a kill.
END_LIMIT_S = 20.0
# Triggers, and how often each is drawn.
TRIGGERS = {"start": 3, "clock": 3, "result": 2, "record": 1, "end": 1}
# The first two draw a moment of this share of a run's life; the others have a largest delay, in seconds.
SHARES = {"start": 0.4, "clock": 1.0}
DELAYS_S = {"result": 0.006, "record": 0.006, "end": 0.06}
MARK = "COREWISE_RANDOM_KILLS"
RESULT = "rank-0.json"


@dataclass
class Findings:
    """What was observed in all episodes."""

    kills: list[dict[str, object]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    num_stores: int = 0
    num_torn_lines: int = 0

    def check(self, holds: bool, message: str) -> None:
        if not holds:
            self.violations.append(f"after kill {len(self.kills)}: {message}")
            print(self.violations[-1], flush=True)


class KilledStudy:
    """One study and its store, which is run, killed and resumed until a run ends by itself."""

    def __init__(self, folder: Path, findings: Findings) -> None:
        self.folder, self.findings = folder, findings
        self.store, self.temporary = folder / "store", folder / "tmp"
        self.temporary.mkdir()
        (folder / "study.yaml").write_text(STUDY)
        (folder / "workload.py").write_text(WORKLOAD)
        self.mark = uuid.uuid4().hex
        self.env = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        # Each record that was readable once, by trial.
        self.records: dict[str, str] = {}

    def start(self) -> "subprocess.Popen[bytes]":
        """Start `corewise run`."""
        with open(self.folder / "output", "wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "corewise", "run", "study.yaml", "--store", "store"],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def count_records(self) -> int:
        """Count the lines in the record files, which is fast enough to poll."""
        return sum(path.read_bytes().count(b"\n") for path in (self.store / "records").glob("*.jsonl"))

    def list_results(self) -> set[str]:
        """List the results of runs that are not stored yet; folders may vanish meanwhile."""
        return set(glob.glob(f"{self.store}/work/*/run-*.part/{RESULT}"))

    def recognise_phase(self, pid: int, began_s: float) -> str:
        """Recognise the phase of a stopped run from the files of its store."""
        num_recorded = len(read_sealed_records(self.store)[0])
        hosts = [each for each in list_holders(self.store / "leases") if each.name.startswith("host-")]
        if not any(each.process is not None and each.process.pid == pid for each in hosts):
            # A run that finds all trials recorded has nothing else to do.
            return "cleaning" if len(self.records) < num_recorded == NUM_TRIALS else "start-up"
        if num_recorded == NUM_TRIALS:
            return "cleaning"
        written = [path for path in (self.store / "work").glob("*/run-*") if path.stat().st_mtime >= began_s]
        if any(path.suffix == ".part" and not (path / RESULT).exists() for path in written):
            return "measuring"
        is_begun = written or list((self.store / "records").glob(f"*-{pid}-*"))
        return "recording" if is_begun else "preparing"

    def check_records(self) -> None:
        """Check that no record is lost, changed or doubled, and that the product reads the same ones."""
        found, num_torn = read_sealed_records(self.store)
        for trial, lines in found.items():
            self.findings.check(len(lines) == 1, f"trial {trial} has {len(lines)} records")
        for trial, line in self.records.items():
            self.findings.check(found.get(trial, [""])[0] == line, f"the record of trial {trial} is lost or changed")
        self.records = {trial: lines[0] for trial, lines in found.items()}
        self.findings.num_torn_lines = max(self.findings.num_torn_lines, num_torn)
        if not self.store.exists():
            return
        try:
            readable = {record.trial_id for record in Store.open(self.store).read_records().records}
        except UserError as problem:
            self.findings.check(False, f"the store does not read: {problem}")
            return
        self.findings.check(readable == found.keys(), f"of {len(found)} records, {len(readable)} are read")

    def check_processes(self) -> float:
        """Check that no process is left; return how many seconds that took."""
        began = time.monotonic()
        while (left := find_marked_processes(self.mark)) and time.monotonic() - began < END_LIMIT_S:
            time.sleep(POLL_S)
        self.findings.check(not left, f"processes are left: {left}")
        return time.monotonic() - began

    def check_leases(self) -> None:
        """Check that no lease blocks the next run."""
        leases = self.store / "leases"
        for holder in list_holders(leases):
            self.findings.check(holder.is_stale(read_clock_s(leases)), f"lease {holder.name} is held by {holder}")

    def check_completed(self, code: int) -> None:
        """Check a run that has ended by itself."""
        output = (self.folder / "output").read_text()
        self.findings.check(code == 0, f"the run ended with code {code}: {output}")
        self.findings.check(
            len(self.records) == NUM_TRIALS, f"{len(self.records)} of {NUM_TRIALS} trials have a record"
        )
        for left in (*self.temporary.iterdir(), *(self.store / "work").iterdir(), *list_holders(self.store / "leases")):
            self.findings.check(False, f"left at the end: {left}")
        for left in [*self.folder.glob("cache/**/.*.part"), *self.store.glob("trials/.*.part")]:
            self.findings.check(False, f"a temporary file is left at the end: {left}")


def read_sealed_records(store: Path) -> tuple[dict[str, list[str]], int]:
    """Read all intact lines without Corewise: digests by trial, and the number of torn lines."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    num_torn = 0
    for path in sorted((store / "records").glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            body, _, crc = line.rpartition(b',"crc":"')
            if crc.endswith(b'"}') and zlib.crc32(body) == int(crc[:-2], 16):
                found[json.loads(body + b"}")["trial_id"]].append(hashlib.sha256(line).hexdigest())
            else:
                num_torn += 1
    return dict(found), num_torn


def find_marked_processes(mark: str) -> list[str]:
    """Find the processes whose environment carries the mark."""
    command_lines = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    command_lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return command_lines


def draw_moment(study: KilledStudy, rng: random.Random, life_s: float) -> tuple[str, Callable[[float], bool], float]:
    """Draw when to kill: the name of the trigger, its condition on the seconds since the start, and a delay."""
    [trigger] = rng.choices(list(TRIGGERS), list(TRIGGERS.values()))
    share, delay_s = rng.random(), rng.uniform(0.0, DELAYS_S.get(trigger, 0.0))
    if trigger in SHARES:
        return trigger, lambda age_s: age_s >= share * SHARES[trigger] * life_s, 0.0
    num_before = study.count_records()
    if trigger == "result":
        # A result of an earlier run stays until its trial runs again.
        seen, num_wanted = study.list_results(), 1 + int(share * 2 * (NUM_TRIALS - num_before))

        def has_results(age_s: float) -> bool:
            seen.update(study.list_results())
            return len(seen) >= num_wanted

        num_wanted += len(seen)
        return trigger, has_results, delay_s
    num_wanted = NUM_TRIALS if trigger == "end" else num_before + 1 + int(share * (NUM_TRIALS - num_before))
    return trigger, lambda age_s: study.count_records() >= num_wanted, delay_s


def run_and_kill(study: KilledStudy, rng: random.Random, life_s: float) -> bool:
    """Run the study and kill it at a random moment; return True if it ended by itself before."""
    trigger, is_due, delay_s = draw_moment(study, rng, life_s)
    began_s, began = time.time(), time.monotonic()
    process = study.start()
    while process.poll() is None and not is_due(time.monotonic() - began):
        time.sleep(POLL_S)
    time.sleep(delay_s)
    process.send_signal(signal.SIGSTOP)
    while process.poll() is None and not is_stopped(process.pid):
        time.sleep(POLL_S / 10)
    if process.poll() is not None:
        study.check_records()
        study.check_processes()
        study.check_completed(process.returncode)
        return True
    phase, killed_after_s = study.recognise_phase(process.pid, began_s), time.monotonic() - began
    study.check_records()
    process.kill()
    process.wait()
    kill = {"phase": phase, "trigger": trigger, "after_s": round(killed_after_s, 4)}
    study.findings.kills.append(kill)
    kill["ended_s"] = round(study.check_processes(), 4)
    study.check_records()
    study.check_leases()
    return False


def measure_life_s(folder: Path) -> float:
    """Measure how long a whole run takes."""
    study = KilledStudy(folder, Findings())
    began = time.monotonic()
    study.start().wait()
    return time.monotonic() - began


def make_folders(root: Path) -> Iterator[Path]:
    """Make one folder after another."""
    for number in range(sys.maxsize):
        folder = root / str(number)
        folder.mkdir()
        yield folder


def kill_randomly(num_kills: int, seed: int, root: Path) -> Findings:
    """Kill runs until there were enough kills and the last study is complete."""
    rng, findings = random.Random(seed), Findings()
    folders = make_folders(root)
    life_s = measure_life_s(next(folders))
    while len(findings.kills) < num_kills and not findings.violations:
        study = KilledStudy(next(folders), findings)
        findings.num_stores += 1
        while not run_and_kill(study, rng, life_s):
            if len(findings.kills) % 50 == 0:
                print(f"{len(findings.kills)} kills, {findings.num_stores} stores", flush=True)
    return findings


def print_table(findings: Findings, seconds: float) -> None:
    counts = collections.Counter(kill["phase"] for kill in findings.kills)
    print(f"\n{'phase':12} {'kills':>6} {'longest until all processes had ended':>40}")
    for phase in PHASES:
        ended_s = [float(str(kill["ended_s"])) for kill in findings.kills if kill["phase"] == phase]
        print(f"{phase:12} {counts[phase]:6} {max(ended_s, default=0.0):38.3f} s")
    print(
        f"{len(findings.kills)} kills of {findings.num_stores} studies with {NUM_TRIALS} trials in {seconds:.0f} s; "
        f"{len(findings.violations)} violations"
    )


def summarise(findings: Findings) -> Mapping[str, object]:
    """Summarise the findings as JSON values."""
    ended_s = [float(str(kill["ended_s"])) for kill in findings.kills]
    return {
        "num_kills": len(findings.kills),
        "num_kills_by_phase": {phase: sum(kill["phase"] == phase for kill in findings.kills) for phase in PHASES},
        "num_studies": findings.num_stores,
        "num_trials_per_study": NUM_TRIALS,
        "violations": findings.violations,
        "most_torn_lines_in_a_store": findings.num_torn_lines,
        "ended_s": {"median": statistics.median(ended_s), "max": max(ended_s)},
        "kills": findings.kills,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="how many kills; default: 1000")
    parser.add_argument("--seed", type=int, default=20, help="seed of the moments; default: 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="random-kills-") as name:
        findings = kill_randomly(args.kills, args.seed, Path(name))
    seconds = time.monotonic() - began
    print(describe_machine())
    print_table(findings, seconds)
    write_figures(args.json, seed=args.seed, seconds=round(seconds), **summarise(findings))
    sys.exit(1 if findings.violations else 0)


if __name__ == "__main__":
    main()
