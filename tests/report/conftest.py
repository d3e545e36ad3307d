"""A browser for the tests of the page."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_chromium, running_browser
from page_steps import ALL_DRAWN

from corewise.report.page import write_page
from corewise.report.report_model import Report


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser | None]:
    program = find_chromium()
    if program is None:
        yield None
        return
    with running_browser(program) as browser:
        yield browser


@pytest.fixture
def open_page(
    need: Callable[[bool, str], None], chromium: Browser | None, tmp_path: Path
) -> Iterator[Callable[..., Page]]:
    """Open a report in a new page."""
    need(chromium is not None, "Chromium is not installed")
    pages: list[Page] = []

    def opened(report: Report, **options: Any) -> Page:
        assert chromium is not None
        write_page(report, tmp_path / "report.html")
        pages.append(chromium.new_page(**options))
        pages[-1].open(tmp_path / "report.html", ready=ALL_DRAWN)
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
