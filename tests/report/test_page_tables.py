"""Tables of the page in a real browser: order, filters, marks, rounding, what is saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page
from page_steps import ALL_DRAWN, SHOWN_COUNT, TRIALS, Open, click, column, enter, save_csv, wait_for_file
from tests.report.sample_report import build_sample_report, hostile_table, scaling_study

from corewise.report.page import write_page
from corewise.report.report_builder import build_report

STORE = Path(__file__).parents[2] / "benchmarks/data/xeon-16-cores/store"


def test_a_click_sorts_up_then_down_then_as_given_with_missing_values_last(open_page: Open) -> None:
    page = open_page(build_sample_report())
    given = column(page, 4)
    head = "#table-trials-sort-3"
    state = f"document.querySelector('{head}').closest('th').getAttribute('aria-sort')"
    assert (page.run(state), given[0]) == ("none", "–")
    click(page, head)
    numbers = [float(text) for text in column(page, 4)[:-1]]
    assert (numbers, column(page, 4)[-1]) == (sorted(numbers), "–")
    assert page.run(state) == "ascending"
    click(page, head)
    numbers = [float(text) for text in column(page, 4)[:-1]]
    assert (numbers, column(page, 4)[-1]) == (sorted(numbers, reverse=True), "–")
    assert page.run(state) == "descending"
    click(page, head)
    assert (column(page, 4), page.run(state)) == (given, "none")


def test_best_rows_are_marked_with_a_word_and_keep_it_when_sorted(open_page: Open) -> None:
    page = open_page(build_sample_report())
    best = f"[...{TRIALS}.querySelectorAll('tr.best')].map((row) => row.innerText.replace(/\\s+/g, ' '))"
    before = page.run(best)
    assert len(before) == 2
    assert all("★" in text for text in before)
    assert page.run("[...document.querySelectorAll('tr.best .unseen')].map((one) => one.textContent)") == ["best"] * 2
    click(page, "#table-trials-sort-0")
    assert sorted(page.run(best)) == sorted(before)


def test_numbers_have_four_digits_and_their_unit_in_the_heading(open_page: Open) -> None:
    page = open_page(build_sample_report())
    heads = page.run(f"[...{TRIALS}.querySelectorAll('th button')].map((one) => one.innerText.trim())")
    assert [" ".join(head.split()).rstrip(" ↕") for head in heads] == [
        *("Workload", "Threads", "Batch", "Throughput (images/s)", "95 % interval (images/s)"),
        *("Efficiency (%)", "Step (ms)", "Memory (GiB)", "Finished (UTC)"),
    ]
    assert column(page, 4)[1] == "70.69"
    assert column(page, 5)[:2] == ["–", "69.98–71.40"]
    assert column(page, 7)[1] == "14.15"
    assert column(page, 9)[1] == "2026-11-02 10:01:00"


@pytest.mark.parametrize(
    ("place", "typed", "keeps"),
    [
        (3, ">30", lambda row: row[3] is not None and row[3] > 30),
        (3, "5..10", lambda row: row[3] is not None and 5 <= row[3] <= 10),
        (1, "=16", lambda row: row[1] == 16),
        (1, "!=1", lambda row: row[1] != 1),
        (6, "<= 50 ms", lambda row: row[7] <= 0.05),
        (5, ">=50%", lambda row: row[6] >= 0.5),
        (0, "RES", lambda row: "res" in row[0]),
        (0, "=alexnet", lambda row: row[0] == "alexnet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_filter_keeps_what_it_says(
    place: int, typed: str, keeps: Callable[[Any], bool], filtered_page: Page
) -> None:
    rows = scaling_study().tables[0].rows
    wanted = sum(keeps(row) for row in rows)
    assert 0 < wanted < len(rows)
    enter(filtered_page, f"#table-trials-filter-{place}", typed)
    filtered_page.wait(f"{SHOWN_COUNT} === '{wanted} of {len(rows)} rows'")
    enter(filtered_page, f"#table-trials-filter-{place}", "")
    filtered_page.wait(f"{SHOWN_COUNT} === '{len(rows)} rows'")


@pytest.fixture(scope="module")
def shared_page(chromium: Browser | None, tmp_path_factory: pytest.TempPathFactory) -> Page | None:
    if chromium is None:
        return None
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(build_sample_report(), path)
    page = chromium.new_page()
    page.open(path, ready=ALL_DRAWN)
    click(page, "#table-trials-by-column")
    return page


@pytest.fixture
def filtered_page(need: Callable[[bool, str], None], shared_page: Page | None) -> Page:
    need(shared_page is not None, "Chromium is not installed")
    assert shared_page is not None
    return shared_page


def test_terms_filter_all_columns_and_invalid_filters_are_marked(filtered_page: Page) -> None:
    page, rows = filtered_page, scaling_study().tables[0].rows
    enter(page, "#table-trials-filter", "ALEX 32")
    page.wait(f"{SHOWN_COUNT}.includes(' of 15 rows')")
    assert all(name == "alexnet" for name in column(page, 1))
    enter(page, "#table-trials-filter", "no such thing")
    page.wait(f"{TRIALS}.querySelector('.nothing')")
    enter(page, "#table-trials-filter", "")
    enter(page, "#table-trials-filter-3", ">abc")
    page.wait("document.querySelector('#table-trials-filter-3').getAttribute('aria-invalid') === 'true'")
    page.wait(f"{SHOWN_COUNT} === '{len(rows)} rows'")
    enter(page, "#table-trials-filter-3", "")
    page.wait("document.querySelector('#table-trials-filter-3').getAttribute('aria-invalid') === 'false'")


def test_what_is_shown_is_saved_as_csv(open_page: Open, tmp_path: Path) -> None:
    page = open_page(build_sample_report(machines=(hostile_table(),)))
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    enter(page, "#table-trials-filter", "alexnet")
    page.wait(f"{SHOWN_COUNT}.includes(' of ')")
    click(page, "#table-trials-sort-1")
    page.run(f"[...{TRIALS}.querySelectorAll('button')].find((one) => one.textContent === 'Save CSV').click()")
    wait_for_file(page, tmp_path / "table-trials.csv")
    lines = (tmp_path / "table-trials.csv").read_text().splitlines()
    interval = '"95 % interval, low (images/s)","95 % interval, high (images/s)"'
    assert lines[0].startswith(f"Workload,Threads,Batch,Throughput (images/s),{interval},Efficiency (share),")
    assert lines[0].endswith(",Step (s),Memory (B),Finished,Best")
    assert [line.split(",")[0] for line in lines[1:]] == ["alexnet"] * len(lines[1:])
    threads = [int(line.split(",")[1]) for line in lines[1:]]
    assert threads == sorted(threads)
    name = page.run("document.querySelector('#machine [data-table]').id")
    save_csv(page, name)
    wait_for_file(page, tmp_path / f"{name}.csv")
    assert "\n'=1+1," in (tmp_path / f"{name}.csv").read_text()


@pytest.mark.slow
def test_a_hundred_thousand_rows_sort_filter_and_turn_pages(open_page: Open) -> None:
    page = open_page(build_sample_report(studies=[scaling_study(100_000)]))
    assert page.run(SHOWN_COUNT) == "100,000 rows"
    assert page.run(f"{TRIALS}.querySelectorAll('tbody tr').length") == 25
    click(page, "#table-trials-sort-3")
    click(page, "#table-trials-last")
    assert column(page, 4)[-1] == "–"
    assert page.run(f"{TRIALS}.querySelector('.where').textContent") == "Page 4,000 of 4,000"
    enter(page, "#table-trials-filter", "alexnet 16")
    page.wait(f"{SHOWN_COUNT}.includes(' of 100,000 rows')")
    assert set(column(page, 1)) == {"alexnet"}


def test_the_results_of_a_real_study_are_seen_whole_on_a_laptop(open_page: Open) -> None:
    page = open_page(build_report([STORE]), width_px=1280)
    hidden = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
    assert page.run(f"{hidden}.map((one) => one.closest('section').id)") == []
