"""The answer in words and as HTML, from made-up results."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from corewise.cli.launch_options import read_words
from corewise.spec.errors import UserError
from corewise.tuner.durations import read_duration, spoken
from corewise.tuner.result import Side, Step, Tried, TuneResult
from corewise.tuner.space import LeftOut
from corewise.tuner.words import answer_text, headline, latency_front, latency_points, launch_line

DEFAULT = Side(
    params={"processes": 1}, words="default", throughput=18.3, interval=(18.1, 18.5), latency_s=3.5
)
BEST = Side(
    params={"processes": 8},
    words="8×2, channels_last",
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
    ladder=(Step("channels_last", replace(DEFAULT, throughput=30.0), 1.64, (1.6, 1.7), 1.64),),
    tied=(Tried("4×4", {}, "tied", 2.1, 38.9, 1.7),),
    tried=(
        Tried("default", {}, "default", 1.0, 18.3, 3.5),
        Tried("batch 128", {}, "latency", 2.6, 47.0, 5.0),
        Tried("jemalloc <x>", {}, "rejected", 0.0, 0.0, 0.0, reason="wrong numbers: error 0.5"),
        Tried("jemalloc <y>", {}, "rejected", 0.0, 0.0, 0.0, reason="wrong numbers: error 0.5"),
        Tried("8×2, channels_last", {}, "won", 2.13, 39.0, 1.6),
    ),
    left_out=(LeftOut("bfloat16", "fewer digits; allow it with --allow lower-precision"),),
    code={"memory_format: channels_last": "model = model.to(memory_format=torch.channels_last)"},
    output="tuned.yaml",
    seconds=200,
)


@pytest.mark.parametrize(
    "told",
    [
        "8×2, channels_last: 2.13× (2.09 to 2.17) as fast as the default.",
        "18.3 (18.1 to 18.5)",
        "3.00 GiB",
        "+ channels_last",
        "1.64× (1.60 to 1.70)",
        "4×4 (0.99× the best)",
        "jemalloc <x>; jemalloc <y>: wrong numbers: error 0.5",
        "bfloat16: fewer digits; allow it with --allow lower-precision",
        "model = model.to(memory_format=torch.channels_last)",
        "corewise launch --config tuned.yaml -- python infer.py",
        "env OMP_NUM_THREADS=2 python worker run trial.json",
        "its latency is worse than the default's",
        "5 settings started, 3 min 20 s",
    ],
)
def test_the_text_tells(told: str) -> None:
    assert told in answer_text(RESULT)


def test_no_difference_is_said_plainly() -> None:
    text = answer_text(replace(RESULT, verdict="no difference", best=DEFAULT, ladder=(), code={}))
    assert "No difference: nothing that was tried is faster" in text
    assert "corewise launch" not in text
    assert "tuned.yaml holds the default's settings" in text


def test_no_difference_is_not_claimed_where_nothing_was_tried() -> None:
    alone = replace(RESULT, verdict="no difference", best=DEFAULT, tried=RESULT.tried[:1])
    assert headline(alone).startswith("No difference")  # there was nothing to try
    assert headline(replace(alone, finished=False)).startswith("Nothing but the default was tried")
    some = replace(RESULT, verdict="no difference", best=DEFAULT, finished=False)
    told = (
        "No difference so far: time was enough for 2 other settings, of which none is faster than the default"
    )
    assert headline(some) == f"{told}."  # the rejected ones say nothing of speed
    assert headline(replace(some, has_late=True)) == f"{told} at a latency that is no worse."
    refused = replace(
        some, tried=tuple(each for each in some.tried if each.outcome in ("default", "rejected"))
    )
    assert "nothing but the default runs" in headline(refused)


def test_the_error_of_fewer_digits_is_told_also_where_they_did_not_win() -> None:
    assert "Fewer digits" not in answer_text(RESULT)
    short = Tried("bfloat16", {"dtype": "bfloat16"}, "lost", 0.8, 14.0, 4.0, check_error=0.004)
    text = answer_text(replace(RESULT, tried=(*RESULT.tried, short)))
    assert re.search(r"Fewer digits, and what they cost\n.*\n +bfloat16 +0\.80× +4\.0e-03", text)


def test_a_ladder_of_one_step_with_several_knobs_does_not_claim_to_tell_them_apart() -> None:
    together = replace(RESULT.ladder[0], words="8×2, channels_last")
    text = answer_text(replace(RESULT, ladder=(together,)))
    assert "What all knobs gave together: no time was left for one at a time" in text
    assert "one at a time" in answer_text(RESULT)


def test_an_unconfirmed_result_says_so() -> None:
    assert "not confirmed by fresh runs" in answer_text(replace(RESULT, verdict="unconfirmed"))


def test_the_page_shows_the_ladder_and_escapes_what_it_quotes() -> None:
    html = RESULT._repr_html_()
    assert "<svg" in html
    assert "jemalloc &lt;x&gt;" in html
    assert "<script" not in html


def test_a_notebook_shows_the_error_and_the_compile_time_beside_the_speed() -> None:
    lossy = replace(BEST, check_error=0.031, compile_s=42.0)
    table = replace(RESULT, best=lossy)._repr_html_().partition("</table>")[0]
    assert "<th>error</th>" in table
    assert "3.1e-02" in table
    assert "42.0 s" in table
    assert "GPU memory" not in table


def test_the_longest_words_of_a_ladder_are_drawn_within_the_picture() -> None:
    words = "1×8, channels_last, execution compile, freezing full, allocator tcmalloc, bind core"
    html = replace(RESULT, ladder=(replace(RESULT.ladder[0], words=words),))._repr_html_()
    drawn = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="end"', html)]
    assert min(drawn) > 6 * len(words)


def test_json_has_the_names_others_rely_on() -> None:
    values = json.loads(json.dumps(RESULT.to_json()))
    assert {"default", "best", "speedup", "tied", "trials", "seconds"} <= set(values)
    assert {"params", "throughput", "interval"} <= set(values["best"])
    assert values["best"]["interval"] == [38.5, 39.4]
    assert values["trials"] == 5


def test_the_front_of_latency_holds_what_nothing_beats_in_both() -> None:
    front = latency_front(latency_points(RESULT))
    assert [each.words for each in front] == ["8×2, channels_last", "batch 128"]
    assert all(each.is_raced for each in front)


def test_latency_is_that_of_fresh_runs_where_there_are_any() -> None:
    fresh = replace(BEST, over_default=2.2, latency_s=1.75)
    points = {each.words: each for each in latency_points(replace(RESULT, measured=(DEFAULT, fresh)))}
    assert (points[BEST.words].ratio, points[BEST.words].latency_s) == (2.2, 1.75)
    assert [each.words for each in points.values() if each.is_raced] == ["batch 128"]
    assert "by short samplings only" in answer_text(replace(RESULT, measured=(DEFAULT, fresh)))


def test_of_a_script_neither_batch_nor_latency_is_told() -> None:
    script = replace(RESULT, name="python train.py", mode="script", command="python train.py", unit="runs/s")
    html = script._repr_html_()
    assert "batch 64" not in html
    assert "latency" not in html.partition("<details>")[0]
    assert "runs/s" in html


def test_the_heading_tells_what_sets_a_tuning_apart() -> None:
    asked = replace(RESULT, asked=("batch 64", "image_size 32"))
    assert answer_text(asked).startswith("resnet50 train, batch 64, image_size 32, on 16 cores")
    assert "image_size 32" in asked._repr_html_()


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("90s", 90), ("1h30m", 5400), ("45", 45), ("2 min", 120), (1.5, 1.5)]
)
def test_durations_are_read_as_people_write_them(text: str | float, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5", "0", "10m later", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        read_duration(text)


def test_durations_are_said_in_two_units() -> None:
    assert [spoken(each) for each in (0.5, 45, 200, 7500)] == ["0.5 s", "45 s", "3 min 20 s", "2 h 5 min"]


def test_what_could_not_be_told_apart_is_not_said_to_be_equal() -> None:
    text = answer_text(replace(RESULT, verdict="no difference", is_undecided=True, best=DEFAULT, ladder=()))
    assert "the runs scatter too much to tell" in text
    assert "nothing that was tried is faster" not in text


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
def test_the_command_to_type_works_with_and_without_a_file(
    output: str, params: dict[str, object], line: str
) -> None:
    assert launch_line(replace(RESULT, output=output, best=replace(BEST, params=params))) == line
    read_words(shlex.split(line)[2:])


def test_the_command_of_a_script_sets_its_loader_workers() -> None:
    best = replace(BEST, params={"processes": 1, "threads": 2, "loader_workers": 4})
    variables = {"COREWISE_LOADER_WORKERS": "4"}
    script = replace(
        RESULT, mode="script", command="python mine.py", output="", best=best, environment=variables
    )
    assert launch_line(script).endswith("--env COREWISE_LOADER_WORKERS=4 -- python mine.py")


def test_a_setting_stands_once_in_the_table_of_a_notebook() -> None:
    def rows(result: TuneResult) -> list[str]:
        return re.findall(r"<tr><td>(.*?)</td>", result._repr_html_())

    hand = replace(DEFAULT, words="channels_last")
    assert rows(replace(RESULT, hand=hand)) == ["default", "by hand", "best"]
    assert rows(replace(RESULT, hand=BEST)) == ["default", "best"]
    assert rows(replace(RESULT, verdict="no difference", best=DEFAULT)) == ["default"]


def test_the_command_without_a_file_sets_what_was_set_for_every_start() -> None:
    alone = replace(RESULT, output="", environment={"MY_FLAG": "a b"})
    assert launch_line(alone).startswith("corewise launch --processes 8 --env 'MY_FLAG=a b' ")
    assert read_words(shlex.split(launch_line(alone))[2:]).environment == {"MY_FLAG": "a b"}
    assert alone.to_json()["environment"] == {"MY_FLAG": "a b"}


def test_an_error_of_nought_is_told_and_none_where_nothing_was_checked() -> None:
    def last_cell(default: Side, mode: str = "infer") -> str:
        text = answer_text(replace(RESULT, default=default, best=replace(BEST, check_error=0.5), mode=mode))
        return next(line for line in text.splitlines() if line.startswith("  default ")).split("  ")[-1]

    assert last_cell(replace(DEFAULT, check_error=0.0)) == "0.0e+00"
    assert last_cell(replace(DEFAULT, check_error=0.0), "script") == "0.0e+00"
    assert last_cell(DEFAULT) == "not checked"
    assert last_cell(DEFAULT, "script") == "-"
