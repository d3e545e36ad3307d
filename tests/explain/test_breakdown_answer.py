"""The answer about a model's primitives: ceilings, sentences, suggested commands, the page."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.explain.sample_breakdown import CEILINGS, CONV, POOL, answer, breakdown

from corewise.cli.render.primitives_table import draw_answer
from corewise.explain.explanation_text import describe_method, format_share, suggest_commands, summarize_answer
from corewise.explain.primitives_chart import ALONE, CEILING, IN_MODEL, build_primitives_chart
from corewise.explain.primitives_page import build_primitives_report


def test_a_primitive_is_judged_by_arithmetic_or_by_memory_whichever_takes_longer() -> None:
    conv, pool, item, view = answer().primitives
    assert (conv.ceiling_s, conv.limit) == (pytest.approx(4 * 0.8e9 / 100e9), "compute")
    assert conv.fraction == pytest.approx(0.032 / 0.071)
    assert (pool.ceiling_s, pool.limit) == (pytest.approx(6.4e7 / 32e9), "memory")
    assert item.fraction is not None
    assert (view.ceiling_s, view.fraction) == (None, None)


def test_uncounted_work_is_not_judged_and_has_no_distance() -> None:
    found = answer(breakdown(primitives=(replace(CONV, flops=None), replace(POOL, in_model_s=0.002))))
    conv, pool = found.primitives
    assert (conv.ceiling_s, conv.fraction, conv.to_json()["gflop_per_s"]) == (None, None, None)
    assert pool.fraction == pytest.approx(1.0)
    assert found.shares[0].fraction is None
    text = " ".join(summarize_answer(found))
    assert "distance to the ceiling" not in text
    assert "of the attainable rate" not in text
    assert dict(describe_method(found))["not judged"].startswith("conv2d")


def test_a_category_is_judged_by_the_time_with_a_ceiling() -> None:
    little = replace(CONV, operator="conv_of_tomorrow", in_model_s=0.005, flops=None)
    found = answer(breakdown(primitives=(CONV, little)))
    assert found.shares[0].fraction == found.primitives[0].fraction
    much = replace(little, in_model_s=0.02)
    assert answer(breakdown(primitives=(CONV, much))).shares[0].fraction is None


def test_without_ceilings_nothing_is_judged_and_the_command_is_suggested() -> None:
    found = answer(ceilings=None)
    assert {each.fraction for each in found.primitives} == {None}
    assert any("doctor --ceilings" in sentence for sentence in summarize_answer(found))
    assert "corewise doctor --ceilings" in [command for command, _ in suggest_commands(found)]


@pytest.mark.parametrize(
    ("params", "dtype"), [({"float32_precision": "bf16"}, "bfloat16"), ({"device": "cuda"}, "tf32")]
)
def test_float32_is_judged_by_the_format_it_is_computed_in(params: dict[str, str], dtype: str) -> None:
    figures = tuple(
        replace(each, dtype=dtype, best=400.0, median=400.0, device=params.get("device", "cpu"), gpu=0)
        if each.is_product
        else replace(each, device=params.get("device", "cpu"), gpu=0)
        for each in CEILINGS.figures
    )
    conv = answer(ceilings=replace(CEILINGS, figures=figures), **params).primitives[0]
    assert conv.ceiling_s == pytest.approx(4 * 0.8e9 / 400e9)


def test_the_summary_says_what_takes_most_how_far_from_the_ceiling_and_what_is_lost() -> None:
    most, total, *losses = summarize_answer(answer())
    assert most == ("71 % of the step is convolution; it runs at 45 % of the attainable rate. Then pooling 18 %.")
    assert "81 % of the step" in total
    assert "10 % lies between operators" in total
    assert "outside 90 % to 110 %" in total
    assert "max_pool2d 16x64x112x112: it takes 1.8 times as long as alone, 8.00 ms more per step" in losses[0]
    assert "conv2d mb16ic64ih56oc64oh56kh3ph1: 71.0 ms where arithmetic would allow 32.0 ms" in losses[1]


def test_new_pages_are_named_where_there_are_many() -> None:
    pool = replace(POOL, new_pages=12_000.0, new_pages_s=0.004)
    text = " ".join(summarize_answer(answer(breakdown(primitives=(CONV, pool)))))
    assert "4.00 ms of it, 4.0 %, goes into 12,000 memory pages" in text
    assert "allocator=retain" in text


def test_a_disturbed_machine_is_named_first_and_no_loss_is_reported() -> None:
    first, most, total, *rest = summarize_answer(answer(breakdown(notes=("others used it",), step_s=0.095)))
    assert first.startswith("The machine was not quiet (others used it): shares are approximate")
    assert "of the step is convolution" in most
    assert total.endswith("outside 90 % to 110 %: the machine was not quiet.")
    assert not any("times as long" in sentence or "distance" in sentence for sentence in rest)


# The operators take 0.09 s.
DOUBTFUL = breakdown(step_s=0.08, notes=("others used it",))


def test_a_doubtful_breakdown_says_so_first_and_headlines_no_shares() -> None:
    first, *rest = summarize_answer(answer(DOUBTFUL))
    assert first.startswith("This breakdown is doubtful: its operators took 90.0 ms in the model, longer than")
    assert "others used it" in first
    text = " ".join(rest)
    for claim in ("of the step is", "times as long", "between operators", "distance", "outside"):
        assert claim not in text
    command, why = suggest_commands(answer(DOUBTFUL))[0]
    assert command.endswith("--set threads=2 --rounds 4")
    assert why == "once the machine is quiet"


def test_the_json_says_whether_the_sum_is_within_whether_it_was_disturbed_and_nothing_negative() -> None:
    exported = answer(DOUBTFUL).to_json()
    assert (exported["within"], exported["disturbed"], exported["doubtful"]) == (None, True, True)
    assert exported["between_operators_s"] is None
    assert exported["primitives"][0]["share"] == pytest.approx(0.071 / 0.08)
    exported = answer().to_json()
    assert (exported["within"], exported["disturbed"], exported["doubtful"]) == (False, False, False)


def test_neither_terminal_nor_page_shows_shares_of_a_doubtful_breakdown() -> None:
    out = StringIO()
    draw_answer(Console(file=out, width=200), answer(DOUBTFUL), False)
    text = out.getvalue()
    # This is the share of the convolution.
    assert "89 %" not in text
    assert "█" not in text
    [part] = build_primitives_report(answer(DOUBTFUL)).studies
    work, every = part.tables
    assert {row[4] for row in work.rows[:-1]} == {None}
    place = [column.key for column in every.columns].index("share")
    assert {row[place] for row in every.rows} == {None}
    assert "doubtful" in part.charts[0].caption


def test_a_primitive_that_computes_something_else_alone_is_named() -> None:
    wrong = replace(POOL, alone_s=None, alone_best_s=None, is_wrong_alone=True, why_not_alone="it differs")
    text = " ".join(summarize_answer(answer(breakdown(primitives=(CONV, wrong)))))
    assert "max_pool2d 16x64x112x112 is not timed alone and counts with its time in the model: it differs." in text


def test_a_sum_within_its_bounds_is_not_excused() -> None:
    found = answer(breakdown(primitives=(replace(CONV, alone_s=0.085), POOL)))
    assert found.is_within
    assert "outside" not in summarize_answer(found)[1]


def test_the_next_command_changes_the_layout_of_convolutions_first() -> None:
    commands = [command for command, _ in suggest_commands(answer())]
    assert commands == [
        "corewise primitives resnet18 --mode infer --batch 16 --set threads=2 --set memory_format=channels_last",
        "corewise tune resnet18 --mode infer --batch 16",
    ]
    again = [command for command, _ in suggest_commands(answer(memory_format="channels_last"))]
    assert again == ["corewise tune resnet18 --mode infer --batch 16"]


def test_much_time_between_operators_calls_for_compilation() -> None:
    found = answer(breakdown(primitives=(replace(CONV, in_model_s=0.05),)), memory_format="channels_last")
    [(_, why)] = suggest_commands(found)
    assert why == "50 % lies between operators; compilation may fuse them"


def test_the_json_holds_every_figure() -> None:
    exported = json.loads(json.dumps(answer().to_json()))
    assert exported["sum_over_step"] == pytest.approx(0.081001 / 0.1)
    assert exported["between_operators_s"] == pytest.approx(0.1 - 0.090001)
    assert exported["primitives"][0]["fraction_of_ceiling"] == pytest.approx(0.032 / 0.071)
    assert exported["primitives"][0]["problem"] == "mb16ic64ih56oc64oh56kh3ph1"
    assert [each["category"] for each in exported["shares"]][-1] == "between operators"
    assert "breakdown" not in exported["params"]


@pytest.mark.parametrize("show_all", [False, True])
def test_the_terminal_shows_the_table_the_sums_and_the_sentences(show_all: bool) -> None:
    out = StringIO()
    draw_answer(Console(file=out, width=200), answer(), show_all)
    text = out.getvalue()
    for word in ("mb16ic64ih56oc64oh56kh3ph1", "1.80", "of ceiling", "between operators", "the step", "to try next"):
        assert word in text
    assert ("not run alone: item" in text) is show_all


@pytest.mark.parametrize(("in_model_s", "is_explained"), [(0.071, False), (0.016, True)])
def test_a_fraction_above_the_ceiling_is_explained(in_model_s: float, is_explained: bool) -> None:
    out = StringIO()
    # The ceiling is 0.032 s.
    found = answer(breakdown(primitives=(replace(CONV, in_model_s=in_model_s),)))
    draw_answer(Console(file=out, width=200), found, False)
    assert ("above 100 %, compute-bound" in out.getvalue()) is is_explained
    # The convolution is limited by computing.
    assert "was in the cache" not in out.getvalue()


def test_a_fraction_above_the_ceiling_of_memory_is_laid_to_the_cache() -> None:
    out = StringIO()
    # The ceiling is 0.002 s.
    found = answer(breakdown(primitives=(replace(POOL, in_model_s=0.001),)))
    draw_answer(Console(file=out, width=200), found, False)
    assert "above 100 %: the data was in cache" in out.getvalue()
    assert "limited by computing" not in out.getvalue()


@pytest.mark.parametrize("is_busy", [False, True])
def test_ceilings_of_a_busy_machine_are_said_to_be_too_low(is_busy: bool) -> None:
    found = replace(answer(), ceilings_are_busy=is_busy)
    assert ("measured on a busy machine. They are too low" in " ".join(summarize_answer(found))) is is_busy
    assert found.to_json()["ceilings_are_busy"] is is_busy


def test_time_between_operators_is_never_shown_as_negative() -> None:
    out = StringIO()
    found = answer(breakdown(primitives=(replace(CONV, in_model_s=0.12),)))
    draw_answer(Console(file=out, width=200), found, False)
    assert "-2" not in out.getvalue()


def test_the_chart_has_a_bar_for_each_time_that_is_known() -> None:
    rows = build_primitives_chart(answer()).spec["datasets"]["rows"]
    assert [row["series"] for row in rows[:3]] == [IN_MODEL, ALONE, CEILING]
    assert rows[0]["ms"] == pytest.approx(71.0)
    # One of the four primitives does not run alone.
    assert sum(row["series"] == ALONE for row in rows) == 3
    assert {row["series"] for row in build_primitives_chart(answer(ceilings=None)).spec["datasets"]["rows"]} == {
        IN_MODEL,
        ALONE,
    }


def test_primitives_of_one_label_are_drawn_apart() -> None:
    found = answer(breakdown(primitives=(CONV, replace(CONV, parameters="padding 2"))))
    rows = build_primitives_chart(found).spec["datasets"]["rows"]
    assert len({row["name"] for row in rows}) == 2


def test_the_page_holds_the_sentences_and_both_tables() -> None:
    report = build_primitives_report(answer())
    [part] = report.studies
    assert part.answers[0] == report.summary[0]
    work, every = part.tables
    assert work.rows[-1][:3] == ["the step", None, 0.1]
    assert all(len(row) == len(every.columns) for row in every.rows)


def test_the_method_has_the_subtracted_overhead_and_the_cache() -> None:
    method = dict(describe_method(answer()))
    assert "1.0 µs" in method["in the model"]
    assert "32 MiB" in method["alone"]
    assert method["not run alone"].startswith("item")
    assert "events" in dict(describe_method(answer(breakdown(device="cuda"))))["in the model"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.714, "71 %"), (0.0, "0 %"), (0.016, "1.6 %"), (1.05, "105 %"), (-0.14, "-14 %")]
)
def test_shares_are_rounded_for_reading(share: float, text: str) -> None:
    assert format_share(share) == text
