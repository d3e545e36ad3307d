"""Reading the page in a real browser: light and dark, by keyboard, on paper, while a study runs."""

from pathlib import Path

from page_steps import ALL_DRAWN, SHOWN_COUNT, TRIALS, Open, background, click, column, enter
from tests.report.sample_report import build_sample_report, scaling_study

from corewise.report.page import write_page
from corewise.study.record import format_utc_now

FOCUSED = "(({id, className, tagName, hash, innerText}) => id || hash || [tagName, className, innerText].join('.'))"
AXIS_INK = "getComputedStyle(document.querySelector('[data-chart] .role-axis-title text')).fill"


def test_dark_follows_the_system_and_a_choice_outlives_a_reload(open_page: Open) -> None:
    page = open_page(build_sample_report(), dark=True)
    dark, dark_ink = background(page), page.run(AXIS_INK)
    page.media(dark=False)
    page.wait("document.documentElement.dataset.theme === 'light'")
    assert background(page) == "rgb(255, 255, 255)" != dark
    assert page.run(AXIS_INK) not in (dark_ink, "rgb(0, 0, 0)")
    click(page, "#theme")
    click(page, "#theme")
    assert (page.run("document.getElementById('theme').textContent"), background(page)) == ("Theme: dark", dark)
    page.call("Page.reload")
    page.wait("document.documentElement.classList.contains('ready') && performance.navigation.type === 1")
    assert (page.run("document.getElementById('theme').textContent"), background(page)) == ("Theme: dark", dark)


def test_everything_is_reached_and_worked_by_keyboard(open_page: Open) -> None:
    page = open_page(build_sample_report())
    page.run("document.querySelectorAll('.fold').forEach((one) => { one.open = true; })")
    reached: list[str] = []
    for _ in range(150):
        page.press("Tab")
        if reached and page.run("document.activeElement.matches('.skip, body')"):
            break
        reached.append(page.run(f"{FOCUSED}(document.activeElement)"))
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
        if reached[-1] == "table-trials-sort-3":
            page.press("Enter")
            sorted_by = f"{TRIALS}.querySelectorAll('th')[4].getAttribute('aria-sort')"
            assert page.run(sorted_by) == "ascending"
    assert reached[0] == "#answer"
    for wanted in ("theme", "print", "#findings", "table-trials-filter", "table-trials-by-column"):
        assert wanted in reached, wanted
    assert any(name.startswith("SUMMARY..Data as table") for name in reached)
    assert sum(name == "BUTTON.copy.Copy" for name in reached) == 2


def test_the_skip_link_leads_to_the_answer(open_page: Open) -> None:
    page = open_page(build_sample_report())
    page.press("Tab")
    page.press("Enter")
    page.wait("document.activeElement.id === 'answer'")
    assert page.run("document.activeElement.id") == "answer"


def test_a_command_is_copied_by_its_button(open_page: Open) -> None:
    page = open_page(build_sample_report())
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    click(page, "#findings .copy")
    page.wait("window.copied === 'unset OMP_NUM_THREADS'")
    page.wait("document.getElementById('announcements').textContent === 'Copied'")
    assert page.run("window.copied") == "unset OMP_NUM_THREADS"


def test_on_paper_it_is_light_whole_and_without_controls(open_page: Open) -> None:
    page = open_page(build_sample_report(studies=(scaling_study(60),)), dark=True)
    rows, folds = f"{TRIALS}.querySelectorAll('tbody tr')", "document.querySelectorAll('.unmeasured [open]')"
    counts = f"window.printed = [{rows}.length, {folds}.length]"
    page.run(f"addEventListener('beforeprint', () => {{ {counts}; }})")
    assert len(column(page, 1)) == 25
    assert page.pdf().startswith(b"%PDF")
    assert page.run("window.printed") == [60, 2]
    assert len(column(page, 1)) == 25
    page.media(dark=True, medium="print")
    assert background(page) == "rgb(255, 255, 255)"
    controls = "[...document.querySelectorAll('button:not(th *), input, select, nav')]"
    shown = f"{controls}.filter((one) => one.checkVisibility())"
    assert page.run(f"{shown}.length") == 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    # This is the width of A4 between its margins.
    page.resize(690, 1000)
    rights = "[...document.querySelectorAll('table, svg')].map((one) => one.getBoundingClientRect().right)"
    assert max(page.run(rights)) <= 690


