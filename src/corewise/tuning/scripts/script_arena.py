"""The arena for scripts: they are paused between samplings, or started once per sampling."""

import itertools
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from corewise.measured.trial import INFEASIBLE
from corewise.tuning.scripts.output_check import NUM_COMPARED, PrintedNumber, ReferenceNumbers, require_finite
from corewise.tuning.scripts.rate_source import build_source
from corewise.tuning.scripts.rate_units import Unit
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.script_start import ScriptStart
from corewise.tuning.scripts.throughput_parser import MIN_REPORTS, count_per_process
from corewise.tuning.scripts.working_folder import FileGuard, scan_folder
from corewise.tuning.search.arena import Rejection, Sampling
from corewise.tuning.search.setting_space import Setting, Space

SAMPLE_S = 1.0
POLL_INTERVAL_S = 0.02
# Limits, in seconds, of the pause that shows whether the script prints averages since its start.
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 10.0


class SamplingMethod(Enum):
    """How a script is sampled."""

    PAUSED = "it stays alive and is paused between samplings"
    RESTARTED = "each sampling is a new start, because pauses would lower the averages that it prints"
    WHOLE_RUNS = "each sampling is a whole run, which reports its throughput"
    TIMED_RUNS = "each sampling is a whole run, which is timed"


NOTES = {
    SamplingMethod.RESTARTED: "the script prints averages since its start, which pauses would lower, so each "
    "sampling was a new start; print the rate of recent steps to make tuning faster",
    SamplingMethod.WHOLE_RUNS: "the script reports its throughput only at its end, so each sampling was a whole run",
}


