"""Scripts in the arena: started by the launcher, stopped between samplings or started for each."""

import itertools
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from corewise.tuner.arena import Rejected, Sampling
from corewise.tuner.heard import MIN_REPORTS, num_of_each
from corewise.tuner.script import Script
from corewise.tuner.script_check import NUM_COMPARED, Number, Reference, require_finite
from corewise.tuner.script_start import Start
from corewise.tuner.space import Setting, Space

SAMPLE_S = 1.0
LOOK_EVERY_S = 0.02
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # by which an average since the beginning is found out


class Way(Enum):
    """How a script is sampled."""

    TURNS = "it stays alive, and is stopped between samplings"
    STARTS = "each sampling is a start of its own: what it prints would fall while it is stopped"
    RUNS = "each sampling is a whole run, which tells its throughput"
    CLOCK = "each sampling is a whole run, which is timed"


NOTES = {
    Way.STARTS: "the script prints averages since its beginning, which fall while it is stopped: each "
    "sampling was a start of its own, which takes longer (printing the rate of the last steps would not)",
    Way.RUNS: "the script tells its throughput only at its end: each sampling was a whole run",
}


class ScriptArena:
    """Starts scripts, each in a folder of its own; `close` leaves no process behind."""

    def __init__(self, script: Script, space: Space, folder: Path) -> None:
        self.script, self.space, self.folder = script, space, folder
        self.way = Way.TURNS
        self.run_s = 0.0  # of the last whole run
        self.is_probed = script.pattern is None  # for averages; reports bear their times
        self.reference = Reference()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._numbers = itertools.count()
        self.alive: list[ScriptEntrant] = []

    @property
    def by_clock(self) -> bool:
        """Whether whole runs are timed."""
        return self.way is Way.CLOCK

    def now(self) -> float:
        return time.monotonic()

    def expect(self, settings: Iterable[Setting]) -> None:
        """Nothing: a script is started anew each time."""

    def enter(self, setting: Setting, limit_s: float) -> "ScriptEntrant":
        """The started script, once it has told its first progress; raises Rejected when it does not."""
        problem = self.script.reason_against(self.space.params(setting))
        if problem:
            raise Rejected("infeasible", problem)
        entrant = ScriptEntrant(self, setting, limit_s)
        self.alive.append(entrant)
        try:
            entrant.begin()
        except BaseException:
            entrant.leave()
            raise
        return entrant

    def compare_defaults(self, limit_s: float) -> float:
        """By how much the first numbers of two starts of the default differ."""
        scatter, known = 0.0, self.reference.numbers
        if len(known) < NUM_COMPARED and self.way in (Way.TURNS, Way.STARTS):  # a whole run has printed all
            first = self._first_numbers(limit_s)
            scatter = self.reference.error(first)
            self.reference.numbers = max(known, first, key=len)
        return max(scatter, self.reference.error(self._first_numbers(limit_s)))

    def _first_numbers(self, limit_s: float) -> list[Number]:
        entrant = ScriptEntrant(self, self.space.default, limit_s)
        self.alive.append(entrant)
        try:
            return entrant.first_numbers(limit_s)
        finally:
            entrant.leave()

    def start(self, setting: Setting) -> Start:
        """The script, started with a setting."""
        folder = self.folder / f"start-{next(self._numbers)}"
        folder.mkdir()
        return Start(
            self.script, self.space.params(setting), folder, is_default=setting == self.space.default
        )

    def close(self) -> None:
        for entrant in list(self.alive):
            entrant.leave()
        shutil.rmtree(self.folder, ignore_errors=True)


