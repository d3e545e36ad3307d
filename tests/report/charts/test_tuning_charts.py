"""The report of a tuning: the ladder, throughput against latency, memory, sentences and tables."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from browser import Page
from tests.report.sample_trials import trial
from tests.store.edited_records import edit_record

from corewise.analysis.tuning_results import LadderStep, RacedSetting, SettingResult, StoredTuning, read_tunings
from corewise.report.charts.ladder import GAIN, LOSS, OTHERS, RACED, build_tuning_charts
from corewise.report.figures import render_chart
from corewise.report.page import render_page
from corewise.report.report_builder import build_report
from corewise.report.report_model import Chart
from corewise.report.tuning_sentences import build_tuning_tables, describe_tuning
from corewise.store.store import Store
from corewise.tuning.journal import Journal
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.setting_space import Space, UntriedChoice
from corewise.tuning.session import record_answer

GIB = 1 << 30


def side(text: str, rate: float, latency_s: float, num_bytes: float = GIB) -> SettingResult:
    return SettingResult(
        params={"processes": 1},
        label=text,
        throughput=rate,
        interval=(rate * 0.97, rate * 1.03),
        latency_s=latency_s,
        memory_bytes=num_bytes,
        command=f"env OMP_NUM_THREADS=2 python worker run {text.split(',')[0]}.json",
        # The ratio of means differs slightly from that of medians.
        over_default=round(rate / 35.0 * 1.05, 2),
        over_default_interval=(rate / 35.0 * 0.9, rate / 35.0 * 1.2),
        trial_id=f"{text} {rate}",
    )


DEFAULT, HAND = side("default", 35.0, 1.8), side("channels_last, allocator retain", 88.0, 0.72)
BEST = side("8×2, channels_last, allocator retain", 142.0, 0.44, 3 * GIB)
LADDER = (
    LadderStep("8×2", side("8×2", 61.0, 1.1, 2.8 * GIB), 1.74, (1.6, 1.9), 1.74),
    LadderStep("channels_last", side("8×2, channels_last", 150.0, 0.45, 2.9 * GIB), 2.46, (2.3, 2.6), 4.29),
    LadderStep("allocator retain", BEST, 0.95, (0.9, 0.99), 4.06),
)
RESULT = TuneResult(
    name="resnet50 infer",
    mode="infer",
    batch=64,
    machine="16 cores of A CPU",
    verdict="faster",
    default=DEFAULT,
    best=BEST,
    hand=HAND,
    speedup=4.06,
    speedup_interval=(3.9, 4.2),
    speedup_over_hand=1.61,
    speedup_over_hand_interval=(1.4, 1.8),
    measured=(DEFAULT, HAND, BEST),
    ladder=LADDER,
    tried=(
        RacedSetting("default", {}, "default", 1.0, 34.0, 1.85),
        RacedSetting("channels_last, allocator retain", {}, "won", 2.5, 86.0, 0.74),
        RacedSetting("16×1", {}, "latency", 1.9, 66.0, 2.4),
        RacedSetting("bfloat16", {}, "rejected", 0.0, 0.0, 0.0, float("inf"), "wrong numbers"),
    ),
    tied=(RacedSetting("8×2, channels_last", {}, "tied", 4.0, 140.0, 0.45),),
    left_out=(UntriedChoice("bfloat16", "fewer digits; allow it with --allow lower-precision"),),
    notes=("the search was short",),
)


KEY = "0123456789abcdef"


def stored(folder: Path, result: TuneResult = RESULT, key: str = KEY) -> Path:
    store = Store.open(folder / "store", create=True)
    for i, side in enumerate(result.measured):
        params = {"workload": "resnet50", "mode": "infer", "processes": 2**i}
        store.append(trial(side.throughput, study=result.study, params=params, trial_id=side.trial_id))
    record_answer(Journal(store, key, Space({}, ())), result)
    return folder / "store"


@pytest.fixture
def tuning(tmp_path: Path) -> StoredTuning:
    [found] = read_tunings(stored(tmp_path))
    return found


def rows(chart: Chart) -> dict[str, dict[str, Any]]:
    return {row["x"]: row for row in chart.spec["datasets"]["rows"]}


def test_every_chart_is_valid_and_can_be_drawn(tuning: StoredTuning) -> None:
    drawn = build_tuning_charts(tuning)
    assert [chart.key.rpartition("-")[2] for chart in drawn] == ["ladder", "latency", "memory"]
    for chart in drawn:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            alt.LayerChart.from_dict(dict(chart.spec), validate=True)
        assert render_chart(chart, "svg").startswith(b"<svg")
        assert (chart.caption[-1], chart.alt[-1]) == (".", ".")


def test_each_knob_hangs_where_the_one_before_it_ended(tuning: StoredTuning) -> None:
    found = rows(build_tuning_charts(tuning)[0])
    assert list(found) == ["default", "+ 8×2", "+ channels_last", "+ allocator retain", "by hand", "best"]
    assert [(row["start"], row["y"]) for row in found.values()][:4] == [
        (0, 35.0),
        (35.0, 61.0),
        (61.0, 150.0),
        (150.0, 142.0),
    ]
    assert (found["+ 8×2"]["series"], found["+ allocator retain"]["series"]) == (GAIN, LOSS)
    assert found["+ 8×2"]["over"] == "1.74× (1.60 to 1.90)"
    assert found["best"]["text"] == "4.06× the default"


def test_raced_settings_are_drawn_relative_to_the_default_of_the_fresh_runs(tuning: StoredTuning) -> None:
    points = build_tuning_charts(tuning)[1].spec["datasets"]["rows"]
    [raced] = [row for row in points if row["setting"] == "16×1"]
    assert raced["y"] == pytest.approx(1.9 * 35.0)
    assert raced["x"] == pytest.approx(1e3 * 2.4 / 1.85 * 1.8, rel=1e-4)
    assert {row["series"] for row in points} == {RACED, OTHERS, "default", "by hand", "best"}


def test_what_has_fresh_runs_is_drawn_by_them_and_the_rest_marked_as_raced(tuning: StoredTuning) -> None:
    # This step of the ladder was also raced.
    raced = [*tuning.tried, replace(tuning.tried[2], label="8×2")]
    points = build_tuning_charts(replace(tuning, tried=tuple(raced)))[1].spec["datasets"]["rows"]
    [step] = [row for row in points if row["setting"] == "8×2"]
    assert (step["y"], step["series"], step["measured"]) == (61.0, OTHERS, "fresh runs")
    assert [row["setting"] for row in points if row["measured"] == RACED] == ["16×1"]


def test_a_gain_has_the_same_figure_everywhere(tuning: StoredTuning) -> None:
    found = rows(build_tuning_charts(replace(tuning, speedup=4.31))[0])
    # It is the ratio of the headline, not that of the bars' lengths.
    assert found["best"]["text"] == "4.31× the default"
    assert found["by hand"]["text"] == "2.64× the default"


@pytest.mark.parametrize(
    ("interval", "sentence_start"),
    [
        ((1.4, 1.8), "The best is 1.61× (1.40 to 1.80) as fast as the hand setting (channels_last, all"),
        ((0.9, 2.9), "No significant difference from the hand setting (channels_last, allocator retain): the "),
        (None, "No significant difference from the hand setting"),
    ],
)
def test_a_gain_over_the_hand_setting_is_claimed_only_where_it_is_shown(
    tmp_path: Path, interval: tuple[float, float] | None, sentence_start: str
) -> None:
    [found] = read_tunings(stored(tmp_path, replace(RESULT, speedup_over_hand_interval=interval)))
    assert any(sentence.startswith(sentence_start) for sentence in describe_tuning(found))


def test_each_tuning_of_a_name_has_a_section_with_its_own_runs(tmp_path: Path) -> None:
    other = replace(DEFAULT, trial_id="other")
    small = replace(RESULT, asked=("batch 4", "image_size 32"), best=other, default=other, measured=(other,))
    folder = stored(tmp_path, replace(RESULT, asked=("batch 8", "image_size 64")), "a" * 16)
    stored(tmp_path, small, "b" * 16)
    Store.open(folder, create=False).append(
        trial(9.0, study=RESULT.study, params={"workload": "resnet50", "mode": "infer"}, trial_id="left")
    )
    first, second, rest = build_report([folder], published=False).studies
    assert first.title == "tune resnet50 infer, batch 8, image_size 64"
    assert second.title == "tune resnet50 infer, batch 4, image_size 32"
    assert [len(part.tables[-1].rows) for part in (first, second, rest)] == [3, 1, 1]
    assert "image_size 64" in first.charts[0].title
    assert rest.title == "tune resnet50 infer: other runs"
    [alone] = build_report([folder], tunings=["b" * 16], published=False).studies
    assert alone.title == second.title


def test_equal_tunings_are_distinguished_by_their_time_or_key(tmp_path: Path) -> None:
    folder = stored(tmp_path, RESULT, "a" * 16)
    stored(tmp_path, replace(RESULT, measured=()), "b" * 16)
    titles = [part.title for part in build_report([folder], published=False).studies]
    assert len(set(titles)) == 2
    assert all(title.startswith("tune resnet50 infer, 20") for title in titles)


def test_no_two_charts_or_tables_of_a_report_have_the_same_title(tmp_path: Path) -> None:
    for key, asked in (("1", ("batch 8",)), ("2", ("batch 8", "--allow batch")), ("3", ("batch 8",))):
        folder = stored(tmp_path, replace(RESULT, asked=asked), key)
    report = build_report([folder])
    titles = [each.title for part in report.studies for each in (*part.charts, *part.tables)]
    assert len(titles) > 10
    assert len(titles) == len(set(titles))


def test_a_stopped_tuning_has_a_page_of_what_was_raced(tmp_path: Path) -> None:
    raced = replace(DEFAULT, interval=None, trial_id="", over_default=None)
    best = replace(raced, label="channels_last, allocator retain", throughput=86.0)
    stopped = replace(RESULT, verdict="unconfirmed", default=raced, best=best, hand=None, ladder=(), measured=())
    [part] = build_report([stored(tmp_path, stopped)], tunings=[KEY]).studies
    assert [chart.key.rpartition("-")[2] for chart in part.charts] == ["latency", "memory"]
    assert "there were no fresh runs" in part.charts[0].caption
    assert part.tables[0].title.endswith("raced")


def test_training_has_no_chart_of_latency_and_one_setting_no_ladder(tuning: StoredTuning) -> None:
    training = build_tuning_charts(replace(tuning, mode="train"))
    assert [chart.key.rpartition("-")[2] for chart in training] == ["ladder", "memory"]
    alone = replace(tuning, best=tuning.default, hand=None, ladder=(), tried=tuning.tried[:1])
    assert build_tuning_charts(alone) == []


def test_sentences_and_tables_have_gain_ties_notes_and_untried_settings(tuning: StoredTuning) -> None:
    said = " ".join(describe_tuning(tuning))
    for text in (
        "4.06×",
        "1.61×",
        "No significant difference from 8×2, channels_last",
        "the search was short",
        "`env OMP_",
    ):
        assert text in said
    raced, not_tried = build_tuning_tables(tuning)
    assert (raced.rows[-1][1], raced.rows[-1][-1]) == ("rejected", "wrong numbers")
    # An infinite error has no number.
    assert raced.rows[-1][4] is None
    assert not_tried.rows[0][0] == "bfloat16"


def test_disturbed_runs_are_a_caution_below_the_headline(tmp_path: Path) -> None:
    note = "6 of 8 fresh runs of the default and the best were disturbed (other load)"
    report = build_report([stored(tmp_path, replace(RESULT, notes=(note, "the search was short"), cautions=(note,)))])
    assert list(report.asides) == [f"Treat with caution: {note}."]
    page = render_page(report)
    assert page.index("Treat with caution: 6 of 8") < page.index("What the figures show in detail")
    assert page.index("the search was short") > page.index("What the figures show in detail")


def test_the_report_shows_the_tuning_in_place_of_charts_of_a_grid(tmp_path: Path) -> None:
    [part] = build_report([stored(tmp_path)], studies=[RESULT.study]).studies
    assert [chart.key.split("-")[-1] for chart in part.charts][:3] == ["ladder", "latency", "memory"]
    assert part.answers[0] == (
        "ResNet-50 inference is 4.06× as fast as by default (95 % interval 3.90–4.20×) "
        "with 8×2, channels_last, allocator retain."
    )
    assert [table.title.rpartition(": ")[2] for table in part.tables] == ["raced", "not tried", "results"]


def test_a_journal_that_cannot_be_read_is_passed_by(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    journal = folder / "tune/0123456789abcdef.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"answer"', b'"anser_"'))
    assert read_tunings(folder) == []
    assert build_report([folder]).studies[0].answers


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("speedup",), 10**400),
        (("speedup",), float("nan")),
        (("best", "throughput"), float("inf")),
        (("best", "params"), ["a"]),
        (("best",), None),
        (("ladder", 0, "gain"), 10**400),
        (("ladder", 0), "a step"),
        (("tried",), {}),
        (("not_tried", 0), 3),
        (("notes",), None),
        (("subject",), json.loads("[" * 900 + "]" * 900)),
    ],
    ids=str,
)
def test_an_edited_answer_is_passed_by_or_shown_but_stops_no_report(
    tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    folder = stored(tmp_path)
    edit_record(folder / f"tune/{KEY}.jsonl", ("answer", *place), value)
    build_report([folder])


def test_the_page_draws_the_ladder(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(build_report([stored(tmp_path)]))
    titles = page.run("[...document.querySelectorAll('figure.chart :is(h2, h3)')].map(e => e.textContent)")
    assert "resnet50 infer: what each knob gave" in titles
    assert page.run("document.querySelectorAll('figure.chart .drawing svg, figure.chart canvas').length")
    assert page.complaints() == []


def test_a_hand_setting_that_is_the_best_is_drawn_as_the_best(tuning: StoredTuning) -> None:
    assert [name for name, _ in replace(tuning, hand=tuning.best).sides] == ["default", "best"]
    assert [name for name, _ in replace(tuning, best=tuning.default).sides] == ["default", "by hand"]
