"""What a report says in sentences is true of its figures."""

import re
from dataclasses import replace
from typing import Any

import pytest
from made_trials import MACHINE, PARAMS, REAL_STORE, around, failed, group_of, scaling, trial

from corewise.report.answers import answers_of
from corewise.report.gather import build_report
from corewise.report.groups import Source, groups_of
from corewise.report.standing import standing_of
from corewise.spec.record import Record


def answers(*records: Record) -> list[str]:
    group = group_of(*records)
    return answers_of(group, standing_of(group))


def test_the_fastest_is_named_with_its_interval() -> None:
    first = answers(*scaling())[0]
    assert re.fullmatch(
        r"ResNet-50 training is fastest with 16 threads: 55\.0\d? images/s \(5\d\.\d+ to 5\d\.\d+\)\.", first
    )


def test_what_cannot_be_told_from_the_fastest_is_said_beside_it() -> None:
    told = answers(*scaling()[:4], trial(around(50.2, 0.1), params={"threads": 16}))
    assert told[0].startswith("ResNet-50 training ran fastest with 16 threads: ")
    assert told[0].endswith("; not told apart from it: 8 threads.")


def test_where_a_wider_trial_is_not_told_from_a_narrower_one_no_gain_is_shown() -> None:
    rates = {1: 10.0, 2: 19.9, 4: 20.0}
    told = answers(*(trial(around(rate, 0.1), params={"threads": t}) for t, rate in rates.items()))
    assert told[1] == (
        "No gain is shown for ResNet-50 training beyond 2 threads: 4 threads are not told apart from them."
    )


def test_nothing_is_called_fastest_when_no_difference_is_shown() -> None:
    told = answers(*(trial(around(20 + 0.01 * t, 0.2), params={"threads": t}) for t in (1, 2, 4)))
    assert told[0].startswith("No setting of ResNet-50 training is shown to be fastest")
    assert "none of the 2 others is told apart" in told[0]


def test_a_single_run_each_says_nothing_about_which_is_fastest() -> None:
    told = answers(*(trial([10.0 * t], params={"threads": t}) for t in (1, 2, 4)))
    assert "in a single run. Nothing can be said about which setting is fastest" in told[0]
    assert not any("×" in sentence for sentence in told)


def test_a_lone_trial_is_not_called_fastest() -> None:
    assert answers(trial(20.0))[0].startswith(
        "ResNet-50 training gives 20.0 images/s (19.9 to 20.1) with 1 process × 4 threads at batch 16"
    )
    assert answers(trial([20.0]))[0].endswith("from a single run: nothing says how sure that is.")


def test_every_speed_up_names_its_base_and_has_an_interval() -> None:
    told = [sentence for sentence in answers(*scaling()) if "× (" in sentence]
    assert told[0].startswith("16 threads are 5.50× (")
    assert "as fast as 1 thread, an efficiency of 0.34 (" in told[0]


def test_the_width_from_which_more_threads_hardly_pay_is_named() -> None:
    assert answers(*scaling())[1] == (
        "More than 4 threads hardly pay for ResNet-50 training: on average an added one gives less than half "
        "of what 1 thread gives."
    )


def test_noise_claims_no_such_width() -> None:
    near_half = {1: 10.0, 2: 14.5, 4: 23.5}  # each added thread gives a little less than half
    told = answers(*(trial(around(rate, 0.5), params={"threads": t}) for t, rate in near_half.items()))
    assert not any("hardly pay" in sentence for sentence in told)
    assert told[1] == (
        "Where more threads stop paying for ResNet-50 training is not shown: 4 threads, the most tried, are "
        "fastest."
    )


def test_more_threads_that_are_slower_are_called_so() -> None:
    ideal = {1: 10.0, 2: 20.0, 4: 40.0}
    trials = [trial(rate, params={"threads": t}) for t, rate in ideal.items()]
    told = answers(*trials[:2], trial(12.0, params={"threads": 4}))
    assert told[1].startswith("More than 2 threads ")  # hardly pay, or are slower
    told = answers(trials[0], trial(6.0, params={"threads": 2}))
    assert told[1].startswith("More than 1 thread is slower for ResNet-50 training: 2 threads give 60 % (")
    assert told[1].endswith(") of the throughput of 1 thread.")


