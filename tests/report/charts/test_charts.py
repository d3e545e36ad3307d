"""Charts: whole, honest about what they leave out, and drawn only where something varies."""

import json
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import altair as alt
import pytest
from tests.report.sample_trials import MACHINE, PROTOCOL, REAL_STORE, around, group_of, scaling, trial

from corewise.analysis.groups import Group
from corewise.analysis.ranking import rank_trials
from corewise.report.charts.chart_choice import build_group_charts, choose_sampled_trials
from corewise.report.charts.chart_theme import COLOURS, build_key, compute_log_ticks, is_geometric, separate_series
from corewise.report.charts.samples import MAX_SAMPLES, build_samples_chart
from corewise.report.figures import convert_for_paper, render_chart
from corewise.report.report_builder import build_report
from corewise.report.report_model import Chart, Report
from corewise.study.record import Record

MAX_ROWS = 2000


def charts(*records: Record) -> dict[str, Chart]:
    """The charts of one group by the end of their keys."""
    group = group_of(*records)
    return {chart.key.partition("-train-")[2]: chart for chart in build_group_charts(group, rank_trials(group))}


def rows(chart: Chart, name: str = "rows") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.spec["datasets"][name]
    return found


def hybrid() -> list[Record]:
    rates = {(1, 16): 20.0, (2, 8): 24.0, (4, 4): 26.2, (8, 2): 26.0, (16, 1): 18.0}
    return [
        trial(rate * (1 if math_ == "vendor" else 0.4), params={"processes": p, "threads": t, "math": math_})
        for (p, t), rate in rates.items()
        for math_ in ("vendor", "vanilla")
    ]


def grid() -> list[Record]:
    return [
        trial(3 * p**0.9 * t**0.7 * (1 + b / 99), params={"processes": p, "threads": t, "batch": b})
        for p in (1, 2, 4)
        for t in (1, 2)
        for b in (16, 64)
    ]


@pytest.fixture(scope="module")
def report() -> Report:
    return build_report([REAL_STORE])


def every_chart(report: Report) -> Iterator[Chart]:
    yield from (chart for part in report.studies for chart in part.charts)
    for records in (hybrid(), grid(), scaling()):
        yield from charts(*records).values()


def test_every_chart_is_a_valid_specification_that_can_be_drawn(report: Report) -> None:
    num = 0
    for chart in every_chart(report):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            alt.LayerChart.from_dict(dict(chart.spec), validate=True)
        assert render_chart(chart, "svg").startswith(b"<svg"), chart.key
        num += 1
    assert num > 25


def test_every_chart_stands_alone_and_is_small(report: Report) -> None:
    for chart in every_chart(report):
        assert re.fullmatch(r"[a-z0-9-]+", chart.key)
        assert chart.caption.endswith(".")
        assert chart.alt.endswith(".")
        assert chart.spec["width"] == "container"
        assert sum(len(data) for data in chart.spec["datasets"].values()) <= MAX_ROWS
        text = json.dumps(chart.spec, allow_nan=False)
        assert len(text) < 150_000
        assert not re.search(r"labelColor|titleColor|background", text)


def test_keys_differ_within_a_report(report: Report) -> None:
    keys = [chart.key for part in report.studies for chart in part.charts]
    assert len(set(keys)) == len(keys)


def test_nothing_is_drawn_where_nothing_varies() -> None:
    assert charts(trial(20.0)) == {}
    assert charts(trial([]), trial([], params={"threads": 8})) == {}


def test_throughput_has_whiskers_a_line_for_each_batch_and_linear_scaling_as_bound() -> None:
    both = [*scaling(), *(trial(4.0 * t, params={"threads": t, "batch": 64}) for t in (1, 2, 4))]
    drawn = charts(*both)["throughput-threads"]
    assert {row["series"] for row in rows(drawn)} == {"batch 16", "batch 64"}
    assert all(row["low"] < row["y"] < row["high"] for row in rows(drawn))
    assert [(b["x"], round(b["y"])) for b in rows(drawn, "bound")] == [(1, 10), (2, 20), (4, 40), (8, 80), (16, 160)]
    assert "95 % intervals over 5 runs in fresh processes" in drawn.caption
    assert "linear scaling from the fastest base (1 thread, 10.0 images/s)" in drawn.caption


