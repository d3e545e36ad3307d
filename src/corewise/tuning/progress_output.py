"""Progress of a tuning on the terminal; drawn between measurements, so that it never disturbs one."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corewise.analysis.tuning_results import UNIT
from corewise.measured.trial import Trial
from corewise.measured.workloads.base import Traits
from corewise.study.durations import format_duration
from corewise.study.record import Record
from corewise.text_format import clean_text, format_count, format_ratio
from corewise.tuning.journal import JournalState
from corewise.tuning.result.answer_builder import TuningTarget
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.rejection_causes import strip_rank
from corewise.tuning.search.setting_space import Setting
from corewise.tuning.silent_progress import SilentProgress

if TYPE_CHECKING:
    from rich.live import Live

PHASES = {
    "build": "looking for the C++ kernels; they are built once for this torch and compiler (about a minute)",
    "search": "searching: short races between candidates",
    "confirm": "confirming: fresh, interleaved runs of the default, the best and the steps between",
    "disagree": "fresh runs and search disagree: measuring the default and the best once more",
    "cold": "starting the commands of the default and the best setting from cold",
}


@contextmanager
def open_follower(quiet: bool) -> Iterator[SilentProgress]:
    """Open a follower that suits this terminal: live lines, plain lines, or silence."""
    if quiet:
        yield SilentProgress()
    elif not sys.stderr.isatty():
        yield LineProgress()
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield LiveProgress(live)


class LineProgress(SilentProgress):
    """Prints one line per event on standard error, for logs."""

    def report_start(self, tunable: TuningTarget, budget_s: float, journal_state: JournalState) -> None:
        self.space, self.budget_s = tunable.space, budget_s
        self.until = time.monotonic() + budget_s
        self.incumbent, self.now, self.unit = "default", "starting", UNIT
        self.print_line(f"{tunable.name}: {self._describe_space()}")
        if journal_state.judgements:
            self.print_line(f"resuming: {format_count(len(journal_state.judgements), 'setting')} already tried")

    def report_model(self, tunable: TuningTarget, traits: Traits) -> None:
        self.space = tunable.space
        self.print_line(f"  the model has {describe_traits(traits)}: {self._describe_space()}")

    def _describe_space(self) -> str:
        knobs = ", ".join(knob.name for knob in self.space.knobs) or "none"
        return f"knobs {knobs}; {self.space.num_settings:,} settings"

    def set_unit(self, unit: str) -> None:
        self.unit = unit

    def report_phase(self, name: str) -> None:
        self.print_line(PHASES[name])

    def report_candidate(self, setting: Setting) -> None:
        self.now = f"trying {clean_text(self.space.describe(setting))}"
        self.draw()

    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None:
        if incumbent != self.space.default:
            self.incumbent = f"{clean_text(self.space.describe(incumbent))}, {format_ratio(math.exp(score))}"
        name = clean_text(self.space.describe(judgement.setting))
        if judgement.setting == self.space.default and judgement.outcome != "default":
            # It only tied with a good start, so it is compared again.
            name = "default, raced again"
        self.print_line(f"  {name}: {describe_outcome(judgement, self.unit)}")

    def report_note(self, text: str) -> None:
        self.print_line(f"  {text}")

    def report_fresh_run(self, setting: Setting, throughput: float) -> None:
        self.print_line(f"  {clean_text(self.space.describe(setting))}, fresh start: {throughput:.4g} {self.unit}")

    def report_plan(self, trials: Sequence[Trial]) -> None:
        self.num_trials, self.num_done = len(trials), 0

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        self.now = f"fresh run {run_index + 1} of {self.describe_params(trial.params.to_mapping())}"
        self.draw()

    def report_record(self, record: Record) -> None:
        self.num_done += 1
        rate = f"{record.metrics.get('samples_per_s', 0.0):.4g} samples/s"
        outcome = rate if record.status == "ok" else clean_text(record.reason)
        self.print_line(f"  [{self.num_done}/{self.num_trials}] {self.describe_params(record.params)}: {outcome}")

    def describe_params(self, params: Mapping[str, Any]) -> str:
        """Describe the setting with these parameters."""
        setting = self.space.find_setting(params)
        shape = f"{params.get('processes')}×{params.get('threads')}"
        return shape if setting is None else clean_text(self.space.describe(setting))

    def print_line(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def draw(self) -> None: ...


class LiveProgress(LineProgress):
    """Also keeps two lines at the bottom: the best so far, and the candidate with the time left."""

    def __init__(self, live: "Live") -> None:
        self.live = live

    def print_line(self, line: str) -> None:
        self.live.console.print(line, markup=False, highlight=False)
        self.draw()

    def draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        left = format_duration(max(0.0, self.until - time.monotonic()))
        lines = (f"best so far: {self.incumbent}", f"{self.now} · {left} left")
        group = Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
        self.live.update(group, refresh=True)


def describe_traits(traits: Traits) -> str:
    """Describe what a model has and has not, as the end of a sentence."""
    parts = (
        (traits.takes_images, "image inputs"),
        (traits.has_batch_norm, "batch normalisation"),
        (traits.has_dropout, "dropout"),
    )
    return ", ".join(f"{'' if has else 'no '}{name}" for has, name in parts if has is not None)


def describe_outcome(judgement: Judgement, unit: str = UNIT) -> str:
    """Describe the outcome of a candidate in a few words."""
    if judgement.outcome == "rejected":
        return f"rejected: {clean_text(strip_rank(judgement.reason))}"
    ratio = f"{format_ratio(math.exp(judgement.score))} the default"
    is_only_preferred = abs(judgement.score) <= judgement.half_width
    texts = {
        "default": f"{judgement.throughput:.4g} {unit}",
        "won": f"{ratio}: {'tied, kept as a better start' if is_only_preferred else 'the best so far'}",
        "lost": f"{ratio}: slower than the best so far",
        "tied": f"{ratio}: not enough better than the best so far to justify a knob",
        "latency": f"{ratio}: faster, but with worse latency",
    }
    return texts[judgement.outcome]