class ScriptArena:
    """Starts scripts, each one in a new folder; `close` terminates all of them."""

    def __init__(self, script: Script, space: Space, folder: Path) -> None:
        self.script, self.space, self.folder = script, space, folder
        self.method = SamplingMethod.PAUSED
        # Seconds of the last whole run.
        self.run_s = 0.0
        # Whether it is known if the script prints averages; progress reports have time stamps instead.
        self.is_probed = script.rate is None
        # Where the throughput comes from. Without an option, the first start shows it; it then holds for all.
        self.source = build_source(script.rate)
        self.is_settled = self.source is not None or script.mentions("report_progress")
        # The unit of what is read, and by how much its numbers are rounded.
        self.unit = Unit("", is_time=False)
        self.resolution = 0.0
        self.reference = ReferenceNumbers()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The folder of the arena is two levels below the store.
        self.tree = scan_folder(script.folder, folder.parent.parent) if script.workdir is None else None
        self.guard = FileGuard([self.tree.folder / each for each in self.tree.linked] if self.tree else ())
        self._numbers = itertools.count()
        self.alive: list[ScriptEntrant] = []
        # The last lines of starts that failed, by reason.
        self.failure_lines: dict[str, Sequence[str]] = {}
        # The last lines of a script in whose output no rate was recognised.
        self.unrecognised: Sequence[str] = ()
        # The names of processes that a start of a setting left behind.
        self.leftovers: dict[Setting, Sequence[str]] = {}

    @property
    def is_timed(self) -> bool:
        """True if whole runs are timed."""
        return self.method is SamplingMethod.TIMED_RUNS

    def read_clock(self) -> float:
        return time.monotonic()

    def prepare(self, settings: Iterable[Setting]) -> None:
        """Do nothing: scripts have no warm parents."""

    def enter(self, setting: Setting, limit_s: float) -> "ScriptEntrant":
        """Start the script and wait for its first progress; raise Rejection if there is none."""
        problem = self.script.explain_infeasible(self.space.build_params(setting))
        if problem:
            raise Rejection(INFEASIBLE, problem)
        entrant = ScriptEntrant(self, setting, limit_s)
        self.alive.append(entrant)
        try:
            entrant.start()
        except BaseException as problem:
            if isinstance(problem, Rejection) and entrant.current is not None:
                self.failure_lines[problem.reason] = entrant.current.read_last_lines()
            entrant.leave()
            raise
        return entrant

    def compare_defaults(self, limit_s: float) -> float:
        """Return by how much the first printed numbers of two starts of the default differ."""
        scatter, known = 0.0, self.reference.numbers
        # A whole run has already printed all its numbers.
        is_partial = self.method in (SamplingMethod.PAUSED, SamplingMethod.RESTARTED)
        if len(known) < NUM_COMPARED and is_partial:
            first = self._read_first_numbers(limit_s)
            scatter = self.reference.compute_error(first)
            self.reference.numbers = max(known, first, key=len)
        return max(scatter, self.reference.compute_error(self._read_first_numbers(limit_s)))

    def _read_first_numbers(self, limit_s: float) -> list[PrintedNumber]:
        entrant = ScriptEntrant(self, self.space.default, limit_s)
        self.alive.append(entrant)
        try:
            return entrant.read_first_numbers(limit_s)
        finally:
            entrant.leave()

    def start_script(self, setting: Setting) -> ScriptStart:
        """Start the script with a setting; raise UserError if an earlier start has changed a file of the user."""
        self.guard.require_unwritten()
        folder = self.folder / f"start-{next(self._numbers)}"
        folder.mkdir()
        return ScriptStart(
            self.script,
            self.space.build_params(setting),
            folder,
            is_default=setting == self.space.default,
            tree=self.tree,
            source=self.source,
            detects=not self.is_settled,
        )

    def settle(self, start: ScriptStart) -> None:
        """Keep where the throughput of the first start came from, for all later starts."""
        if not self.is_settled:
            self.is_settled, self.source = True, start.source
            self.is_probed = self.source is None or self.source.is_counter
        if start.rates is not None:
            self.unit = start.rates.unit
            self.resolution = max(self.resolution, start.rates.resolution)

    def wait_shortly(self) -> None:
        """Wait before the next look at a start; raise UserError if it wants to write a file of the user."""
        time.sleep(POLL_INTERVAL_S)
        self.guard.require_unchanged()

    def close(self) -> None:
        for entrant in list(self.alive):
            entrant.leave()
        self.guard.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class ScriptEntrant:
    """One setting of a script; it is restarted when it has ended."""

    def __init__(self, arena: ScriptArena, setting: Setting, limit_s: float) -> None:
        self.arena, self.setting, self.limit_s = arena, setting, limit_s
        self.is_default = setting == arena.space.default
        self.start_s = 0.0
        self.current: ScriptStart | None = None
        # The sampling of a start that ended before it could be paused.
        self._pending_sampling: Sampling | None = None
        self._first_progress_at = 0.0
        # The throughput of its first sampling, before any pause.
        self._first_throughput = 0.0
        self._memory_bytes = 0.0

    def start(self) -> None:
        """Start the script and wait for its first progress, unless each sampling is a start."""
        if self.arena.method is not SamplingMethod.PAUSED:
            return
        began = time.monotonic()
        start = self._start()
        if self._wait_for_progress(start):
            self._first_progress_at = time.monotonic()
            self._judge_numbers(start)
            start.process.suspend()
        else:
            self._pending_sampling = self._read_whole_run(start)
        self.start_s = time.monotonic() - began

    def sample(self) -> Sampling:
        """Measure the throughput of a short interval, of a start, or of a whole run."""
        if self._pending_sampling is not None:
            first, self._pending_sampling = self._pending_sampling, None
            return first
        if self.arena.method is SamplingMethod.PAUSED:
            return self._sample_alive()
        return self._sample_fresh_start() if self.arena.method is SamplingMethod.RESTARTED else self._sample_whole_run()

    def leave(self) -> None:
        """Terminate the script and all its processes."""
        self._end()
        with suppress(ValueError):
            self.arena.alive.remove(self)

    def read_first_numbers(self, limit_s: float) -> list[PrintedNumber]:
        """Start the script and read the first numbers for the check, up to NUM_COMPARED."""
        start = self._start()
        until = time.monotonic() + limit_s
        while not start.has_numbers(NUM_COMPARED) and time.monotonic() < until:
            if start.process.has_ended:
                start.require_good_end()
                start.has_numbers()
                break
            self.arena.wait_shortly()
        if not start.numbers:
            raise Rejection("check", f"it printed nothing that matches --check{start.format_last_line()}")
        require_finite(start.numbers)
        return start.numbers

    def finish_check(self, limit_s: float) -> float | None:
        """Read more numbers if the sampling saw too few for the check, and return their error."""
        start = self.current
        if start is None or self.arena.script.check is None:
            return None
        until = time.monotonic() + limit_s
        wanted = min(NUM_COMPARED, len(self.arena.reference.numbers))
        start.process.resume()
        while not start.has_numbers(wanted) and not start.process.has_ended and time.monotonic() < until:
            self.arena.wait_shortly()
        start.process.suspend()
        return self._judge_numbers(start)

    def _start(self) -> ScriptStart:
        self._end()
        self.current = self.arena.start_script(self.setting)
        return self.current

    def _end(self) -> None:
        if self.current is not None:
            self.current.end()
            if self.current.leftovers:
                self.arena.leftovers[self.setting] = self.current.leftovers
            self.current = None

    def _wait_for_progress(self, start: ScriptStart) -> bool:
        """Wait for the first progress; return False if the script ended first, raise Rejection on timeout."""
        until = time.monotonic() + self.limit_s
        while True:
            # Ask before reading, so that no output is missed.
            ended = start.process.has_ended
            start.read_progress()
            if ended:
                start.require_good_end()
                self._choose_method(start)
                return False
            if start.progress and start.has_numbers():
                self.arena.settle(start)
                return True
            if time.monotonic() > until:
                category, problem = (
                    ("check", "nothing that matches --check") if start.progress else ("timeout", start.missing_progress)
                )
                raise Rejection(category, f"{problem} within {self.limit_s:.0f} s; killed{start.format_last_line()}")
            self.arena.wait_shortly()

    def _choose_method(self, start: ScriptStart) -> None:
        """Switch to whole runs, because the script ended before it could be sampled."""
        if not start.has_numbers():
            raise Rejection(
                "check", f"it ended without printing anything that matches --check{start.format_last_line()}"
            )
        self.arena.settle(start)
        if start.progress:
            self.arena.method = SamplingMethod.WHOLE_RUNS
        elif start.rates is not None and start.rates.useless:
            raise Rejection(
                "rate",
                f"it ended, and the rate it printed is {start.rates.useless}; print a rate above 0, or leave "
                f"{self.arena.source.name if self.arena.source else 'it'} out",
            )
        elif start.source is not None and start.source.option:
            raise Rejection(
                "error",
                f"it ended without printing anything that matches {start.source.option}{start.format_last_line()}",
            )
        elif start.source is not None:
            raise Rejection("error", f"it ended without a {start.source.name}, unlike the default")
        elif not self.is_default:
            raise Rejection("error", "it ended without reporting progress, unlike the default")
        else:
            self.arena.method = SamplingMethod.TIMED_RUNS
            self.arena.unrecognised = start.read_last_lines()

    def _judge_numbers(self, start: ScriptStart) -> float | None:
        """Return the error of the numbers printed so far; those of the default become the reference."""
        if self.arena.script.check is None:
            return None
        if not start.has_numbers():
            raise Rejection("check", "it printed nothing that matches --check")
        reference = self.arena.reference
        if not self.is_default:
            processes = self.arena.space.build_params(self.setting).get("processes", 1)
            return reference.judge(start.numbers, int(processes))
        reference.add_default_run(start.numbers)
        return 0.0

    def _sample_alive(self) -> Sampling:
        """Sample a short interval of a live script; restart it if it has ended."""
        pause_s = self._choose_pause_s()
        time.sleep(pause_s)
        is_same = self.current is not None and not self.current.process.has_ended
        throughput = self._measure_throughput() if is_same else 0.0
        # It ended before there was enough progress.
        if throughput <= 0:
            is_same = False
            self.start()
            throughput = self._measure_throughput() if self._pending_sampling is None else 0.0
            if throughput <= 0:
                self.arena.method = (
                    SamplingMethod.WHOLE_RUNS if self.arena.method is SamplingMethod.PAUSED else self.arena.method
                )
                return self.sample()
        if pause_s and is_same:
            self.arena.is_probed = True
            if self._has_fallen(throughput, pause_s):
                self.arena.method = SamplingMethod.RESTARTED
                return self.sample()
        self._first_throughput = self._first_throughput or throughput
        start = self.current
        assert start is not None
        return Sampling(throughput, 1 / throughput, self._judge_numbers(start), self._memory_bytes)

    def _choose_pause_s(self) -> float:
        """Return how long to pause it once, to see whether that lowers the rate it prints."""
        if self.arena.is_probed or not self.is_default or not self._first_throughput:
            return 0.0
        return min(max(MIN_PAUSE_S, time.monotonic() - self._first_progress_at), MAX_PAUSE_S)

    def _has_fallen(self, throughput: float, pause_s: float) -> bool:
        """Return whether the rate fell by more than half of what an average since the start would."""
        worked_s = time.monotonic() - self._first_progress_at - pause_s
        return throughput / self._first_throughput < (1 + worked_s / (worked_s + pause_s)) / 2

    def _measure_throughput(self) -> float:
        """Measure the throughput of a short interval, then pause it; return 0 if it ended too early."""
        start = self.current
        assert start is not None
        # Discard the progress before this sampling.
        start.read_progress()
        start.process.resume()
        progress = self._collect_progress(start)
        self._memory_bytes = start.read_memory_bytes()
        start.process.suspend()
        return start.compute_throughput(progress)

    def _collect_progress(self, start: ScriptStart) -> list[Any]:
        progress: list[Any] = []
        began = time.monotonic()
        while count_per_process(progress) < MIN_REPORTS or time.monotonic() - began < SAMPLE_S:
            ended = start.process.has_ended
            progress += start.read_progress()
            if ended:
                start.require_good_end()
                break
            if time.monotonic() - began > self.limit_s:
                seen = (
                    f"too little progress ({len(progress)} of {MIN_REPORTS} lines)"
                    if progress
                    else start.missing_progress
                )
                raise Rejection("timeout", f"{seen} within {self.limit_s:.0f} s; killed{start.format_last_line()}")
            self.arena.wait_shortly()
        return progress

    def _sample_fresh_start(self) -> Sampling:
        """Start the script and return the last average it prints in a short interval without pauses."""
        began = time.monotonic()
        start = self._start()
        if not self._wait_for_progress(start):
            return self._read_whole_run(start)
        self.start_s = time.monotonic() - began
        self._collect_progress(start)
        memory_bytes = start.read_memory_bytes()
        start.process.suspend()
        throughput = float(start.progress[-1])
        return Sampling(throughput, 1 / throughput, self._judge_numbers(start), memory_bytes)

    def _sample_whole_run(self) -> Sampling:
        start = self._start()
        until = time.monotonic() + self.limit_s
        # Counters have no time of their own, so the output is read while it grows.
        while not start.process.has_ended:
            self.arena.wait_shortly()
            start.read_progress()
            if time.monotonic() > until:
                raise Rejection(
                    "timeout", f"it did not end within {self.limit_s:.0f} s; killed{start.format_last_line()}"
                )
        start.require_good_end()
        start.read_progress()
        return self._read_whole_run(start)

    def _read_whole_run(self, start: ScriptStart) -> Sampling:
        """Read the sampling of a run that has ended."""
        self.arena.run_s = start.compute_seconds()
        if self.arena.is_timed:
            return Sampling(1 / self.arena.run_s, self.arena.run_s, self._judge_numbers(start))
        throughput = start.compute_total_throughput()
        if throughput <= 0:
            raise Rejection("error", "it ended without reporting a throughput")
        return Sampling(throughput, 1 / throughput, self._judge_numbers(start))
