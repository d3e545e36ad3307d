"""What the tests of the page do in a browser: click, enter, read, wait."""

import json
from collections.abc import Callable
from pathlib import Path

from browser import Page

ALL_DRAWN = (
    "[...document.querySelectorAll('[data-chart]')].every((figure) => figure.dataset.drawn) && "
    "!document.querySelector('.waiting')"
)
TRIALS = "document.querySelector('#table-trials')"
SHOWN_COUNT = "document.querySelector('#table-trials .count').textContent"
Open = Callable[..., Page]


def column(page: Page, place: int) -> list[str]:
    """The texts of one column as drawn; the first column holds the stars."""
    script = f"[...{TRIALS}.querySelectorAll('tbody tr')].map((row) => row.cells[{place}].textContent)"
    texts: list[str] = page.run(script)
    return texts


def click(page: Page, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def enter(page: Page, selector: str, text: str) -> None:
    """Put the text into a field as typing would."""
    page.run(f"document.querySelector({json.dumps(selector)}).select()")
    if text:
        page.type(text)
    else:
        page.run(f"document.querySelector({json.dumps(selector)}).value = ''")
        page.run(f"document.querySelector({json.dumps(selector)}).dispatchEvent(new Event('input'))")


def wait_for_file(page: Page, path: Path) -> None:
    for _ in range(500):
        if path.exists() and path.stat().st_size:
            return
        page.run("new Promise((done) => setTimeout(done, 20))")
    raise AssertionError(f"{path.name} was not saved")


def save_csv(page: Page, name: str) -> None:
    buttons = f"[...document.querySelectorAll('#{name} button')]"
    page.run(f"{buttons}.find((one) => one.textContent === 'Save CSV').click()")


def background(page: Page) -> str:
    colour: str = page.run("getComputedStyle(document.body).backgroundColor")
    return colour
