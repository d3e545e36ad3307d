"""`python -m corewise.report.live_page`: write the page of `corewise run --report` once."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corewise.errors import UserError
from corewise.report.page import write_page
from corewise.report.report_builder import UnknownStudy, build_report
from corewise.report.report_model import Report
from corewise.store.record_reader import read_file
from corewise.study.record import Record


def main() -> int:
    """Write the page and return the exit code; errors go to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--study", help="the running study (default: all studies of the store)")
    parser.add_argument("--provisional", type=Path, help="records of unfinished trials, as in a store")
    parser.add_argument("--refresh-s", type=float, help="seconds between two reloads of the page")
    parser.add_argument("--progress", default="", help="how far the study is, as text")
    options = parser.parse_args()
    try:
        provisional, _ = read_file(options.provisional) if options.provisional else ([], [])
        write_page(_build_live_report(options, provisional), options.output)
    except (UserError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _build_live_report(options: argparse.Namespace, provisional: Sequence[Record]) -> Report:
    """Build the report of the study, or a placeholder before its first run has ended."""
    try:
        return build_report(
            [options.store],
            studies=[options.study] if options.study else None,
            refresh_s=options.refresh_s,
            extra_records=provisional,
            progress=options.progress,
        )
    except UnknownStudy:
        empty = build_report([options.store], studies=[], refresh_s=options.refresh_s, progress=options.progress)
        started = f"The study {options.study} has started. Figures appear here as trials finish."
        stopped = (
            f"The study {options.study} stopped before its first result. Run the same `corewise run` again to resume."
        )
        first = stopped if options.refresh_s is None else started
        return replace(empty, title=f"Corewise: {options.study}", summary=(first, f"{options.progress}."))


if __name__ == "__main__":
    sys.exit(main())
