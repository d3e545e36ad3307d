"""What a person sees while a study runs; drawn between measurements, never beside them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.cli.durations import spoken
from corewise.cli.figures import number
from corewise.cli.points import as_written, constant_and_varying
from corewise.spec.record import Record
from corewise.spec.run import Run
from corewise.spec.trial import Trial

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from corewise.engine.run import Observer

ALWAYS_TOLD = ("workload", "mode", "processes", "threads", "batch")
BAR_WIDTH = 30


class Labels:
    """Trials in a few words: the usual five, and what else varies in the study."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        _, varying = constant_and_varying([trial.params for trial in trials])
        self.others = [name for name in varying if name not in ALWAYS_TOLD]

    def __call__(self, params: Mapping[str, Any]) -> str:
        shape = f"{params['processes']}×{params['threads']}"
        words = [Path(str(params["workload"])).name, str(params["mode"]), shape, f"batch {params['batch']}"]
        others = [f"{n.removeprefix('args.')}={as_written(params[n])}" for n in self.others if n in params]
        return " ".join(words + others)


@contextmanager
def make_observer(quiet: bool) -> Iterator["Observer"]:
    """An observer for this terminal: a live bar, plain lines, or silence."""
    if quiet:
        yield Silent()
    elif not sys.stdout.isatty():
        yield Lines()
    else:
        from rich.live import Live

        with Live(auto_refresh=False, transient=True) as live:
            yield Bar(live)


class Silent:
    """Says nothing."""

    def planned(self, trials: Sequence[Trial]) -> None: ...
    def started(self, trial: Trial, run_index: int) -> None: ...
    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None: ...
    def finished(self, record: Record) -> None: ...
    def waiting(self, num_trials: int) -> None: ...


class Lines(Silent):
    """One line per finished trial, for logs."""

    def planned(self, trials: Sequence[Trial]) -> None:
        self.label = Labels(trials)
        self.num_trials, self.num_done = len(trials), 0

    def finished(self, record: Record) -> None:
        if not record.runs:  # skipped when planning
            return
        self.num_done += 1
        print(f"[{self.num_done}/{self.num_trials}] {self.label(record.params)}: {told(record)}", flush=True)

    def waiting(self, num_trials: int) -> None:
        print(f"waiting for {num_trials} trials that another run holds", flush=True)


class Bar(Silent):
    """Three lines that stay: how far and how long, what runs, the best so far."""

    def __init__(self, live: "Live") -> None:
        self.live = live
        self.best: dict[str, tuple[float, str]] = {}
        self.left = self.doing = ""

    def planned(self, trials: Sequence[Trial]) -> None:
        self.label = Labels(trials)
        self.num_trials, self.num_done = len(trials), 0
        self.min_runs = {t.trial_id: t.protocol.min_runs for t in trials}
        self.num_runs = dict.fromkeys(self.min_runs, 0)

    def started(self, trial: Trial, run_index: int) -> None:
        self.doing = f"now   {self.label(trial.params)}, run {run_index + 1}"
        self._draw()

    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None:
        self.left = f" · about {spoken(seconds_left)} left"
        self.num_runs[trial.trial_id] += run.status == "ok" and not run.disturbances

    def finished(self, record: Record) -> None:
        from rich.text import Text

        if not record.runs:  # skipped when planning
            return
        self.num_done += 1
        self.num_runs[record.trial_id] = self.min_runs.get(record.trial_id, 0)
        rate = record.metrics.get("samples_per_s")
        kind = f"{record.params['workload']} {record.params['mode']}"
        if rate is not None and rate > self.best.get(kind, (0.0, ""))[0]:
            self.best[kind] = (rate, self.label(record.params))
        colour = {"ok": "green", "failed": "red"}.get(record.status, "yellow")
        line = Text.assemble((record.status, colour), f" {self.label(record.params)}: {told(record)}")
        self.live.console.print(line)

    def waiting(self, num_trials: int) -> None:
        self.doing = f"waiting for {num_trials} trials that another run holds"
        self._draw()

    def _draw(self) -> None:
        self.live.update(self._lines(), refresh=True)

    def _lines(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = sum(self.min_runs.values())
        done = sum(min(num, self.min_runs[name]) for name, num in self.num_runs.items())
        first = Table.grid(padding=(0, 1))
        counts = f"{self.num_done}/{self.num_trials} trials · {done}/{total} runs{self.left}"
        first.add_row(ProgressBar(total=total, completed=done, width=BAR_WIDTH), Text(counts))
        lines = [Text(self.doing, no_wrap=True, overflow="ellipsis")]
        for rate, label in self.best.values():
            lines.append(Text(f"best  {label}: {number(rate)} samples/s", no_wrap=True, overflow="ellipsis"))
        return Group(first, *lines)


def told(record: Record) -> str:
    """A record's outcome in a few words."""
    if record.status != "ok":
        return record.reason
    metrics = record.metrics
    text = f"{number(metrics['samples_per_s'])} samples/s"
    if "samples_per_s_low" in metrics:
        low, high = number(metrics["samples_per_s_low"]), number(metrics["samples_per_s_high"])
        text += f" [{low} to {high}]"
    if "gbyte_per_s" in metrics:
        rates = number(metrics.get("gflop_per_s", 0.0)), number(metrics["gbyte_per_s"])
        text += ", {} Gflop/s, {} GB/s".format(*rates)
    if record.is_disturbed:
        text += " (disturbed)"
    return text