def test_efficiency_has_the_ideal_at_one_and_names_its_base() -> None:
    drawn = charts(*scaling())["efficiency-threads"]
    assert {b["y"] for b in rows(drawn, "bound")} == {1.0}
    assert "Base: 1 thread, all else equal." in drawn.caption
    [widest] = [row for row in rows(drawn) if row["point"] == "16 threads"]
    assert widest["y"] == pytest.approx(55 / 160, rel=1e-3)


def test_one_run_each_has_no_whiskers_and_says_so() -> None:
    drawn = charts(*(trial([10.0 * t], params={"threads": t}) for t in (1, 2, 4)))["throughput-threads"]
    assert all(row["low"] is None for row in rows(drawn))
    assert "One run each, so there are no intervals." in drawn.caption


def test_processes_times_threads_are_bars_over_one_process() -> None:
    drawn = charts(*hybrid())
    bars = {(row["x"], row["series"]): row for row in rows(drawn["processes-threads"])}
    assert bars["4×4", "vendor math"]["ratio"] == "1.31×"
    assert re.fullmatch(r"1\.31× \(1\.\d+ to 1\.\d+\)", bars["4×4", "vendor math"]["over"])
    assert bars["1×16", "vendor math"]["ratio"] == ""
    assert "ratio to 1 process × 16 threads" in drawn["processes-threads"].caption
    # A diagonal map would repeat the bars.
    assert "map-processes-threads" not in drawn


def test_a_map_frames_the_highest_and_its_ties() -> None:
    rates = {(1, 1): 5.0, (1, 2): 10.0, (2, 1): 9.0, (2, 2): 20.0, (4, 1): 19.9}
    drawn = charts(*(trial(around(r, 0.05), params={"processes": p, "threads": t}) for (p, t), r in rates.items()))
    cells = rows(drawn["map-processes-threads"])
    assert [cell["text"] for cell in cells if cell["best"]] == ["20.0", "19.9"]
    assert all(re.fullmatch(r"±\d+\.\d %", cell["spread"]) for cell in cells)
    caption = drawn["map-processes-threads"].caption
    assert "frames: the highest and those without a significant difference from it." in caption
    assert "Empty cells were not measured." in caption
    assert len({chart.title for chart in drawn.values()}) == len(drawn)


def test_a_ratio_that_is_not_shown_has_no_figure_at_its_bar() -> None:
    shapes = {(1, 4): 20.0, (2, 2): 26.0, (4, 1): 10.0}
    drawn = charts(*(trial(around(r, 1.0), params={"processes": p, "threads": t}) for (p, t), r in shapes.items()))[
        "processes-threads"
    ]
    ratios = {row["x"]: (row["ratio"], row["over"]) for row in rows(drawn)}
    assert ratios["2×2"][0] == "≈"
    assert ratios["2×2"][1].startswith("1.30× (0.")
    assert "ratio to 1 process × 4 threads. Each ratio is tested as a single comparison" in drawn.caption
    assert "≈: no significant difference." in drawn.caption


def test_captions_mention_looks_where_there_were_some() -> None:
    for most, is_corrected in ((5, False), (8, True)):
        protocol = {**PROTOCOL, "max_runs": most}
        drawn = charts(*scaling(protocol=protocol))["throughput-threads"]
        assert ("corrected for optional stopping" in drawn.caption) == is_corrected


def test_a_split_of_all_cores_is_not_drawn_as_scaling() -> None:
    assert not {"throughput-threads", "efficiency-threads"} & set(charts(*hybrid()))
    assert {"throughput-threads", "efficiency-threads", "efficiency-processes"} <= set(charts(*grid()))


