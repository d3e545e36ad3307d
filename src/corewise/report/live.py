"""`python -m corewise.report.live`: one writing of the page that `corewise run --report` keeps fresh."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corewise.report.gather import UnknownStudy, build_report
from corewise.report.model import Report
from corewise.report.page import write_page
from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.store.reader import read_file


def main() -> int:
    """Write the page; the exit code, with the reason on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--study", help="the study that runs; by default all of the store")
    parser.add_argument("--provisional", type=Path, help="records of unfinished trials, as in a store")
    parser.add_argument("--refresh-s", type=float, help="how often the page reloads itself")
    parser.add_argument("--progress", default="", help="how far the study is, in words")
    given = parser.parse_args()
    try:
        so_far, _ = read_file(given.provisional) if given.provisional else ([], [])
        write_page(_report(given, so_far), given.output)
    except (UserError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _report(given: argparse.Namespace, so_far: Sequence[Record]) -> Report:
    """The report on the study; before its first run has ended, only that it has begun or was left."""
    try:
        return build_report(
            [given.store],
            studies=[given.study] if given.study else None,
            refresh_s=given.refresh_s,
            extra_records=so_far,
            progress=given.progress,
        )
    except UnknownStudy:
        empty = build_report([given.store], studies=[], refresh_s=given.refresh_s, progress=given.progress)
        begun = f"The study {given.study} has begun; its figures appear here as they come."
        left = f"The study {given.study} was left before its first figure; the same `corewise run` goes on."
        first = left if given.refresh_s is None else begun
        return replace(empty, title=f"Corewise: {given.study}", summary=(first, f"{given.progress}."))


if __name__ == "__main__":
    sys.exit(main())