class ScriptEntrant:
    """One setting of a script; started again when it has come to its end."""

    def __init__(self, arena: ScriptArena, setting: Setting, limit_s: float) -> None:
        self.arena, self.setting, self.limit_s = arena, setting, limit_s
        self.is_default = setting == arena.space.default
        self.start_s = 0.0
        self.current: Start | None = None
        self._first: Sampling | None = None  # of a start that ended before it could be sampled
        self._heard_at = 0.0  # when it first told its progress
        self._before = 0.0  # the throughput of its first sampling, which nothing interrupted
        self._memory_bytes = 0.0

    def begin(self) -> None:
        """Start it and wait for its first progress, unless each sampling is a start."""
        if self.arena.way is not Way.TURNS:
            return
        began = time.monotonic()
        start = self._start()
        if self._until_heard(start):
            self._heard_at = time.monotonic()
            self._judge_numbers(start)
            start.process.stop()
        else:
            self._first = self._of_whole_run(start)
        self.start_s = time.monotonic() - began

    def sample(self) -> Sampling:
        """The throughput of a short while, of a start, or of a whole run."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self.arena.way is Way.TURNS:
            return self._turn()
        return self._own_start() if self.arena.way is Way.STARTS else self._whole_run()

    def leave(self) -> None:
        """End it and all that it started."""
        self._end()
        with suppress(ValueError):
            self.arena.alive.remove(self)

    def first_numbers(self, limit_s: float) -> list[Number]:
        """The numbers for the check of a start, as many as are compared where it prints so many in time."""
        start = self._start()
        until = time.monotonic() + limit_s
        while not start.has_numbers(NUM_COMPARED) and time.monotonic() < until:
            if start.process.has_ended:
                start.require_good_end()
                start.has_numbers()
                break
            time.sleep(LOOK_EVERY_S)
        if not start.numbers:
            raise Rejected("check", f"it printed nothing that matches --check{start.last_line()}")
        require_finite(start.numbers)
        return start.numbers

    def complete_check(self, limit_s: float) -> float | None:
        """The error of as many numbers as are compared: a short sampling may have seen too few of them."""
        start = self.current
        if start is None or self.arena.script.check is None:
            return None
        until = time.monotonic() + limit_s
        wanted = min(NUM_COMPARED, len(self.arena.reference.numbers))
        start.process.go_on()
        while not start.has_numbers(wanted) and not start.process.has_ended and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
        start.process.stop()
        return self._judge_numbers(start)

    def _start(self) -> Start:
        self._end()
        self.current = self.arena.start(self.setting)
        return self.current

    def _end(self) -> None:
        if self.current is not None:
            self.current.end()
            self.current = None

    def _until_heard(self, start: Start) -> bool:
        """True at the first progress, False when it has ended by then; raises Rejected when none comes."""
        until = time.monotonic() + self.limit_s
        while True:
            ended = start.process.has_ended  # before looking: nothing comes after it
            start.listen()
            if ended:
                start.require_good_end()
                self._take_way(start)
                return False
            if start.heard and start.has_numbers():
                return True
            if time.monotonic() > until:
                kind, what = (
                    ("check", "nothing that matches --check") if start.heard else ("timeout", start.awaited)
                )
                raise Rejected(kind, f"{what} within {self.limit_s:.0f} s; killed{start.last_line()}")
            time.sleep(LOOK_EVERY_S)

    def _take_way(self, start: Start) -> None:
        """It has ended before it could be sampled: from now on whole runs are."""
        if not start.has_numbers():
            raise Rejected("check", f"it ended and printed nothing that matches --check{start.last_line()}")
        if start.heard:
            self.arena.way = Way.RUNS
        elif start.output is not None and start.output.useless:
            useless = start.output.useless
            raise Rejected(
                "rate",
                f"it ended, and the rate it printed is {useless}; let it print one above 0, or leave "
                "--throughput out: then whole runs are timed",
            )
        elif start.output is not None:
            raise Rejected(
                "error", f"it ended and printed nothing that matches --throughput{start.last_line()}"
            )
        elif not self.is_default:
            raise Rejected("error", "it ended without progress, as the default did not")
        else:
            self.arena.way = Way.CLOCK

    def _judge_numbers(self, start: Start) -> float | None:
        """The error of the numbers printed so far; those of the default are what others are held to."""
        if self.arena.script.check is None:
            return None
        if not start.has_numbers():
            raise Rejected("check", "it printed nothing that matches --check")
        reference = self.arena.reference
        if not self.is_default:
            processes = self.arena.space.params(self.setting).get("processes", 1)
            return reference.judge(start.numbers, int(processes))
        reference.take(start.numbers)
        return 0.0

    # Ways of sampling

    def _turn(self) -> Sampling:
        """A short while of a script that is alive; started again where it has ended."""
        pause_s = self._pause_s()
        time.sleep(pause_s)
        is_same = self.current is not None and not self.current.process.has_ended
        throughput = self._listened() if is_same else 0.0
        if throughput <= 0:  # its end came first
            is_same = False
            self.begin()
            throughput = self._listened() if self._first is None else 0.0
            if throughput <= 0:
                self.arena.way = Way.RUNS if self.arena.way is Way.TURNS else self.arena.way
                return self.sample()
        if pause_s and is_same:
            self.arena.is_probed = True
            if self._has_fallen(throughput, pause_s):
                self.arena.way = Way.STARTS
                return self.sample()
        self._before = self._before or throughput
        start = self.current
        assert start is not None
        return Sampling(throughput, 1 / throughput, self._judge_numbers(start), self._memory_bytes)

    def _pause_s(self) -> float:
        """How long to leave it stopped once, to see whether what it prints falls by that."""
        if self.arena.is_probed or not self.is_default or not self._before:
            return 0.0
        return min(max(SHORTEST_PAUSE_S, time.monotonic() - self._heard_at), LONGEST_PAUSE_S)

    def _has_fallen(self, throughput: float, pause_s: float) -> bool:
        """Whether it fell by more than half of what an average since the beginning falls."""
        worked_s = time.monotonic() - self._heard_at - pause_s
        return throughput / self._before < (1 + worked_s / (worked_s + pause_s)) / 2

    def _listened(self) -> float:
        """The throughput of a while, after which it is stopped; 0 where it ended too early to say."""
        start = self.current
        assert start is not None
        start.listen()  # what came before
        start.process.go_on()
        heard = self._heard_for_a_while(start)
        self._memory_bytes = start.memory_bytes()
        start.process.stop()
        return start.throughput_of(heard)

    def _heard_for_a_while(self, start: Start) -> list[Any]:
        heard: list[Any] = []
        began = time.monotonic()
        while num_of_each(heard) < MIN_REPORTS or time.monotonic() - began < SAMPLE_S:
            ended = start.process.has_ended
            heard += start.listen()
            if ended:
                start.require_good_end()
                break
            if time.monotonic() - began > self.limit_s:
                raise Rejected(
                    "timeout", f"{start.awaited} within {self.limit_s:.0f} s; killed{start.last_line()}"
                )
            time.sleep(LOOK_EVERY_S)
        return heard

    def _own_start(self) -> Sampling:
        """The average that a start has printed last after a while; nothing interrupts it."""
        began = time.monotonic()
        start = self._start()
        if not self._until_heard(start):
            return self._of_whole_run(start)
        self.start_s = time.monotonic() - began
        self._heard_for_a_while(start)
        memory_bytes = start.memory_bytes()
        start.process.stop()
        return Sampling(start.heard[-1], 1 / start.heard[-1], self._judge_numbers(start), memory_bytes)

    def _whole_run(self) -> Sampling:
        start = self._start()
        if not start.process.wait(self.limit_s):
            raise Rejected(
                "timeout", f"it did not end within {self.limit_s:.0f} s; killed{start.last_line()}"
            )
        start.require_good_end()
        start.listen()
        return self._of_whole_run(start)

    def _of_whole_run(self, start: Start) -> Sampling:
        """What a run that has ended says."""
        self.arena.run_s = start.seconds()
        if self.arena.by_clock:
            return Sampling(1 / self.arena.run_s, self.arena.run_s, self._judge_numbers(start))
        throughput = start.throughput_of_all()
        if throughput <= 0:
            raise Rejected("error", "it ended and told no throughput")
        return Sampling(throughput, 1 / throughput, self._judge_numbers(start))
