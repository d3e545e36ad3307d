"""`corewise compare`: compare two stores, or two parts of one, trial by trial; also as a CI gate."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.common_options import JsonOption
from corewise.cli.exit_codes import SOME_FAILED, USER_MISTAKE
from corewise.cli.render.console import show_status
from corewise.cli.verb_classes import ignore_closed_pipe
from corewise.errors import UserError, suggest_nearest

if TYPE_CHECKING:
    from corewise.analysis.comparison.comparison_model import StoreComparison

FAIL_ON = ("slower", "missing", "undecided")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The store with the baseline.")],
    b: Annotated[
        Path | None, typer.Argument(metavar="B", help="The other store; default: A itself, with --by.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", metavar="NAME=A,B", help="How the two sides differ: an axis, versions.PACKAGE, host, study ..."
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
            help="Exit with 1 if a trial is slower or fails in B, is missing in B, or is undecided.",
        ),
    ] = None,
    threshold: Annotated[
        str, typer.Option("--threshold", metavar="5%", help="The smallest slowdown that counts.")
    ] = "5%",
    ignore_disturbed: Annotated[
        bool, typer.Option("--ignore-disturbed", help="Leave out runs that other processes disturbed.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, one case per trial.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write FILE.html, .svg, .png, .pdf or .json.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every trial, not only the first ones.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two stores trial by trial: faster, slower or the same, with ratio and confidence interval.

    Trials match if workload, mode and parameters are equal; study, host and versions may differ. Differences
    between the two environments are printed first. Verdicts are corrected for the number of trials. Disturbed
    runs count and are reported; --ignore-disturbed leaves them out, and a trial with too few other runs is
    undecided. Without --fail-on the exit code is always 0.

    Examples:

      corewise compare results-old results-new

      corewise compare results --by versions.torch=2.11,2.13

      corewise compare results --by math=vendor,vanilla --where workload=resnet50 -o vanilla.html

      corewise compare main branch --fail-on slower --threshold 5% --junit compare.xml
    """
    from corewise.analysis.comparison.selection import parse_by, parse_where
    from corewise.analysis.comparison.store_comparison import compare_stores
    from corewise.report.comparison.files import check_place, get_format
    from corewise.store.record_reader import suspend_collector

    reasons = _parse_fail_on(fail_on)
    share = parse_threshold(threshold)
    if output is not None:
        get_format(output)
    for path, option in ((output, "-o"), (junit, "--junit")):
        if path is not None:
            check_place(path, option)
    if b is None and not by:
        raise UserError("name a second store, or pass --by to say how the two sides differ")
    with suspend_collector(), show_status("reading") as show:
        comparison = compare_stores(
            a,
            b or a,
            by=parse_by(by or ()),
            where=parse_where(where or ()),
            threshold=share,
            ignore_disturbed=ignore_disturbed,
            report_progress=show,
        )
    with ignore_closed_pipe():
        _print_verdicts(comparison, show_all, as_json)
    with suspend_collector(), show_status("reading") as show:
        written, problems = _write_files(comparison, output, junit, reasons or frozenset({"slower"}), show)
    with ignore_closed_pipe():
        for path in () if as_json else written:
            print(f"written: {path}")
    failures = list_gate_failures(comparison, reasons)
    with ignore_closed_pipe():
        for message in (*problems, *failures):
            print(f"corewise: {message}", file=sys.stderr)
    if failures or problems:
        raise typer.Exit(SOME_FAILED if failures else USER_MISTAKE)


def _print_verdicts(comparison: "StoreComparison", show_all: bool, as_json: bool) -> None:
    if as_json:
        from corewise.report.comparison.json_export import iterate_json_lines

        sys.stdout.flush()
        sys.stdout.buffer.writelines(iterate_json_lines(comparison))
        return
    from corewise.cli.render.comparison_tables import draw_comparison
    from corewise.cli.render.console import make_console

    draw_comparison(make_console(), comparison, show_all)


def _write_files(
    comparison: "StoreComparison",
    output: Path | None,
    junit: Path | None,
    fail_on: frozenset[str],
    show: Callable[[str], None],
) -> tuple[list[Path], list[UserError]]:
    """Write all files; return those written and the errors of the others."""
    from corewise.report.comparison.files import write_comparison, write_junit

    written: list[Path] = []
    problems: list[UserError] = []
    for path in (junit, output):
        if path is None:
            continue
        show(f"writing {path}")
        try:
            if path is junit:
                write_junit(comparison, path, fail_on)
            else:
                write_comparison(comparison, path)
            written.append(path)
        except UserError as problem:
            problems.append(problem)
    return written, problems


def parse_threshold(text: str) -> float:
    """Return the fraction in `5%` or `0.05`; raise a UserError for other texts."""
    number, per_cent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        share = float(number) / (100 if per_cent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < (100 if per_cent else 1):
        raise UserError(f"--threshold {text!r} is not a fraction: write for example 5% or 0.05")
    return share


def list_gate_failures(comparison: "StoreComparison", reasons: frozenset[str]) -> list[str]:
    """Return why the comparison does not pass; empty if it passes."""
    from corewise.text_format import format_count

    summary, failures = comparison.summary, []
    num_slower = summary.num_regressions - summary.num_broken
    if "slower" in reasons and num_slower:
        failures.append(
            f"{format_count(num_slower, 'trial')} slower by more than {100 * comparison.rule.threshold:.3g} %"
            f"{_describe_doubt(comparison, num_slower)}"
        )
    if "slower" in reasons and summary.num_broken:
        failures.append(f"{format_count(summary.num_broken, 'trial')} measured in A failed in B")
    if "missing" in reasons and comparison.only_a:
        failures.append(f"{format_count(len(comparison.only_a), 'trial')} measured in A, not in B")
    if "undecided" in reasons and summary.num_undecided:
        failures.append(f"{format_count(summary.num_undecided, 'trial')} undecided: too little data")
    return failures


def _describe_doubt(comparison: "StoreComparison", num_slower: int) -> str:
    """Return how many of the regressions other processes may have caused."""
    num = sum(trial.regression and trial.in_doubt for trial in comparison.trials)
    if not num:
        return ""
    which = f"{num:,} of them" if num_slower > 1 else "it is"
    return f"; {which} in doubt: other processes disturbed runs of B (--ignore-disturbed leaves them out)"


def _parse_fail_on(text: str | None) -> frozenset[str]:
    reasons = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in reasons:
        if word not in FAIL_ON:
            raise UserError(f"--fail-on {word!r} is unknown: {suggest_nearest(word, FAIL_ON)}")
    return frozenset(reasons)
