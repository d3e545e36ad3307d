"""`corewise run STUDY`: measure what is missing."""

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from corewise.cli.drawing import require_drawing
from corewise.cli.exit_codes import INTERRUPTED, SOME_FAILED
from corewise.cli.plan import SetOption, StudyArgument
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from corewise.engine.plan import Plan
    from corewise.engine.run import Observer
    from corewise.store.store import Store


def run(
    study: StudyArgument,
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records are kept.")] = Path(
        "corewise-store"
    ),
    overrides: SetOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials again whose record says failed.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Keep a report page fresh while the study runs: DIR/report.html.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where the report page goes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a study's trials and keep their records; goes on where an earlier run stopped.

    Exit codes: 0 done, 1 some trials failed, 2 a mistake in the study or the command, 130 interrupted.

    Examples:

      corewise run quick

      corewise run thread-scaling --store results --set workload=resnet18 --set batch=8,32

      corewise run hybrid --store results --report

      corewise run my.yaml --store results --json
    """
    from corewise.cli.progress import make_observer
    from corewise.engine.plan import make_plan
    from corewise.engine.run import StudyRun
    from corewise.spec.study import load_study
    from corewise.store.store import Store

    if report or output:
        require_drawing("--report and -o")
    made = make_plan(load_study(study, overrides or []))
    _require_trials(made)
    _require_framework(made)
    kept = Store.open(store, create=True)
    signal.signal(signal.SIGTERM, _interrupt)
    page = output or (store / "report.html" if report else None)
    _require_folder(page)
    with make_observer(quiet=quiet or as_json) as shown, _watched(shown, made, kept, page) as observer:
        try:
            outcome = StudyRun(made, kept, observer, retry_failed=retry_failed).execute()
        except KeyboardInterrupt:
            print(
                f"\ncorewise: stopped; what was measured is in {store}. The same command goes on.",
                file=sys.stderr,
            )
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps({"store": str(store), **outcome.to_json()}))
    elif not quiet:
        done = f", {outcome.num_already_done} done before" if outcome.num_already_done else ""
        print(f"{outcome.num_ok} ok, {outcome.num_failed} failed, {outcome.num_skipped} skipped{done}.")
        print(f"Look at them: corewise show --store {shlex.quote(str(store))}")
        if outcome.num_failed:
            print("Failed trials are not run again by themselves: once mended, add --retry-failed.")
        if page is not None:
            print(f"Report: {page}")
    if outcome.num_failed:
        raise typer.Exit(SOME_FAILED)


@contextmanager
def _watched(shown: "Observer", made: "Plan", kept: "Store", page: Path | None) -> Iterator["Observer"]:
    """The observer, with a page kept fresh beside it where one is wanted."""
    if page is None:
        yield shown
        return
    from corewise.cli.live_report import ReportKeeper

    keeper = ReportKeeper(shown, made, kept, page)
    try:
        yield keeper
    finally:
        problem = keeper.close()
        if problem:
            print(f"corewise: the report {page} could not be written: {problem}", file=sys.stderr)


def _require_folder(page: Path | None) -> None:
    """A page that cannot be written is told before anything is measured."""
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise UserError(f"{page}: no file can be written there; name one in a folder that exists with -o")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _require_trials(made: "Plan") -> None:
    """A study none of whose points can exist here is the user's to mend."""
    if not made.trials:
        reasons = "\n".join(f"  {reason}" for reason in dict.fromkeys(s.reason for s in made.skipped))
        raise UserError(
            f"{made.study.path}: none of its {len(made.skipped)} points can be measured here:\n{reasons}"
        )


def _require_framework(made: "Plan") -> None:
    """A missing framework is the user's to mend, before anything is written; of several one will do."""
    from corewise.engine.frameworks import missing_framework

    hints = [missing_framework(runtime, made.interpreter) for runtime in made.study.runtimes]
    if all(hints):
        names, are = " and ".join(made.study.runtimes), "is" if len(hints) == 1 else "are"
        raise UserError(
            f"{names} {are} not installed for {' '.join(made.interpreter.words)}.\n"
            f"Install it with: {' or '.join(hints)}, "
            "or name another interpreter with `python:` in the study."
        )
