"""`corewise report`: one page that shows what was found, and its figures for a paper."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    stores: Annotated[
        list[Path] | None,
        typer.Option("--store", metavar="DIR", help="Where records are kept; may be given several times."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    studies: Annotated[
        list[str] | None, typer.Option("--study", metavar="NAME", help="Only this study; may be repeated.")
    ] = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The title of the page.")] = "",
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write each chart as a file too, fit for a paper."),
    ] = None,
    fmt: Annotated[
        str, typer.Option("--format", metavar="svg|png|pdf", help="The format of --figures.")
    ] = "svg",
    published_folders: Annotated[
        list[Path] | None,
        typer.Option("--published", metavar="DIR", help="Published figures of your own to lay beside yours."),
    ] = None,
    no_published: Annotated[
        bool, typer.Option("--no-published", help="Lay no published figures beside yours.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object instead of writing a page.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a report: the question, the answer in words, charts, tables, how it was measured.

    The page is one file that opens from disk and needs no network. Several stores are laid side by side.

    Examples:

      corewise report

      corewise report --store results -o results.html --open

      corewise report --store node1 --store node2 --study thread-scaling

      corewise report --store results --figures figures --format pdf
    """
    from corewise.report.figures import FORMATS, write_figures
    from corewise.report.gather import build_report
    from corewise.spec.errors import UserError, nearest

    if fmt not in FORMATS:
        raise UserError(f"unknown --format {fmt!r}: {nearest(fmt, FORMATS)}")
    if not as_json:
        check_output(output)
    say("reading the records …")
    made = build_report(
        stores or [Path("corewise-store")],
        studies=studies or None,
        published=not no_published,
        published_folders=published_folders or (),
        title=title,
    )
    if figures is not None:
        say("drawing the figures …")
        written = write_figures(made, figures, fmt)
        print(f"{len(written)} figures written to {figures}", file=sys.stderr)
    if as_json:
        import orjson

        sys.stdout.buffer.write(
            orjson.dumps(made, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
        )
        return
    from corewise.report.page import write_page

    say("writing the page …")
    write_page(made, output)
    print(f"report written to {output}", file=sys.stderr)
    if open_page:
        import webbrowser

        webbrowser.open(output.resolve().as_uri())


def check_output(output: Path) -> None:
    """Refuse a page that cannot be written before the work is done, not after it."""
    from corewise.spec.errors import UserError

    if output.is_dir():
        raise UserError(f"{output} is a folder: name a file with -o, as in -o {output / 'report.html'}")
    folder = output.resolve().parent
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist: make it, or name another file with -o")


def say(what: str) -> None:
    """Tell a person at a terminal what takes its time."""
    if sys.stderr.isatty():
        print(f"corewise: {what}", file=sys.stderr)