def test_vendor_against_vanilla_are_paired_bars_with_their_ratio() -> None:
    drawn = charts(*hybrid())["math"]
    for row in rows(drawn):
        assert row["ratio"] == ("2.50×" if row["series"] == "vendor math" else "")
    assert "ratio to vanilla math, all else equal" in drawn.caption


def test_machines_stand_side_by_side_in_colours() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4"}
    drawn = charts(*scaling(), *scaling(machine=other))["throughput-threads"]
    assert {row["series"] for row in rows(drawn)} == {"icelake, 16 cores", "zen4, 16 cores"}


def test_memory_is_one_line_where_only_the_batch_changes_it() -> None:
    drawn = charts(*(trial(10.0 * t, params={"threads": t, "batch": b}) for t in (1, 2) for b in (4, 64)))
    assert {row["series"] for row in rows(drawn["memory-batch"])} == {""}
    assert "No other parameter changes it" in drawn["memory-batch"].caption


def test_many_values_are_thinned_evenly_and_the_caption_says_so() -> None:
    many = charts(*(trial([1.0 + n, 1.1 + n], params={"args.n": n}) for n in range(1, 4001)))["throughput-args-n"]
    xs = [row["x"] for row in rows(many)]
    assert len(xs) <= 1500
    assert (min(xs), max(xs)) == (1, 4000)
    assert "Showing 1,500 of 4,000 values of n." in many.caption


def test_many_lines_are_some_of_them_and_the_caption_says_so() -> None:
    records = [trial(1.0 * t * b, params={"threads": t, "batch": b}) for t in (1, 2) for b in range(1, 21)]
    drawn = charts(*records)["throughput-threads"]
    assert len({row["series"] for row in rows(drawn)}) == 6
    assert "Showing 6 of 20 values of batch" in drawn.caption


def test_what_is_not_on_an_axis_is_the_fastest_or_held_and_the_caption_says_which() -> None:
    records = [
        trial(t * (2 if d == "b" else 1), params={"threads": t, "batch": b, "dtype": d, "args.m": m})
        for t in (1, 2) for b in (1, 2, 3, 4) for d in "abcde" for m in "xyzw"
    ]  # fmt: skip
    drawn = charts(*records)
    assert "Showing the fastest over dtype and m." in drawn["throughput-threads"].caption
    assert ", as in the fastest trial" in drawn["efficiency-threads"].caption


def test_values_that_span_decades_get_a_logarithmic_scale() -> None:
    def scale(chart: Chart, name: str) -> Any:
        lines = [layer for layer in chart.spec["layer"] if layer["mark"]["type"] == "line"]
        return lines[-1]["encoding"][name]["scale"].get("type")

    wide = charts(*(trial(10.0**k, params={"batch": 4**k}) for k in range(4)))["throughput-batch"]
    narrow = charts(*(trial(10.0 + k, params={"batch": 10 + k}) for k in range(4)))["throughput-batch"]
    assert (scale(wide, "x"), scale(wide, "y")) == ("log", "log")
    assert (scale(narrow, "x"), scale(narrow, "y")) == (None, None)


def test_series_are_set_apart_by_little() -> None:
    made = [{"x": x, "series": s} for x in (1, 4, 16) for s in ("a", "b")]
    separate_series(made, ["a", "b"], log=True)
    for row, x in zip(made, (1, 1, 4, 4, 16, 16), strict=True):
        assert row["x"] != x
        assert float(str(row["x"])) == pytest.approx(x, rel=0.05)


def group_with_samples(num: int) -> tuple[Group, dict[int, list[list[float]]]]:
    group = group_of(*scaling())
    samples = {i: [[1.0 + 0.001 * k for k in range(num)] for _ in range(5)] for i in range(3)}
    return group, samples


