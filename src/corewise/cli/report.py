"""`corewise report`: write one page with the results, and its figures for a paper."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.exit_codes import SOME_FAILED

if TYPE_CHECKING:
    from corewise.report.report_model import Report


def report(
    stores: Annotated[
        list[Path] | None, typer.Option("--store", metavar="DIR", help="A folder that holds records; may be repeated.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    studies: Annotated[
        list[str] | None, typer.Option("--study", metavar="NAME", help="Only this study; may be repeated.")
    ] = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The title of the page.")] = "",
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="Also write each chart as a file for a paper.")
    ] = None,
    fmt: Annotated[str, typer.Option("--format", metavar="svg|png|pdf", help="The format of --figures.")] = "svg",
    published_folders: Annotated[
        list[Path] | None, typer.Option("--published", metavar="DIR", help="More published results to compare with.")
    ] = None,
    no_published: Annotated[
        bool, typer.Option("--no-published", help="Do not compare with published results.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of writing a page.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a report: question, answer, charts, tables and methods.

    The page is one file that needs no network. Several stores are shown next to each other.
    Exit codes: 0 done, 1 the stores hold no records, 2 an error in the command.

    Examples:

      corewise report

      corewise report --store results -o results.html --open

      corewise report --store node1 --store node2 --study thread-scaling

      corewise report --store results --figures figures --format pdf
    """
    from corewise.errors import UserError, suggest_nearest
    from corewise.report.figures import FORMATS, write_figures
    from corewise.report.report_builder import build_report

    if fmt not in FORMATS:
        raise UserError(f"unknown --format {fmt!r}: {suggest_nearest(fmt, FORMATS)}")
    if not as_json:
        check_output(output)
    print_progress("reading the records …")
    made = build_report(
        stores or [Path("corewise-store")],
        studies=studies or None,
        published=not no_published,
        published_folders=published_folders or (),
        title=title,
    )
    if figures is not None:
        print_progress("drawing the figures …")
        written = write_figures(made, figures, fmt)
        print(f"{len(written)} figures written to {figures}", file=sys.stderr)
    if as_json:
        import orjson

        sys.stdout.buffer.write(orjson.dumps(made, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))
        _require_records(made)
        return
    from corewise.report.page import write_page

    print_progress("writing the page …")
    write_page(made, output)
    print(f"report written to {output}", file=sys.stderr)
    _require_records(made)
    if open_page:
        import webbrowser

        webbrowser.open(output.resolve().as_uri())


def _require_records(made: "Report") -> None:
    """Print a message and exit with 1 if there was nothing to report; the page says so too."""
    if not made.studies:
        print(f"corewise: nothing was measured: {' '.join(made.summary)}", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)


def check_output(output: Path) -> None:
    """Raise a UserError before any work if the page cannot be written."""
    from corewise.errors import UserError

    if output.is_dir():
        raise UserError(f"{output} is a folder: choose a file, for example -o {output / 'report.html'}")
    folder = output.resolve().parent
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist: create it, or choose another file with -o")


def print_progress(what: str) -> None:
    """Print on a terminal what is being done."""
    if sys.stderr.isatty():
        print(f"corewise: {what}", file=sys.stderr)
