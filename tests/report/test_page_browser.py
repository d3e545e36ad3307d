"""The page in a real browser: nothing loaded, nothing wrong, nothing run that it only shows, nothing cut."""

from dataclasses import replace
from pathlib import Path

import pytest
from browser import Page
from page_steps import Open, click, wait_for_file
from tests.report.sample_report import HOSTILE, build_sample_report, hostile_report, hostile_table, scaling_study

from corewise.report.report_model import Report
from corewise.report.text_blocks import clean

HOSTILE_FIGURE = "#figure-script-window-pwned-tag-script"


def test_it_opens_from_disk_with_no_request_and_no_complaint(open_page: Open) -> None:
    page = open_page(build_sample_report())
    assert [url.rpartition("/")[2] for url in page.requests() if not url.startswith("data:")] == ["report.html"]
    assert page.complaints() == []
    assert page.run("document.querySelector('#answer .lead').textContent").startswith("Use 8 threads")


def test_the_policy_forbids_all_network_access_and_foreign_scripts(open_page: Open) -> None:
    page = open_page(build_sample_report())
    assert page.run("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')") == "refused"
    script = "Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'})"
    page.run(f"document.body.append({script})")
    page.run("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    evaluate = "try { eval('1'); done('ran'); } catch (error) { done(error.name); }"
    assert page.run(f"new Promise((done) => setTimeout(() => {{ {evaluate} }}))") == "EvalError"
    assert page.run("typeof window.ran") == "undefined"
    assert sum("Content Security Policy" in text for text in page.complaints()) >= 3
    assert not any(url.startswith("http") and "127.0.0.1" not in url for url in page.requests())


def test_every_chart_is_drawn_with_its_marks_text_and_data(open_page: Open) -> None:
    page = open_page(build_sample_report())
    charts = "[...document.querySelectorAll('[data-chart] svg')]"
    num_marks = page.run(f"{charts}.map((svg) => svg.querySelectorAll('path, rect').length)")
    assert len(num_marks) == 3
    assert min(num_marks) > 10
    named = "[...document.querySelectorAll('.drawing')].map((one) => one.getAttribute('aria-label'))"
    assert page.run(named) == [chart.alt for chart in scaling_study().charts]
    click(page, "#figure-throughput-rows summary")
    page.wait("document.querySelector('#figure-throughput-rows tbody tr')")
    heads = page.run("[...document.querySelectorAll('#figure-throughput-rows th')].map((th) => th.textContent)")
    assert any("images/s" in head for head in heads)
    assert page.complaints() == []


def test_a_chart_is_saved_as_svg_and_png_in_light_colours(open_page: Open, tmp_path: Path) -> None:
    page = open_page(build_sample_report(), dark=True)
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    click(page, "#figure-throughput [data-save=svg]")
    click(page, "#figure-throughput [data-save=png]")
    svg, png = tmp_path / "figure-throughput.svg", tmp_path / "figure-throughput.png"
    wait_for_file(page, svg)
    wait_for_file(page, png)
    assert "var(" not in svg.read_text()
    assert "#0072b2" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_names_out_to_break_the_page_are_shown_and_never_run(open_page: Open) -> None:
    page = open_page(hostile_report())
    assert page.run("document.title") == HOSTILE[1]
    assert page.run("[...document.querySelectorAll('.notices li')].map((one) => one.textContent)") == [
        clean(name) for name in HOSTILE
    ]
    cells = "[...document.querySelectorAll('#machine tbody td.text')].map((cell) => cell.textContent)"
    wanted = [clean(name) for name in HOSTILE if len(name) < 100]
    assert [text for text in page.run(cells) if len(text) < 100] == wanted
    labels = page.run(f"[...document.querySelectorAll('{HOSTILE_FIGURE} svg text')].map((t) => t.textContent)")
    assert any(label.startswith(HOSTILE[0][:20]) for label in labels)
    point_at_first_bar(page)
    page.wait("document.getElementById('tooltip') && !document.getElementById('tooltip').hidden")
    assert HOSTILE[0] in page.run("document.getElementById('tooltip').textContent")
    assert page.run("document.querySelectorAll('#tooltip script, #tooltip img').length") == 0
    assert page.run("typeof window.pwned") == "undefined"
    assert page.complaints() == []


def point_at_first_bar(page: Page) -> None:
    bar = f"document.querySelector('{HOSTILE_FIGURE} .mark-rect path')"
    page.run(f"{bar}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = page.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({bar}.getBoundingClientRect())")
    page.point_at(box[0] - 1, box[1])
    page.point_at(*box)


@pytest.mark.parametrize("width_px", [320, 360, 768])
def test_on_a_phone_nothing_is_wider_than_the_screen(width_px: int, open_page: Open) -> None:
    page = open_page(hostile_report(), width_px=width_px, height_px=740)
    assert page.run("document.documentElement.scrollWidth") <= width_px
    free = "[...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, .drawing, .unseen'))"
    outside = f"{free}.filter((one) => one.getBoundingClientRect().right > {width_px} + 1)"
    assert page.run(f"{outside}.map((one) => one.outerHTML.slice(0, 80))") == []


def test_long_text_is_cut_with_the_rest_on_demand(open_page: Open) -> None:
    page = open_page(build_sample_report(machines=(hostile_table(),), notices=("many words " * 300,)))
    long_cell = "[...document.querySelectorAll('#machine td')].find((cell) => cell.textContent.startsWith('WWW'))"
    assert page.run(f"{long_cell}.textContent.length") < 200
    page.run(f"{long_cell}.querySelector('button').click()")
    assert page.run(f"{long_cell}.textContent.length") > 300
    height = "document.querySelector('.notices li').offsetHeight"
    cut_px = page.run(height)
    click(page, ".notices li button")
    assert page.run(height) > cut_px


def test_an_empty_report_opens(open_page: Open) -> None:
    page = open_page(build_sample_report(studies=(), findings=(), machines=(), versions=(), notices=(), sources=()))
    assert "Nothing has been measured yet." in page.run("document.body.innerText")
    assert page.complaints() == []


def test_a_chart_that_cannot_be_drawn_says_so_and_harms_no_other(open_page: Open) -> None:
    study = scaling_study()
    broken = study.charts[0].__class__(**{**vars(study.charts[0]), "key": "broken", "spec": {"mark": 7}})
    part = study.__class__(**{**vars(study), "charts": (broken, study.charts[1])})
    page = open_page(build_sample_report(studies=(part,)))
    assert page.run("document.getElementById('figure-broken').dataset.drawn") == "failed"
    assert study.charts[0].alt in page.run("document.querySelector('#figure-broken .alt').textContent")
    assert page.run("document.querySelectorAll('#figure-hybrid svg').length") == 1


def _build_several_answers() -> Report:
    """A report of one study with four answers of two lines each, the most that the first screen shows."""
    answers = [
        f"ResNet-{depth} training is fastest with 1 process × 2 threads, channels_last: 136 images/s "
        "(95 % interval 113–169). No significant difference from 2 × 1 and 1 × 2 contiguous."
        for depth in (18, 34, 50, 101, 152)
    ]
    study = replace(scaling_study(), answers=answers)
    return build_sample_report(studies=(study,), summary=answers)


@pytest.mark.parametrize("several", [False, True])
def test_the_answer_and_its_chart_fit_on_the_first_screen_of_a_laptop(several: bool, open_page: Open) -> None:
    page = open_page(_build_several_answers() if several else build_sample_report(), width_px=1200, height_px=800)
    box = page.run("document.querySelector('[data-chart] .drawing').getBoundingClientRect().toJSON()")
    lead = page.run("document.querySelector('#answer .lead').getBoundingClientRect().toJSON()")
    assert 0 < lead["top"] < lead["bottom"] < box["top"] < box["bottom"] <= 800
    assert box["height"] >= 200


def test_a_headline_takes_two_lines_at_most_on_a_laptop(open_page: Open) -> None:
    page = open_page(_build_several_answers(), width_px=1200, height_px=800)
    script = (
        "[...document.querySelectorAll('.answers .lead')].map("
        "(one) => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight))"
    )
    num_lines = page.run(script)
    assert len(num_lines) == 4
    assert max(num_lines) < 2.5


def test_what_the_first_screen_has_no_room_for_is_folded(open_page: Open) -> None:
    page = open_page(_build_several_answers())
    folded = "[...document.querySelectorAll('#more-answers .lead')]"
    assert page.run(f"{folded}.map((one) => one.textContent.includes('ResNet-152'))") == [True]
    assert not page.run("document.getElementById('more-answers').open")
    assert page.run("document.querySelector('#more-answers summary').textContent") == "1 more answer"
    closed = "[...document.querySelectorAll('.method')].map((one) => one.open)"
    assert page.run(closed) == [False]
