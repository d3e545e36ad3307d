"""Progress of a run, drawn between measurements and never during them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.cli.render.plan_points import format_value, split_constants
from corewise.measured.trial import Trial
from corewise.study.durations import format_duration
from corewise.study.record import Record
from corewise.study.trial_run import TrialRun
from corewise.text_format import format_duration as format_short_duration
from corewise.text_format import format_number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from corewise.run.study_runner import RunObserver

ALWAYS_SHOWN = ("workload", "mode", "processes", "threads", "batch")
BAR_WIDTH = 30


class TrialLabels:
    """Short labels of trials: five parameters, and all others that vary in the study."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        _, varying = split_constants([trial.params.to_mapping() for trial in trials])
        self.others = [name for name in varying if name not in ALWAYS_SHOWN]

    def __call__(self, params: Mapping[str, Any]) -> str:
        shape = f"{params['processes']}×{params['threads']}"
        parts = [Path(str(params["workload"])).name, str(params["mode"]), shape, f"batch {params['batch']}"]
        others = [f"{n.removeprefix('args.')}={format_value(params[n])}" for n in self.others if n in params]
        return " ".join(parts + others)


@contextmanager
def make_observer(quiet: bool) -> Iterator["RunObserver"]:
    """Yield an observer for this terminal: a live bar, plain lines, or nothing."""
    if quiet:
        yield SilentObserver()
    elif not sys.stdout.isatty():
        yield LineObserver()
    else:
        from rich.live import Live

        with Live(auto_refresh=False, transient=True) as live:
            yield BarObserver(live)


class SilentObserver:
    """Print nothing."""

    def report_plan(self, trials: Sequence[Trial]) -> None: ...
    def report_run_start(self, trial: Trial, run_index: int) -> None: ...
    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None: ...
    def report_record(self, record: Record) -> None: ...
    def report_waiting(self, num_trials: int) -> None: ...
    def report_counting(self, trial: Trial) -> None: ...


class LineObserver(SilentObserver):
    """Print one line per finished trial, for logs."""

    def report_plan(self, trials: Sequence[Trial]) -> None:
        self.label = TrialLabels(trials)
        self.num_trials, self.num_done = len(trials), 0

    def report_record(self, record: Record) -> None:
        # A record without runs was skipped by the plan.
        if not record.runs:
            return
        self.num_done += 1
        print(
            f"[{self.num_done}/{self.num_trials}] {self.label(record.params)}: {describe_outcome(record)}", flush=True
        )

    def report_waiting(self, num_trials: int) -> None:
        print(f"waiting for {num_trials} trials of another run", flush=True)

    def report_counting(self, trial: Trial) -> None:
        print(f"{self.label(trial.params.to_mapping())}: counting instructions with cachegrind (minutes)", flush=True)


class BarObserver(SilentObserver):
    """Draw progress and time left, the current trial, and the best result so far."""

    def __init__(self, live: "Live") -> None:
        self.live = live
        self.best: dict[str, tuple[float, str]] = {}
        self.left = self.doing = ""

    def report_plan(self, trials: Sequence[Trial]) -> None:
        self.label = TrialLabels(trials)
        self.num_trials, self.num_done = len(trials), 0
        self.min_runs = {t.trial_id: t.protocol.min_runs for t in trials}
        self.num_runs = dict.fromkeys(self.min_runs, 0)

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        self.doing = f"now   {self.label(trial.params.to_mapping())}, run {run_index + 1}"
        self._draw()

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        self.left = f" · about {format_duration(seconds_left)} left"
        self.num_runs[trial.trial_id] += run.status == "ok" and not run.disturbances

    def report_record(self, record: Record) -> None:
        from rich.text import Text

        # A record without runs was skipped by the plan.
        if not record.runs:
            return
        self.num_done += 1
        self.num_runs[record.trial_id] = self.min_runs.get(record.trial_id, 0)
        rate = record.metrics.get("samples_per_s")
        task = f"{record.params['workload']} {record.params['mode']}"
        if rate is not None and rate > self.best.get(task, (0.0, ""))[0]:
            self.best[task] = (rate, self.label(record.params))
        colour = {"ok": "green", "failed": "red"}.get(record.status, "yellow")
        line = Text.assemble((record.status, colour), f" {self.label(record.params)}: {describe_outcome(record)}")
        self.live.console.print(line)

    def report_waiting(self, num_trials: int) -> None:
        self.doing = f"waiting for {num_trials} trials of another run"
        self._draw()

    def report_counting(self, trial: Trial) -> None:
        self.doing = f"now   {self.label(trial.params.to_mapping())}, counting with cachegrind (minutes)"
        self._draw()

    def _draw(self) -> None:
        self.live.update(self._make_lines(), refresh=True)

    def _make_lines(self) -> "RenderableType":
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
            lines.append(Text(f"best  {label}: {format_number(rate)} samples/s", no_wrap=True, overflow="ellipsis"))
        return Group(first, *lines)


def describe_outcome(record: Record) -> str:
    """Return the outcome of a record in one line."""
    if record.status != "ok":
        return record.reason
    metrics = record.metrics
    if "latency_s" in metrics:
        return _describe_messages(record)
    text = f"{format_number(metrics['samples_per_s'])} samples/s"
    if "samples_per_s_low" in metrics:
        low, high = format_number(metrics["samples_per_s_low"]), format_number(metrics["samples_per_s_high"])
        text += f" [{low} to {high}]"
    if "gbyte_per_s" in metrics:
        rates = format_number(metrics.get("gflop_per_s", 0.0)), format_number(metrics["gbyte_per_s"])
        text += ", {} Gflop/s, {} GB/s".format(*rates)
    if record.is_disturbed:
        text += " (disturbed)"
    return text


def _describe_messages(record: Record) -> str:
    metrics = record.metrics
    text = f"{format_short_duration(metrics['latency_s'])}, {format_number(metrics['gbyte_per_s'])} GB/s"
    return text + (" (disturbed)" if record.is_disturbed else "")
