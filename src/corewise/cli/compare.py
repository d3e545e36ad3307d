"""`corewise compare`: two stores, or two parts of one, trial by trial; a gate for CI."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.exit_codes import SOME_FAILED, USER_MISTAKE
from corewise.cli.pipes import reader_may_leave
from corewise.spec.errors import UserError, nearest

if TYPE_CHECKING:
    from corewise.comparison.model import Comparison

FAIL_ON = ("slower", "missing", "undecided")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A store: what is compared against.")],
    b: Annotated[
        Path | None, typer.Argument(metavar="B", help="The other store; by default A itself, with --by.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="NAME=A,B",
            help="Where the two sides differ by design: an axis, versions.PACKAGE, host, study ...",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="NAME=VALUE", help="Only records with this value, on both sides."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="slower,missing,undecided",
            help="End with code 1 if a trial got slower or broke, is missing in B, or cannot be told.",
        ),
    ] = None,
    threshold: Annotated[
        str, typer.Option("--threshold", metavar="5%", help="The smallest slowdown that counts.")
    ] = "5%",
    ignore_disturbed: Annotated[
        bool,
        typer.Option("--ignore-disturbed", help="Let runs that other processes disturbed decide nothing."),
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, one case a trial.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write FILE.html, .svg, .png, .pdf or .json."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every trial, not only the first ones.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare two stores trial by trial: faster, slower or the same, by how much, and how sure.

    Trials are partners when the same was asked for: workload, mode and parameters, whatever the study,
    host or version. What differs between the two environments comes first. Verdicts are corrected for
    their number. Runs that others disturbed count, and are named first; with --ignore-disturbed they are
    left out, and where too few others remain the data cannot tell. Without --fail-on the exit code is 0
    whatever the verdicts.

    Examples:

      corewise compare results-old results-new

      corewise compare results --by versions.torch=2.11,2.13

      corewise compare results --by math=vendor,vanilla --where workload=resnet50 -o vanilla.html

      corewise compare main branch --fail-on slower --threshold 5% --junit compare.xml
    """
    from corewise.comparison.compute import compare_stores
    from corewise.comparison.files import check_place, format_of
    from corewise.comparison.selection import parse_by, parse_where
    from corewise.store.reader import collector_paused

    reasons = _fail_on(fail_on)
    share = parse_threshold(threshold)
    if output is not None:
        format_of(output)
    for path, option in ((output, "-o"), (junit, "--junit")):
        if path is not None:
            check_place(path, option)
    if b is None and not by:
        raise UserError("name a second store to compare with, or say with --by how the two sides differ")
    with collector_paused(), _progress() as tell:
        found = compare_stores(
            a,
            b or a,
            by=parse_by(by or ()),
            where=parse_where(where or ()),
            threshold=share,
            ignore_disturbed=ignore_disturbed,
            tell=tell,
        )
    with reader_may_leave():
        _print_verdicts(found, show_all, as_json)
    with collector_paused(), _progress() as tell:
        written, problems = _write_files(found, output, junit, reasons or frozenset({"slower"}), tell)
    with reader_may_leave():
        for path in () if as_json else written:
            print(f"written: {path}")
    failures = gate(found, reasons)
    with reader_may_leave():
        for told in (*problems, *failures):
            print(f"corewise: {told}", file=sys.stderr)
    if failures or problems:
        raise typer.Exit(SOME_FAILED if failures else USER_MISTAKE)


def _print_verdicts(found: "Comparison", show_all: bool, as_json: bool) -> None:
    if as_json:
        from corewise.comparison.exported import json_lines

        sys.stdout.flush()
        sys.stdout.buffer.writelines(json_lines(found))
        return
    from corewise.cli.drawn_comparison import draw_comparison
    from corewise.cli.terminal import make_console

    draw_comparison(make_console(), found, show_all)


def _write_files(
    found: "Comparison",
    output: Path | None,
    junit: Path | None,
    fail_on: frozenset[str],
    tell: Callable[[str], None],
) -> tuple[list[Path], list[UserError]]:
    """The files written, and why others were not; one that fails does not keep back the other."""
    from corewise.comparison.files import write_comparison, write_junit

    written: list[Path] = []
    problems: list[UserError] = []
    for path in (junit, output):
        if path is None:
            continue
        tell(f"writing {path}")
        try:
            if path is junit:
                write_junit(found, path, fail_on)
            else:
                write_comparison(found, path)
            written.append(path)
        except UserError as problem:
            problems.append(problem)
    return written, problems


def parse_threshold(text: str) -> float:
    """A share from `5%` or `0.05`; raises UserError for what is neither."""
    number, per_cent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        share = float(number) / (100 if per_cent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < (100 if per_cent else 1):
        raise UserError(f"--threshold {text!r} is no share: write for example 5% or 0.05")
    return share


def gate(found: "Comparison", reasons: frozenset[str]) -> list[str]:
    """Why the comparison does not pass; empty when it does."""
    from corewise.report.words import counted

    summary, failures = found.summary, []
    num_slower = summary.num_regressions - summary.num_broken
    if "slower" in reasons and num_slower:
        failures.append(
            f"{counted(num_slower, 'trial')} slower by more than {100 * found.rule.threshold:.3g} %"
            f"{_doubt(found, num_slower)}"
        )
    if "slower" in reasons and summary.num_broken:
        failures.append(f"{counted(summary.num_broken, 'trial')} measured in A failed in B")
    if "missing" in reasons and found.only_a:
        failures.append(f"{counted(len(found.only_a), 'trial')} measured in A, not in B")
    if "undecided" in reasons and summary.num_undecided:
        failures.append(f"of {counted(summary.num_undecided, 'trial')} the data cannot tell")
    return failures


def _doubt(found: "Comparison", num_slower: int) -> str:
    """How many of the regressions may be due to others on the machine."""
    num = sum(trial.regression and trial.in_doubt for trial in found.trials)
    if not num:
        return ""
    which = f"{num:,} of them" if num_slower > 1 else "it is"
    return f"; {which} in doubt: others disturbed runs of B (--ignore-disturbed leaves such runs out)"


def _fail_on(text: str | None) -> frozenset[str]:
    reasons = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in reasons:
        if word not in FAIL_ON:
            raise UserError(f"--fail-on {word!r} is unknown: {nearest(word, FAIL_ON)}")
    return frozenset(reasons)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what takes its time, on standard error."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text("reading")) as status:
        yield lambda text: status.update(Text(text))
