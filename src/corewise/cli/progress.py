"""What a person sees while a study runs; drawn between measurements, never beside them."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.cli.durations import spoken
from corewise.spec.record import Record
from corewise.spec.run import Run
from corewise.spec.trial import Trial

if TYPE_CHECKING:
    from rich.progress import Progress

    from corewise.engine.plan import Plan
    from corewise.engine.run import Observer


def label(params: Mapping[str, Any]) -> str:
    """A trial in a few words."""
    shape = f"{params['processes']}×{params['threads']}"
    return f"{Path(str(params['workload'])).name} {params['mode']} {shape} batch {params['batch']}"


@contextmanager
def make_observer(plan: "Plan", quiet: bool) -> Iterator["Observer"]:
    """An observer for this terminal: a live bar, plain lines, or silence."""
    if quiet:
        yield Silent()
    elif not sys.stdout.isatty():
        yield Lines(len(plan.trials))
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            BarColumn(24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=Console(), auto_refresh=False) as progress:
            yield Bar(progress, plan)


class Silent:
    """Says nothing."""

    def started(self, trial: Trial, run_index: int) -> None: ...
    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None: ...
    def finished(self, record: Record) -> None: ...
    def waiting(self, num_trials: int) -> None: ...


class Lines(Silent):
    """One line per finished trial, for logs."""

    def __init__(self, num_trials: int) -> None:
        self.num_trials, self.num_done = num_trials, 0

    def finished(self, record: Record) -> None:
        if record.status == "skipped":
            return
        self.num_done += 1
        print(f"[{self.num_done}/{self.num_trials}] {label(record.params)}: {told(record)}", flush=True)

    def waiting(self, num_trials: int) -> None:
        print(f"waiting for {num_trials} trials that another run holds", flush=True)


class Bar(Silent):
    """A bar with trials done, the best so far and the time left."""

    def __init__(self, progress: "Progress", plan: "Plan") -> None:
        self.progress = progress
        self.num_trials, self.num_done = len(plan.trials), 0
        self.best: dict[str, tuple[float, str]] = {}
        self.left = ""
        total = sum(t.protocol.min_runs for t in plan.trials)
        self.task = progress.add_task("starting", total=total)
        self.num_runs: dict[str, int] = {}
        self.min_runs = {t.trial_id: t.protocol.min_runs for t in plan.trials}
        self.last_drawn_s = 0.0

    def started(self, trial: Trial, run_index: int) -> None:
        self._draw(f"{label(trial.params)}, run {run_index + 1}")

    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None:
        self.left = f" · about {spoken(seconds_left)} left"
        self.num_runs[trial.trial_id] = self.num_runs.get(trial.trial_id, 0) + 1
        if (
            run.status == "ok"
            and not run.disturbances
            and self.num_runs[trial.trial_id] <= self.min_runs[trial.trial_id]
        ):
            self.progress.advance(self.task)

    def finished(self, record: Record) -> None:
        from rich.markup import escape

        if record.status == "skipped":
            return
        self.num_done += 1
        rate = record.metrics.get("samples_per_s")
        kind = f"{record.params['workload']} {record.params['mode']}"
        if rate is not None and rate > self.best.get(kind, (0.0, ""))[0]:
            self.best[kind] = (rate, label(record.params))
        colour = {"ok": "green", "failed": "red"}[record.status]
        self.progress.console.print(
            f"[{colour}]{record.status}[/] {escape(label(record.params))}: {escape(told(record))}"
        )

    def waiting(self, num_trials: int) -> None:
        self._draw(f"waiting for {num_trials} trials that another run holds")

    def _draw(self, doing: str) -> None:
        from rich.markup import escape

        now = time.monotonic()
        if now - self.last_drawn_s < 0.2:
            return
        self.last_drawn_s = now
        best = max(self.best.values(), default=None)
        shown = f" · best {best[0]:.4g}/s {best[1]}" if best else ""
        text = f"{self.num_done}/{self.num_trials} trials{self.left}{shown} · {doing}"
        self.progress.update(self.task, description=escape(text), refresh=True)


def told(record: Record) -> str:
    """A record's outcome in a few words."""
    if record.status != "ok":
        return record.reason
    metrics = record.metrics
    text = f"{metrics['samples_per_s']:.4g} samples/s"
    if "samples_per_s_low" in metrics:
        text += f" [{metrics['samples_per_s_low']:.4g}, {metrics['samples_per_s_high']:.4g}]"
    if record.is_disturbed:
        text += " (disturbed)"
    return text
