"""What is written: JUnit XML, pages, figures, JSON; and nothing in a name can do harm."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.analysis.comparison.sample_sides import disturbed, failed, over_threads, skipped, store_of, trial

from corewise.analysis.comparison.comparison_model import StoreComparison
from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.errors import UserError
from corewise.report.comparison.charts import MAX_ROWS, build_comparison_charts
from corewise.report.comparison.files import write_comparison, write_junit
from corewise.report.comparison.json_export import iterate_json_lines

NASTY = "</script><script>document.title='taken'</script><b>& \x1b[31m\u202e é 数 \x00\ud800"


@pytest.fixture
def found(tmp_path: Path) -> StoreComparison:
    """One of each: slower, faster, same, undecided, broken, missing; with a nasty name throughout."""
    nasty = {"workload": NASTY}
    a = [
        *over_threads("a", {1: 1.0, 2: 0.5, 4: 0.3}),
        trial("an", 0.5, params=nasty),
        trial("a8", [0.1], params={"threads": 8}),
        trial("a9", params={"threads": 9}),
        trial("a10", params={"threads": 10}),
    ]
    b = [
        *over_threads("b", {1: 1.2, 2: 0.4, 4: 0.3}, versions={"torch": NASTY}),
        trial("bn", 0.6, params=nasty),
        trial("b8", [0.1], params={"threads": 8}),
        failed("b9", NASTY, params={"threads": 9}),
        skipped("b10", params={"threads": 10}),
    ]
    return compare_stores(store_of(tmp_path / "a", *a), store_of(tmp_path / "b", *b))


def test_junit_has_a_case_for_each_trial_and_fails_those_that_got_worse(found, tmp_path):
    write_junit(found, tmp_path / "compare.xml")
    suite = ElementTree.parse(tmp_path / "compare.xml").getroot().find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    outcomes = {case.get("name"): [child.tag for child in case] for case in cases}
    assert len(outcomes) == len(cases) == 7
    assert outcomes["resnet50 train threads=1"] == ["failure"]
    assert outcomes["resnet50 train threads=2"] == ["system-out"]
    assert outcomes["resnet50 train threads=8"] == ["skipped"]
    assert outcomes["resnet50 train threads=9"] == ["failure"]
    assert outcomes["resnet50 train threads=10"] == ["skipped"]
    counts = {name: int(suite.get(name, "")) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 7, "failures": 3, "errors": 0, "skipped": 2}
    [failure] = [case.find("failure") for case in cases if case.get("name") == "resnet50 train threads=1"]
    assert failure is not None
    assert failure.get("message", "").startswith("slower by 2")
    assert "Cliff's delta" in (failure.text or "")
    properties = {each.get("name"): each.get("value", "") for each in suite.iter("property")}
    assert "</script>" in properties["versions.torch"]


def test_json_has_the_names_others_rely_on(found, tmp_path):
    write_comparison(found, tmp_path / "compare.json")
    exported = json.loads((tmp_path / "compare.json").read_bytes())
    assert len(exported["trials"]) == 5
    for each in exported["trials"]:
        assert each["verdict"] in ("faster", "slower", "same")
        assert each["ratio"] > 0
        assert each["interval"] is None or each["interval"][0] <= each["ratio"] <= each["interval"][1]
        assert each["reason"]
        assert "threads" in each["params"]
    counts = {name: exported["summary"][f"num_{name}"] for name in ("trials", "slower", "faster", "same", "undecided")}
    assert counts == {"trials": 5, "slower": 2, "faster": 1, "same": 1, "undecided": 1}
    assert exported["summary"]["sentence"].startswith("B is faster in 1 of 5 trials and slower in 2")
    assert [each["name"] for each in exported["broken"]] == ["resnet50 train threads=9"]
    assert list(exported).index("differences") < list(exported).index("trials")


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_are_drawn_offline(found, tmp_path, ending, start):
    path = tmp_path / f"compare.{ending}"
    write_comparison(found, path)
    assert path.read_bytes().startswith(start)
    if ending == "svg":
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert "resnet50 train threads=1" in text
        # The name appears as text, not as an element.
        assert "document.title" in text
        assert b"<script" not in path.read_bytes()


def test_a_page_holds_everything_and_runs_nothing_from_a_name(found, tmp_path):
    path = tmp_path / "compare.html"
    write_comparison(found, path)
    text = path.read_text(encoding="utf-8")
    assert found.summary.sentence.replace("'", "&#39;") in text
    assert "<script>document.title" not in text
    assert not re.search(r"(?:src|href)=\"https?:", text)
    assert "\x1b" not in text


def test_a_page_opens_in_a_browser_without_running_names(found, tmp_path, need: Callable[[bool, str], None]):
    browser = which("chromium") or which("chromium-browser") or which("google-chrome") or ""
    need(bool(browser), "a Chromium browser is not installed")
    path = tmp_path / "compare.html"
    write_comparison(found, path)
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [browser, f"--user-data-dir={tmp_path / 'profile'}", *arguments, path.as_uri()],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "<title>taken</title>" not in done.stdout
    assert 'data-drawn="yes"' in done.stdout
    assert "slower" in done.stdout


def test_an_unknown_ending_is_the_users_mistake(found, tmp_path):
    with pytest.raises(UserError, match="did you mean 'html'"):
        write_comparison(found, tmp_path / "compare.htm")
    assert not list(tmp_path.glob("compare*"))


def test_more_trials_than_can_be_drawn_show_as_a_spread(tmp_path):
    a = [trial(f"a{n:03d}", 0.5, params={"batch": 1 + n}) for n in range(MAX_ROWS + 30)]
    b = [trial(f"b{n:03d}", 0.55 if n % 3 else 0.5, params={"batch": 1 + n}) for n in range(MAX_ROWS + 30)]
    forest, spread = build_comparison_charts(compare_stores(store_of(tmp_path / "a", *a), store_of(tmp_path / "b", *b)))
    assert f"Showing the {MAX_ROWS} worst of {MAX_ROWS + 30} trials" in forest.caption
    [layer] = [each for each in spread.spec["layer"] if each["mark"]["type"] == "rect"]
    rows = spread.spec["datasets"][layer["data"]["name"]]
    assert sum(row["num"] for row in rows) == MAX_ROWS + 30


def test_nothing_measured_on_both_sides_draws_nothing(tmp_path):
    a = store_of(tmp_path / "a", trial("a1"))
    b = store_of(tmp_path / "b", failed("b1"))
    found = compare_stores(a, b)
    assert build_comparison_charts(found) == []
    assert json.loads(b"".join(iterate_json_lines(found)))["trials"] == []
    assert found.summary.sentence == "No trial was measured on both sides; 1 trial that A measured failed in B."
    with pytest.raises(UserError, match="no figure to write"):
        write_comparison(found, tmp_path / "compare.svg")
    write_comparison(found, tmp_path / "compare.html")


def test_a_junit_case_fails_on_what_the_gate_fails_on(found, tmp_path):
    def num_failures(*arguments: str) -> int:
        write_junit(found, tmp_path / "compare.xml", frozenset(arguments))
        return int(ElementTree.parse(tmp_path / "compare.xml").getroot().get("failures", ""))

    assert num_failures("slower") == 3
    assert num_failures("undecided") == 1
    assert num_failures("missing") == 1
    assert num_failures("slower", "missing", "undecided") == 5


def test_disturbed_runs_are_named_first_wherever_they_are_written(tmp_path):
    a, b = store_of(tmp_path / "a", trial("a")), store_of(tmp_path / "b", disturbed("b", 0.8, num=3))
    found = compare_stores(a, b)
    for name in ("compare.json", "compare.html"):
        write_comparison(found, tmp_path / name)
    write_junit(found, tmp_path / "compare.xml")
    exported = json.loads((tmp_path / "compare.json").read_bytes())
    sentence = "1 of 1 trial of B had disturbed runs."
    assert exported["disturbed"][0] == sentence
    assert list(exported).index("disturbed") < list(exported).index("differences")
    assert (exported["trials"][0]["num_disturbed"], exported["trials"][0]["in_doubt"]) == ([0, 3], True)
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert 0 < page.index(sentence) < page.index(found.summary.sentence)
    suite = ElementTree.parse(tmp_path / "compare.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.findtext("system-out", "").startswith(sentence)
    [failure] = suite.iter("failure")
    assert failure.get("message", "").endswith("in doubt, because other load disturbed runs of B")
    assert "runs disturbed by other load: 3 of B" in (failure.text or "")


def test_an_interval_that_leaves_the_chart_ends_in_an_arrow_and_the_caption_gives_it(tmp_path):
    a = store_of(tmp_path / "a", trial("a1", [0.1, 0.3, 0.9]), *over_threads("a", {2: 0.5}))
    b = store_of(tmp_path / "b", trial("b1", [0.05, 0.2, 0.9]), *over_threads("b", {2: 0.5}))
    found = compare_stores(a, b)
    wide = max(found.trials, key=lambda pair: pair.high or 0)
    [forest] = build_comparison_charts(found)
    data, low_end, high_end = forest.spec["datasets"], *axis_of(forest.spec)
    assert wide.low < low_end
    assert wide.high > high_end
    arrows = [data[each["data"]["name"]] for each in forest.spec["layer"] if "M" in str(each["mark"].get("shape"))]
    assert [[row["name"] for row in rows] for rows in arrows] == [[wide.name], [wide.name]]
    assert [rows[0]["at"] for rows in arrows] == pytest.approx([low_end, high_end], rel=1e-4)
    assert f"Arrow: the interval continues beyond the axis ({wide.name}: {wide.low:.3g} to" in forest.caption
    assert "1 interval beyond the ends of the axis" in forest.alt


def test_a_chart_whose_intervals_all_fit_has_no_arrow(tmp_path):
    [forest] = build_comparison_charts(
        compare_stores(store_of(tmp_path / "a", trial("a")), store_of(tmp_path / "b", trial("b")))
    )
    assert "Arrow" not in forest.caption
    assert len(forest.spec["layer"]) == 3


def axis_of(spec: Mapping[str, Any]) -> tuple[float, float]:
    """The ends of the ratios' axis."""
    [points] = [each for each in spec["layer"] if each["mark"].get("size") == 70 and each["mark"].get("filled")]
    low, high = points["encoding"]["x"]["scale"]["domain"]
    return low, high