def test_a_split_into_processes_is_compared_with_one_process_on_as_many_cores() -> None:
    shapes = {(1, 16): 20.0, (4, 4): 26.2, (16, 1): 15.0}
    told = answers(*(trial(r, params={"processes": p, "threads": t}) for (p, t), r in shapes.items()))
    assert told[0].startswith("ResNet-50 training is fastest with 4 processes × 4 threads: 26.2 images/s (")
    assert told[1].startswith("4 processes × 4 threads gives 1.31× (")
    assert told[1].endswith("the throughput of 1 process × 16 threads.")
    assert told[2].startswith("16 processes × 1 thread gives least: 57 % (")


def test_a_choice_is_weighed_where_the_fastest_is_and_over_all_pairs() -> None:
    trials = [
        trial(rate * threads, params={"math": math, "threads": threads})
        for math, rate in (("vendor", 6.0), ("vanilla", 2.0))
        for threads in (1, 2)
    ]
    told = answers(*trials, trial(2.5, params={"math": "vanilla", "threads": 4}))
    assert any(
        s.startswith("With vendor math the throughput is 3.00× (")
        and s.endswith("that with vanilla math, with 2 threads.")
        for s in told
    )
    assert any(
        s.startswith("In the 2 pairs of settings that differ in nothing else, vendor math over vanilla math")
        for s in told
    )


def test_a_choice_that_makes_no_difference_is_not_praised() -> None:
    told = answers(
        trial(around(20, 0.2), params={"allocator": "retain"}), trial(around(19.9, 0.2), params={})
    )
    assert any("allocator retain and allocator default are not told apart" in sentence for sentence in told)


def test_memory_over_the_batch_is_told() -> None:
    told = answers(trial(10.0, params={"batch": 4}), trial(20.0, params={"batch": 64}))
    assert "Peak memory goes from 992 MiB at batch 4 to 1.53 GiB at batch 64." in told


def test_disturbed_runs_of_the_fastest_cast_doubt_on_it() -> None:
    best = trial(60.0, params={"threads": 16})
    runs = [{**run, "disturbances": ["other processes used 0.93 s of CPU"]} for run in best.runs]
    told = answers(*scaling()[:4], replace(best, runs=tuple(runs)))
    assert told[2] == (
        "Read this figure of ResNet-50 training with care: its runs were disturbed by other load."
    )
    again = replace(best, runs=tuple(runs), disturbed=tuple(runs[:1]))
    assert answers(*scaling()[:4], again)[2].endswith("by other load even when repeated.")


def test_an_interval_wider_than_asked_for_casts_doubt_on_the_fastest() -> None:
    told = answers(trial(10.0, params={"threads": 1}), trial(around(40.0, 0.4), params={"threads": 2}))
    assert re.fullmatch(
        r"Read this figure of ResNet-50 training with care: its interval is ±16 %, not the ±5 % asked for\.",
        told[2],
    )


def test_nothing_is_fastest_among_trials_that_cannot_be_compared() -> None:
    told = answers(
        trial(around(30.0, num=2), params={"batch": 1}),
        *(trial([20.0 - b], params={"batch": b}) for b in (2, 4)),
    )
    assert told[0].startswith("The highest throughput of ResNet-50 training was seen with batch 1: 30.0")
    assert told[0].endswith("which setting is fastest until each has at least two runs.")
    assert not any("fastest with" in sentence or "told apart" in sentence for sentence in told)


def test_the_fastest_is_so_among_those_that_can_be_compared() -> None:
    told = answers(*scaling()[2:], trial([12.0], params={"threads": 2}))
    assert told[0].endswith(", among the 3 settings with two runs or more.")
    assert "1 trial of 4 had a single run and cannot be compared." in told


def test_a_gain_that_one_comparison_shows_and_many_do_not_is_called_so() -> None:
    near = trial(around(20.0, 0.1), params={"batch": 16, "threads": 1})
    best = trial(around(21.1, 0.1), params={"batch": 32, "threads": 1})
    alone = answers(near, best)
    assert alone[0].startswith("ResNet-50 training is fastest with batch 32")
    slower = [trial(1.0 * b, params={"batch": b, "threads": 1}) for b in range(1, 16)]
    among = answers(near, best, *slower)
    assert among[0].endswith("; not told apart from it: batch 16.")
    assert any(
        "1.06×" in s and s.endswith("taken alone: among all 17 settings the two are not told apart.")
        for s in among
    )


