"""Results rendered as text and as HTML."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from tests.launch_parsing import parse_launch

from corewise.analysis.tuning_results import LadderStep, RacedSetting, SettingResult
from corewise.errors import UserError
from corewise.study.durations import format_duration, parse_duration_s
from corewise.tuning.result.result_text import (
    build_conclusion,
    build_launch_line,
    collect_latency_points,
    find_latency_front,
    format_headline,
    render_text,
)
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.rejection_causes import RejectedChoice
from corewise.tuning.search.setting_space import UntriedChoice

DEFAULT = SettingResult(params={"processes": 1}, label="default", throughput=18.3, interval=(18.1, 18.5), latency_s=3.5)
BEST = SettingResult(
    params={"processes": 8},
    label="8×2, channels_last",
    throughput=39.0,
    interval=(38.5, 39.4),
    latency_s=1.6,
    memory_bytes=3 << 30,
    command="env OMP_NUM_THREADS=2 python worker run trial.json",
)
RESULT = TuneResult(
    name="resnet50 train",
    mode="infer",
    batch=64,
    machine="16 cores of a Xeon",
    verdict="faster",
    default=DEFAULT,
    best=BEST,
    speedup=2.13,
    speedup_interval=(2.09, 2.17),
    ladder=(LadderStep("channels_last", replace(DEFAULT, throughput=30.0), 1.64, (1.6, 1.7), 1.64),),
    tied=(RacedSetting("4×4", {}, "tied", 2.1, 38.9, 1.7),),
    tried=(
        RacedSetting("default", {}, "default", 1.0, 18.3, 3.5),
        RacedSetting("batch 128", {}, "latency", 2.6, 47.0, 5.0),
        RacedSetting("jemalloc <x>", {}, "rejected", 0.0, 0.0, 0.0, reason="wrong results: error 0.5"),
        RacedSetting("jemalloc <y>", {}, "rejected", 0.0, 0.0, 0.0, reason="wrong results: error 0.5"),
        RacedSetting("8×2, channels_last", {}, "won", 2.13, 39.0, 1.6),
    ),
    rejected=(
        RejectedChoice("jemalloc <x>; jemalloc <y>", "wrong results: error 0.5"),
        RejectedChoice("freezing full", "torch.fx cannot trace it", 6),
    ),
    left_out=(UntriedChoice("bfloat16", "lower precision; allow it with --allow lower-precision"),),
    code={"memory_format: channels_last": "model = model.to(memory_format=torch.channels_last)"},
    output="tuned.yaml",
    seconds=200,
)


@pytest.mark.parametrize(
    "text",
    [
        "8×2, channels_last: 2.13× (2.09 to 2.17) as fast as the default.",
        "18.3 (18.1 to 18.5)",
        "3.00 GiB",
        "+ channels_last",
        "1.64× (1.60 to 1.70)",
        "4×4 (0.99× the best)",
        "jemalloc <x>; jemalloc <y>: wrong results: error 0.5",
        "freezing full: torch.fx cannot trace it (6 other settings with it not started)",
        "bfloat16: lower precision; allow it with --allow lower-precision",
        "model = model.to(memory_format=torch.channels_last)",
        "corewise launch --config tuned.yaml -- python infer.py",
        "env OMP_NUM_THREADS=2 python worker run trial.json",
        "its latency is worse than the default's",
        "5 settings started, 3 min 20 s",
    ],
)
def test_the_text_contains(text: str) -> None:
    assert text in render_text(RESULT)


def test_no_difference_is_stated_plainly() -> None:
    text = render_text(replace(RESULT, verdict="no difference", best=DEFAULT, ladder=(), code={}))
    assert "No difference: no setting that was tried is faster" in text
    assert "corewise launch" not in text
    assert "tuned.yaml (the default's settings)" in text
    assert "Type:     no change: python infer.py" in text


def test_no_difference_is_not_claimed_if_nothing_was_tried() -> None:
    alone = replace(RESULT, verdict="no difference", best=DEFAULT, tried=RESULT.tried[:1])
    # There was nothing to try.
    assert format_headline(alone).startswith("No difference")
    assert format_headline(replace(alone, finished=False)).startswith("Only the default was tried")
    some = replace(RESULT, verdict="no difference", best=DEFAULT, finished=False)
    headline = "No difference so far: the budget allowed 2 other settings; none is faster than the default"
    # Rejected settings do not count.
    assert format_headline(some) == f"{headline}."
    assert format_headline(replace(some, has_worse_latency=True)) == f"{headline} without a worse latency."
    refused = replace(some, tried=tuple(each for each in some.tried if each.outcome in ("default", "rejected")))
    assert "only the default ran" in format_headline(refused)


def test_the_error_of_reduced_precision_is_shown_even_if_it_did_not_win() -> None:
    assert "Reduced precision" not in render_text(RESULT)
    complete = replace(RESULT.default, params={**RESULT.default.params, "dtype": "float32"})
    assert "Reduced precision" not in render_text(replace(RESULT, default=complete)), "tried settings are partial"
    reduced = RacedSetting("bfloat16", {"dtype": "bfloat16"}, "lost", 0.8, 14.0, 4.0, check_error=0.004)
    text = render_text(replace(RESULT, tried=(*RESULT.tried, reduced)))
    assert re.search(r"Reduced precision: gain and error\n.*\n +bfloat16 +0\.80× +4\.0e-03", text)


def test_a_ladder_step_with_several_knobs_does_not_claim_to_separate_them() -> None:
    together = replace(RESULT.ladder[0], label="8×2, channels_last")
    text = render_text(replace(RESULT, ladder=(together,)))
    assert "Gain of all knobs together: the budget did not allow measuring them one at a time" in text
    assert "Gain of each knob" in render_text(RESULT)


def test_an_unconfirmed_result_says_so() -> None:
    assert "not confirmed by fresh runs" in render_text(replace(RESULT, verdict="unconfirmed"))


def test_the_last_five_lines_say_what_to_type_why_and_how_sure() -> None:
    last = render_text(replace(RESULT, report="tuned.html")).splitlines()[-5:]
    assert last == [
        "Type:         corewise launch --config tuned.yaml -- python infer.py",
        "In your code: model = model.to(memory_format=torch.channels_last)",
        "Why:          8×2, channels_last: 2.13× (2.09 to 2.17) as fast as the default.",
        "How sure:     39.0 samples/s (95 % interval 38.5–39.4) against 18.3 samples/s "
        "(95 % interval 18.1–18.5), in fresh interleaved processes.",
        "Files:        tuned.yaml (the settings), tuned.html (the charts)",
    ]


def test_disturbed_runs_are_part_of_how_sure_the_answer_is() -> None:
    disturbed = replace(RESULT, is_disturbed=True)
    assert "processes. Other load disturbed them." in render_text(disturbed).splitlines()[-2]


def test_an_unconfirmed_answer_ends_with_how_to_confirm_it() -> None:
    last = render_text(replace(RESULT, verdict="unconfirmed")).splitlines()[-2]
    assert last.startswith("How sure:     not yet")
    assert last.endswith("Run the same command to resume.")


def test_a_notebook_shows_what_to_type_first() -> None:
    html = RESULT._repr_html_()
    assert "<th>Type</th><td>corewise launch --config tuned.yaml -- python infer.py</td>" in html
    assert html.index("<th>Type</th>") < html.index("<svg")


def test_the_page_shows_the_ladder_and_escapes_what_it_quotes() -> None:
    html = RESULT._repr_html_()
    assert "<svg" in html
    assert "jemalloc &lt;x&gt;" in html
    assert "<script" not in html


def test_a_notebook_shows_error_and_compile_time_with_the_throughput() -> None:
    lossy = replace(BEST, check_error=0.031, compile_s=42.0)
    table = replace(RESULT, best=lossy)._repr_html_().split("</table>")[1]
    assert "<th>error</th>" in table
    assert "3.1e-02" in table
    assert "42.0 s" in table
    assert "GPU memory" not in table


def test_the_longest_label_of_a_ladder_fits_into_the_picture() -> None:
    label = "1×8, channels_last, execution compile, freezing full, allocator tcmalloc, bind core"
    html = replace(RESULT, ladder=(replace(RESULT.ladder[0], label=label),))._repr_html_()
    drawn = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="end"', html)]
    assert min(drawn) > 6 * len(label)


def test_json_has_the_names_others_rely_on() -> None:
    values = json.loads(json.dumps(RESULT.to_json()))
    assert {"default", "best", "speedup", "tied", "trials", "seconds"} <= set(values)
    assert {"params", "throughput", "interval"} <= set(values["best"])
    assert values["best"]["interval"] == [38.5, 39.4]
    assert values["trials"] == 5


def test_the_latency_front_holds_undominated_settings() -> None:
    front = find_latency_front(collect_latency_points(RESULT))
    assert [each.label for each in front] == ["8×2, channels_last", "batch 128"]
    assert all(each.is_raced for each in front)


def test_latency_comes_from_fresh_runs_if_there_are_any() -> None:
    fresh = replace(BEST, over_default=2.2, latency_s=1.75)
    points = {each.label: each for each in collect_latency_points(replace(RESULT, measured=(DEFAULT, fresh)))}
    assert (points[BEST.label].ratio, points[BEST.label].latency_s) == (2.2, 1.75)
    assert [each.label for each in points.values() if each.is_raced] == ["batch 128"]
    assert "from short samples only" in render_text(replace(RESULT, measured=(DEFAULT, fresh)))


def test_neither_batch_nor_latency_of_a_script_is_shown() -> None:
    script = replace(RESULT, name="python train.py", mode="script", command="python train.py", unit="runs/s")
    html = script._repr_html_()
    assert "batch 64" not in html
    assert "latency" not in html.partition("<details>")[0]
    assert "runs/s" in html


def test_the_heading_shows_the_options_of_a_tuning() -> None:
    asked = replace(RESULT, asked=("batch 64", "image_size 32"))
    assert render_text(asked).startswith("resnet50 train, batch 64, image_size 32, on 16 cores")
    assert "image_size 32" in asked._repr_html_()


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("90s", 90), ("1h30m", 5400), ("45", 45), ("2 min", 120), (1.5, 1.5)]
)
def test_durations_are_read_as_people_write_them(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5", "0", "10m later", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        parse_duration_s(text, "--budget")


def test_durations_are_formatted_in_two_units() -> None:
    assert [format_duration(each) for each in (0.5, 45, 200, 7500)] == ["0.5 s", "45 s", "3 min 20 s", "2 h 5 min"]


def test_an_undecided_result_is_not_called_equal() -> None:
    text = render_text(replace(RESULT, verdict="no difference", is_undecided=True, best=DEFAULT, ladder=()))
    assert "the runs are too noisy to decide" in text
    assert "no setting that was tried is faster" not in text


@pytest.mark.parametrize(
    ("output", "params", "line"),
    [
        ("my file.yaml", {}, "corewise launch --config 'my file.yaml' -- python infer.py"),
        (
            "",
            {"processes": 8, "threads": 2, "bind": "rank", "allocator": "tcmalloc"},
            "corewise launch --processes 8 --threads 2 --allocator tcmalloc --replicas -- python infer.py",
        ),
        (
            "",
            {"processes": 1, "threads": 2, "bind": "none"},
            "corewise launch --threads 2 --bind none -- python infer.py",
        ),
    ],
)
def test_the_command_to_type_works_with_and_without_a_file(output: str, params: dict[str, object], line: str) -> None:
    assert build_launch_line(replace(RESULT, output=output, best=replace(BEST, params=params))) == line
    parse_launch(shlex.split(line)[2:])


def test_the_command_of_a_script_sets_its_loader_workers() -> None:
    best = replace(BEST, params={"processes": 1, "threads": 2, "loader_workers": 4})
    variables = {"COREWISE_LOADER_WORKERS": "4"}
    script = replace(RESULT, mode="script", command="python mine.py", output="", best=best, environment=variables)
    assert build_launch_line(script).endswith("--env COREWISE_LOADER_WORKERS=4 -- python mine.py")


def test_a_setting_appears_once_in_the_table_of_a_notebook() -> None:
    def rows(result: TuneResult) -> list[str]:
        return re.findall(r"<tr><td>(.*?)</td>", result._repr_html_())

    hand = replace(DEFAULT, label="channels_last")
    assert rows(replace(RESULT, hand=hand)) == ["default", "by hand", "best"]
    assert rows(replace(RESULT, hand=BEST)) == ["default", "best"]
    assert rows(replace(RESULT, verdict="no difference", best=DEFAULT)) == ["default"]


def test_the_command_without_a_file_sets_the_environment() -> None:
    alone = replace(RESULT, output="", environment={"MY_FLAG": "a b"})
    assert build_launch_line(alone).startswith("corewise launch --processes 8 --env 'MY_FLAG=a b' ")
    assert parse_launch(shlex.split(build_launch_line(alone))[2:]).environment == {"MY_FLAG": "a b"}
    assert alone.to_json()["environment"] == {"MY_FLAG": "a b"}


def test_an_error_of_zero_is_shown_and_none_without_a_check() -> None:
    def last_cell(default: SettingResult, mode: str = "infer") -> str:
        text = render_text(replace(RESULT, default=default, best=replace(BEST, check_error=0.5), mode=mode))
        return next(line for line in text.splitlines() if line.startswith("  default ")).split("  ")[-1]

    assert last_cell(replace(DEFAULT, check_error=0.0)) == "0.0e+00"
    assert last_cell(replace(DEFAULT, check_error=0.0), "script") == "0.0e+00"
    assert last_cell(DEFAULT) == "not checked"
    assert last_cell(DEFAULT, "script") == "-"


def test_a_result_that_the_budget_cut_says_what_to_give_and_recommends_nothing() -> None:
    cut = replace(RESULT, verdict="unconfirmed", is_cut=True, finished=False, least_budget_s=90.0, output="")
    assert format_headline(cut) == (
        "Not confirmed: 8×2, channels_last was about 2.13× the default in the search, but the budget left too little "
        "time for fresh runs; give --budget 90s or more."
    )
    assert build_conclusion(cut)["Type"] == "no change: python infer.py"
    assert "In your code" not in render_text(cut)
    assert "the budget ended before" in build_conclusion(cut)["How sure"]
    alone = replace(cut, best=DEFAULT, tried=RESULT.tried[:1])
    assert format_headline(alone).startswith("The budget was too short to compare the default with another setting")
    tied = replace(cut, best=DEFAULT)
    assert format_headline(tied).startswith("No difference so far: 2 other settings tried in the search")


def test_reduced_precision_is_shown_only_where_it_was_measured() -> None:
    assert "Reduced precision" not in render_text(RESULT)
    raced = RacedSetting("int8", {"dtype": "int8"}, "won", 3.0, 60.0, 1.0, 0.02)
    assert "Reduced precision" in render_text(replace(RESULT, tried=(*RESULT.tried, raced)))
    rejected = replace(raced, outcome="rejected", throughput=0.0, ratio=0.0)
    assert "Reduced precision" not in render_text(replace(RESULT, tried=(*RESULT.tried, rejected)))
