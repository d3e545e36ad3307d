"""Let two hosts share a store while one of them is paused, and count records that are lost or doubled.

Each host is a process with its own host name (a UTS namespace, so this script needs root) that runs the same
quick numpy study with its own warm parents. In each episode one host, with all its processes, is stopped at a
random moment for longer than the stale time, then continued. Some episodes add a clock that is a day wrong on
one host (times of records and heartbeats), and a network file system that shows changes of others late (reads
of leases and record files are up to half a second old). The stale time is shortened to one second.
"""

import argparse
import ctypes
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fault_injection import OWN
from measuring import write_figures

from corewise.cli.render.run_progress import SilentObserver
from corewise.measured.worker.descendants import find_descendants, read_parents, send_signal
from corewise.run import record_builder, study_runner
from corewise.run.plan import Plan, plan_study
from corewise.run.study_runner import StudyRun
from corewise.store import leases
from corewise.store.leases import STALE_VARIABLE
from corewise.store.store import Store
from corewise.study.study import load_study

STALE_S = 1.0
SKEW = timedelta(days=1)
DELAY_S = 0.5
CLONE_NEWUTS = 0x04000000
HOSTS = ("node-a", "node-b")
STUDY = """
question: Does a pause double a record?
workload: own.py:build
mode: infer
runtime: numpy
axes: {batch: [1, 2, 3, 4, 5, 6]}
fixed: {threads: 1}
protocol: {min_runs: 3, max_runs: 3, min_samples: 2, min_sample_s: 0.02, max_warmup_s: 0.01, timeout_s: 60,
           max_repeats_disturbed: 0}
"""


@dataclass(frozen=True)
class Episode:
    """One pause: which host, when, for how long, and what else is wrong."""

    paused_host: int
    pause_after_s: float
    pause_s: float
    skewed_host: int | None
    skew_sign: int
    is_delayed: bool


@dataclass(frozen=True)
class EpisodeResult:
    """What an episode left: records that count, duplicates, late records, lost trials and exit codes."""

    num_records: int
    num_duplicates: int
    num_late: int
    num_lost: int
    exit_codes: tuple[int, ...]

    @property
    def is_clean(self) -> bool:
        return not self.num_duplicates and not self.num_lost and set(self.exit_codes) == {0}


def draw_episode(rng: random.Random) -> Episode:
    """Draw an episode at random."""
    return Episode(
        paused_host=rng.randrange(2),
        pause_after_s=rng.uniform(0.0, 2.5),
        pause_s=rng.uniform(1.2 * STALE_S, 3.0 * STALE_S),
        skewed_host=rng.choice([None, 0, 1]),
        skew_sign=rng.choice([-1, 1]),
        is_delayed=rng.random() < 0.5,
    )


def run_host(plan: Plan, number: int, episode: Episode, store_path: Path) -> int:
    """Run the study as one host; runs in a forked process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "a new UTS namespace needs root")
    socket.sethostname(HOSTS[number])
    if episode.skewed_host == number:
        skew_clock(episode.skew_sign)
    if episode.is_delayed:
        delay_visibility()
    facts = replace(plan.host.facts, hostname=HOSTS[number])
    StudyRun(replace(plan, host=replace(plan.host, facts=facts)), Store.open(store_path), SilentObserver()).execute()
    return 0


def skew_clock(sign: int) -> None:
    """Let this process write times that are a day wrong, into records and heartbeats."""

    def format_skewed_now() -> str:
        moment = datetime.now(UTC) + sign * SKEW
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    record_builder.format_utc_now = format_skewed_now
    utime = os.utime

    def utime_skewed(path: Any, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            utime(path, *args, **kwargs)
        else:
            now = time.time() + sign * SKEW.total_seconds()
            utime(path, (now, now))

    os.utime = utime_skewed


def delay_visibility() -> None:
    """Let this process see what others wrote half a second late, as a network file system with caches does.

    As there, a change that this process itself makes in a folder drops what was cached.
    """
    known: dict[tuple[str, Any], tuple[float, Any]] = {}

    def cache(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read(key: Any) -> Any:
            place = (function.__name__, key)
            if place not in known or time.monotonic() > known[place][0] + DELAY_S:
                known[place] = (time.monotonic(), function(key))
            return known[place][1]

        return read

    def drop_after(function: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                known.clear()

        return change

    leases._read_lease_file = cache(leases._read_lease_file)
    Store._list_files = cache(Store._list_files)
    for name in ("link", "replace", "unlink", "utime"):
        setattr(os, name, drop_after(getattr(os, name)))


def play(plan: Plan, episode: Episode, store_path: Path) -> EpisodeResult:
    """Play an episode on an empty store."""
    shutil.rmtree(store_path, ignore_errors=True)
    Store.open(store_path)
    pids = [_fork_host(plan, number, episode, store_path) for number in range(2)]
    time.sleep(episode.pause_after_s)
    paused = pids[episode.paused_host]
    processes = [paused, *find_descendants(paused, read_parents())]
    send_signal(processes, signal.SIGSTOP)
    time.sleep(episode.pause_s)
    send_signal(processes[::-1], signal.SIGCONT)
    codes = tuple(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
    result = Store.open(store_path).read_records()
    lost = {trial.trial_id for trial in plan.trials} - {record.trial_id for record in result.records}
    return EpisodeResult(len(result.records), len(result.duplicates), len(result.late), len(lost), codes)


def _fork_host(plan: Plan, number: int, episode: Episode, store_path: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = run_host(plan, number, episode, store_path)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    out = args.out.absolute() if args.out else None
    os.environ[STALE_VARIABLE] = str(STALE_S)
    study_runner.POLL_OTHERS_S = 0.2
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="corewise-hosts-") as folder:
        os.chdir(folder)
        Path("own.py").write_text(OWN)
        Path("study.yaml").write_text(STUDY)
        plan = plan_study(load_study("study.yaml", []))
        totals: Counter[str] = Counter()
        dirty = []
        for number in range(args.episodes):
            episode = draw_episode(rng)
            result = play(plan, episode, Path(folder) / "store")
            totals.update(
                doubled=result.num_duplicates, late=result.num_late, lost=result.num_lost, clean=result.is_clean
            )
            if not result.is_clean:
                dirty.append({"number": number, **asdict(episode), **asdict(result)})
                print(f"episode {number}: {episode}: {result}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {args.episodes} episodes", end="", file=sys.stderr, flush=True)
        os.chdir("/")
    counts = ", ".join(f"{totals[name]} {name}" for name in ("lost", "doubled", "late"))
    print(f"{args.episodes} episodes, {totals['clean']} of them clean; records {counts}")
    write_figures(out, num_episodes=args.episodes, seed=args.seed, totals=dict(totals), dirty=dirty)
    sys.exit(totals["clean"] != args.episodes)


if __name__ == "__main__":
    main()