def test_a_speed_up_that_is_not_shown_is_not_told_as_a_fact() -> None:
    told = answers(
        trial(around(10.0, 1.2), params={"threads": 1}), trial(around(13.8, 1.2), params={"threads": 2})
    )
    assert told[0].endswith("and the other is not told apart from it.")
    assert not any("as fast as" in sentence or "efficiency" in sentence for sentence in told)
    assert any(s.startswith("2 threads and 1 thread are not told apart (1.38× (") for s in told)


def test_sentences_begin_as_sentences_do() -> None:
    pair = [trial(10.0 * t, params={"threads": t, "workload": "matmul", "mode": "infer"}) for t in (1, 2)]
    assert answers(*pair)[0].startswith("Square matrix product inference is fastest")


def test_memory_that_does_not_grow_is_not_said_to_go_anywhere() -> None:
    told = answers(
        *(trial(10.0 * b, params={"batch": b}, metrics={"peak_memory_bytes": 13.3 * 2**20}) for b in (1, 2))
    )
    assert "Peak memory is 13.3 MiB at batch 1 and at batch 2 alike." in told


def test_failures_are_counted() -> None:
    told = answers(*scaling(), failed(params={"batch": 4096}), failed(params={"batch": 8192}))
    assert told[-1] == "2 trials failed: the reasons stand below."


def test_where_nothing_was_measured_the_reason_is_the_answer() -> None:
    [told] = answers(failed(params={"batch": 4}), failed(params={"batch": 8}))
    assert told == (
        "Nothing was measured of ResNet-50 training: 2 trials gave no number, because rank 0 was killed for "
        "want of memory."
    )


def test_two_machines_are_ranked_apart_and_compared_at_their_best() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4", "hostname": "node2"}
    told = answers(*scaling(), *(trial(20.0 * t, params={"threads": t}, machine=other) for t in (1, 2)))
    assert told[0].startswith("On icelake, 16 cores: ResNet-50 training is fastest with 16 threads: 55.0")
    assert any(
        s.startswith("On zen4, 16 cores: ResNet-50 training is fastest with 2 threads: 40.0") for s in told
    )
    assert any(re.match(r"At its best, icelake, 16 cores gives 1\.3[78]× \(", sentence) for sentence in told)


def test_two_stores_of_one_machine_are_kept_apart_by_name() -> None:
    sources = [
        Source(label=f"/data/{name}", name=name, records=scaling(spread))
        for name, spread in (("a", 0.01), ("b", 0.02))
    ]
    [group] = groups_of(sources)
    told = answers_of(group, standing_of(group))
    assert told[0].startswith("In a: ")
    assert any("are not told apart" in sentence and "At their best" in sentence for sentence in told)


@pytest.mark.parametrize(
    "params",
    [
        {"workload": "<script>alert(1)</script>"},
        {"workload": "x" * 5000},
        {"workload": "modèle 模型 \u202e \x1b[31m.py:make"},
        {"math": None},
        {"args.weird": {"a": [1, 2]}},
        {"threads": "all", "processes": None, "batch": "="},
        {"batch": 16.5, "threads": True},
    ],
)
def test_odd_parameters_make_sentences_of_bounded_length(params: dict[str, Any]) -> None:
    records = [
        trial(10.0, params={**params, "memory_format": "a"}),
        trial(20.0, params={**params, "dtype": "b"}),
    ]
    records.append(replace(trial(5.0), params={**PARAMS, **params, "extra": None}))
    for sentence in answers(*records):
        assert len(sentence) < 600
        assert sentence.isprintable()


def test_the_real_store_answers_its_questions() -> None:
    report = build_report([REAL_STORE])
    told = [sentence for part in report.studies for sentence in part.answers]
    assert told[0] == "AlexNet training is fastest with 16 threads at batch 16: 148 images/s (121 to 175)."
    assert told[1].startswith("At batch 16, more than 8 threads hardly pay for AlexNet training: on average ")
    assert told[2].startswith("Read this figure of AlexNet training with care: its runs were disturbed")
    assert "8 threads give 64 % (51 to 77) of the throughput of 16 threads, at batch 16." in told
    assert report.summary[:3] == told[:3]
    assert any(s.startswith("ResNet-50 training ran fastest with 16 threads at batch 16") for s in told)
    assert len(report.summary) == 10
    assert report.summary[0].startswith("AlexNet training is fastest")