def test_a_live_page_reloads_and_keeps_what_the_reader_set_up(open_page: Open, tmp_path: Path) -> None:
    page = open_page(build_sample_report(refresh_s=3600.0))
    click(page, "#table-trials-sort-3")
    click(page, "#table-trials-by-column")
    enter(page, "#table-trials-filter", "net")
    enter(page, "#table-trials-filter-1", ">1")
    page.wait(f"{SHOWN_COUNT}.includes(' of ')")
    click(page, "#study-thread-scaling-unmeasured summary")
    page.run("document.querySelector('#table-trials').scrollIntoView({behavior: 'instant'})")
    before = (column(page, 4), page.run(SHOWN_COUNT), page.run(f"Math.round({TRIALS}.getBoundingClientRect().top)"))
    write_page(build_sample_report(title="Second", refresh_s=3600.0), tmp_path / "report.html")
    page.run("saveState(), location.reload()")
    page.wait(f"document.title === 'Second' && document.readyState === 'complete' && {ALL_DRAWN}")
    page.wait(f"Math.abs({TRIALS}.getBoundingClientRect().top - {before[2]}) < 30")
    assert (column(page, 4), page.run(SHOWN_COUNT)) == before[:2]
    assert page.run("document.querySelector('#study-thread-scaling-unmeasured details').open")
    assert page.run("document.activeElement.id") == "table-trials-filter-1"
    assert page.complaints() == []


def test_a_live_page_that_nobody_rewrites_stops_claiming_that_the_study_runs(open_page: Open, tmp_path: Path) -> None:
    status = "document.getElementById('live-status').textContent"
    page = open_page(build_sample_report(refresh_s=3600.0, made_at=format_utc_now()))
    assert page.run(status) == "The study is running; updating every 3600 s."
    page = open_page(build_sample_report(refresh_s=3600.0, made_at="2020-01-01T00:00:00Z"))
    assert "has not been rewritten for" in page.run(status)
    assert "the study may have ended or been killed" in page.run(status)
    assert "running" not in page.run(status)
    # Rewritten while we looked on: then it is our clock that is wrong.
    write_page(build_sample_report(refresh_s=3600.0, made_at="2020-01-01T00:01:00Z"), tmp_path / "report.html")
    page.run("saveState(), location.reload()")
    page.wait(f"{status}.startsWith('The study is running')")


def test_the_contents_follow_the_reader(open_page: Open) -> None:
    page = open_page(build_sample_report(), height_px=220)
    page.run("document.getElementById('versions').scrollIntoView({behavior: 'instant'})")
    here = "[...document.querySelectorAll('.contents a.here')].pop()"
    page.wait(f"{here} && {here}.getBoundingClientRect().bottom <= innerHeight && {here}.hash === '#versions'")
    assert page.run(f"{here}.getBoundingClientRect().top") >= 0


def test_a_live_page_follows_the_file_until_paused_and_stops_with_the_study(open_page: Open, tmp_path: Path) -> None:
    page = open_page(build_sample_report(refresh_s=0.3))
    write_page(build_sample_report(title="Second", refresh_s=0.3), tmp_path / "report.html")
    page.wait("document.title === 'Second' && !document.getElementById('pause').hidden")
    page.wait("document.getElementById('pause').click() || window.corewiseState.paused")
    write_page(build_sample_report(title="Third", refresh_s=0.3), tmp_path / "report.html")
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert page.run("document.title") == "Second"
    assert "paused" in page.run("document.getElementById('live-status').textContent")
    write_page(build_sample_report(title="Last"), tmp_path / "report.html")
    click(page, "#pause")
    page.wait("document.title === 'Last' && document.readyState === 'complete'")
    assert page.run("document.getElementById('live')") is None
