"""Time a report page with a large table in Chromium until its first sort, and show the page's size."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from measuring import describe_machine, show_seconds, write_figures

from corewise.report.page import write_page

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "report"))
from browser import Browser, find_chromium, running_browser
from sample_report import build_sample_report, scaling_study

SORT = "document.getElementById('table-trials-sort-3').click()"
HAS_TABLE = "document.querySelector('#table-trials tbody tr td')"
ALL_DRAWN = "[...document.querySelectorAll('[data-chart]')].every((figure) => figure.dataset.drawn)"


def time_opening(browser: Browser, path: Path) -> dict[str, float]:
    """Time the page from its request until the table is sorted and until every chart is drawn."""
    page = browser.new_page()
    began = time.perf_counter()
    page.open(path, ready=HAS_TABLE)
    shown = time.perf_counter()
    page.run(SORT)
    sorted_at = time.perf_counter()
    page.wait(ALL_DRAWN)
    drawn = time.perf_counter()
    return {
        "table shown": shown - began,
        "first sort answered": sorted_at - began,
        "of which the sort": sorted_at - shown,
        "all charts drawn": drawn - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    program = find_chromium()
    if program is None:
        sys.exit("this benchmark needs Chromium: install it and run again")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        began = time.perf_counter()
        write_page(build_sample_report(studies=[scaling_study(args.rows)]), path)
        written_s = time.perf_counter() - began
        size_mb = path.stat().st_size / 1e6
        with running_browser(program) as browser:
            # The first opening starts Chromium and is not counted.
            opened = [time_opening(browser, path) for _ in range(args.repeats + 1)][1:]
    rows = {name: [one[name] for one in opened] for name in opened[0]}
    print(f"{describe_machine()}\n{args.rows:,} rows: {size_mb:.2f} MB, written in {written_s:.1f} s")
    show_seconds(rows)
    write_figures(args.out, num_rows=args.rows, size_mb=size_mb, written_s=written_s, seconds=rows)


if __name__ == "__main__":
    main()
