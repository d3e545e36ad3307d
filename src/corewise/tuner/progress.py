"""What a person sees while a tuning runs; drawn between measurements, never beside them."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from corewise.report.words import clean, counted, times
from corewise.spec.record import Record
from corewise.spec.trial import Trial
from corewise.tuner.answer import Answerable
from corewise.tuner.durations import spoken
from corewise.tuner.follow import Quiet
from corewise.tuner.found import Judged
from corewise.tuner.journal import Remembered
from corewise.tuner.result import UNIT
from corewise.tuner.space import Setting

if TYPE_CHECKING:
    from rich.live import Live

PHASES = {
    "build": "building the C++ part, once for this torch and compiler (half a minute, not of the budget)",
    "search": "searching: short races between candidates",
    "confirm": "confirming: fresh, interleaved runs of default, best and the steps between",
    "cold": "starting the commands of default and best from cold",
}


@contextmanager
def make_follower(quiet: bool) -> Iterator[Quiet]:
    """A follower for this terminal: a live line, plain lines, or silence."""
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty() or find_spec("rich") is None:  # which a worker-only install leaves out
        yield Told()
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield Drawn(live)


class Told(Quiet):
    """One line on standard error for each thing that happened, for logs."""

    def began(self, tunable: Answerable, budget_s: float, remembered: Remembered) -> None:
        self.space, self.budget_s = tunable.space, budget_s
        self.until = time.monotonic() + budget_s
        self.incumbent, self.now, self.unit = "default", "starting", UNIT
        knobs = ", ".join(knob.name for knob in self.space.knobs) or "none"
        self.say(f"{tunable.name}: knobs {knobs}; {self.space.num_settings:,} settings")
        if remembered.judged:
            self.say(f"going on: {counted(len(remembered.judged), 'setting')} tried before")

    def counts_in(self, unit: str) -> None:
        self.unit = unit

    def phase(self, name: str) -> None:
        if name == "search":  # what was built before is not of the budget
            self.until = time.monotonic() + self.budget_s
        self.say(PHASES[name])

    def trying(self, setting: Setting) -> None:
        self.now = f"trying {clean(self.space.words(setting))}"
        self.draw()

    def judged(self, found: Judged, incumbent: Setting, score: float) -> None:
        if incumbent != self.space.default:
            self.incumbent = f"{clean(self.space.words(incumbent))}, {times(math.exp(score))}"
        name = clean(self.space.words(found.setting))
        if found.setting == self.space.default and found.outcome != "default":
            name = "default, raced once more"  # as a start that only tied was gone on from
        self.say(f"  {name}: {outcome(found, self.unit)}")

    def rated(self, setting: Setting, throughput: float) -> None:
        self.say(f"  {clean(self.space.words(setting))}, started afresh: {throughput:.4g} {self.unit}")

    def planned(self, trials: Sequence[Trial]) -> None:
        self.num_trials, self.num_done = len(trials), 0

    def started(self, trial: Trial, run_index: int) -> None:
        self.now = f"fresh run {run_index + 1} of {self.named(trial.params)}"
        self.draw()

    def finished(self, record: Record) -> None:
        self.num_done += 1
        told = f"{record.metrics.get('samples_per_s', 0.0):.4g} samples/s"
        outcome = told if record.status == "ok" else clean(record.reason)
        self.say(f"  [{self.num_done}/{self.num_trials}] {self.named(record.params)}: {outcome}")

    def named(self, params: Mapping[str, Any]) -> str:
        """The setting with these parameters, in words."""
        setting = self.space.setting_of(params)
        shape = f"{params.get('processes')}×{params.get('threads')}"
        return shape if setting is None else clean(self.space.words(setting))

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def draw(self) -> None: ...


class Drawn(Told):
    """The same, and two lines that stay: the best so far, what is tried and the time left."""

    def __init__(self, live: "Live") -> None:
        self.live = live

    def say(self, line: str) -> None:
        self.live.console.print(line, markup=False, highlight=False)
        self.draw()

    def draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        left = spoken(max(0.0, self.until - time.monotonic()))
        lines = (f"best so far: {self.incumbent}", f"{self.now} · {left} left")
        drawn = Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
        self.live.update(drawn, refresh=True)


def outcome(found: Judged, unit: str = UNIT) -> str:
    """What became of a candidate, in a few words."""
    if found.outcome == "rejected":
        return f"rejected: {clean(found.reason)}"
    ratio = f"{times(math.exp(found.score))} the default"
    is_only_preferred = abs(found.score) <= found.half_width
    words = {
        "default": f"{found.throughput:.4g} {unit}",
        "won": f"{ratio}: {'no difference, gone on from' if is_only_preferred else 'the best so far'}",
        "lost": f"{ratio}: slower than the best so far",
        "tied": f"{ratio}: no difference to the best so far that is worth a knob",
        "latency": f"{ratio}: faster, but with worse latency",
    }
    return words[found.outcome]