def test_samples_are_drawn_per_process_relative_to_the_median_of_their_trial() -> None:
    group, samples = group_with_samples(11)
    chart = build_samples_chart(group, samples, choose_sampled_trials(group, rank_trials(group)))
    assert chart is not None
    assert len(rows(chart)) == 3 * 5 * 11
    assert len(rows(chart, "medians")) == 15
    assert {row["x"] for row in rows(chart, "medians")} == {1.0}
    assert "Showing" not in chart.caption


def test_too_many_samples_are_chosen_by_size_with_their_extremes() -> None:
    group, samples = group_with_samples(1001)
    chart = build_samples_chart(group, samples, choose_sampled_trials(group, rank_trials(group)))
    assert chart is not None
    assert len(rows(chart)) <= MAX_SAMPLES
    assert "of 15,015 samples, evenly chosen by size, including the extremes" in chart.caption
    xs = [row["x"] for row in rows(chart)]
    assert (min(xs), max(xs)) == (pytest.approx(1 / 1.5, rel=1e-3), pytest.approx(2 / 1.5, rel=1e-3))


@pytest.mark.parametrize("samples", [{}, {0: []}, {0: [[]]}, {0: [[1.0]]}, {0: [[0.0, 1.0]]}])
def test_too_few_samples_are_not_drawn(samples: dict[int, list[list[float]]]) -> None:
    assert build_samples_chart(group_of(*scaling()), samples, {0: "fastest"}) is None


def test_the_trials_looked_into_are_the_fastest_the_slowest_and_the_least_sure() -> None:
    group = group_of(*scaling(), trial(around(20.0, 0.5), params={"threads": 3}))
    chosen = choose_sampled_trials(group, rank_trials(group))
    assert {role: group.points[i]["threads"] for i, role in chosen.items()} == {
        "fastest": 16, "next fastest": 8, "slowest": 1, "widest interval": 3,
    }  # fmt: skip


def test_a_chart_for_a_paper_is_white_of_fixed_width_and_darker() -> None:
    drawn = charts(*scaling())["throughput-threads"]
    paper = convert_for_paper(drawn)
    assert paper["config"]["background"] == "white"
    assert isinstance(paper["width"], int)
    assert "#888888" in json.dumps(drawn.spec["layer"])
    assert "#888888" not in json.dumps(paper["layer"])
    assert paper["datasets"] == drawn.spec["datasets"]


@pytest.mark.parametrize(("fmt", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_chart_is_rendered_in_each_format(fmt: str, start: bytes) -> None:
    assert render_chart(charts(*scaling())["efficiency-threads"], fmt).startswith(start)


def test_markup_in_names_stays_text() -> None:
    names = {"<img onerror=alert(1)>": 10.0, "b": 5.0}
    drawn = charts(*(trial(r * t, params={"threads": t, "args.x": name}) for t in (1, 2) for name, r in names.items()))
    svg = render_chart(drawn["throughput-threads"], "svg").decode()
    assert "&lt;img" in svg
    assert "<img" not in svg


def test_colours_are_colour_blind_safe() -> None:
    assert COLOURS[:6] == ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def test_keys_are_made_of_letters_digits_and_hyphens() -> None:
    assert build_key("Thread scaling!", "<b>", "x_y") == "thread-scaling-b-x-y"
    assert build_key("模型") == "figure"
    assert len(build_key("x" * 500)) <= 80


def test_ticks_of_a_logarithmic_axis_are_round() -> None:
    assert compute_log_ticks([3.0, 60.0]) == [5.0, 10.0, 20.0, 50.0]
    assert all(math.log10(tick).is_integer() for tick in compute_log_ticks([1e-6, 1e6]))


def test_geometric_steps_are_recognised() -> None:
    assert is_geometric([1, 2, 4, 8])
    assert not is_geometric([1, 2, 3, 4, 5, 6, 7, 8])
    assert not is_geometric([0, 1, 10, 100])
