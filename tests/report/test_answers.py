"""The sentences of a report agree with its figures."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.report.sample_trials import MACHINE, PARAMS, REAL_STORE, around, failed, group_of, scaling, trial

from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.report.answers import describe_group
from corewise.report.report_builder import build_report
from corewise.study.record import Record


def answers(*records: Record) -> list[str]:
    group = group_of(*records)
    return describe_group(group, rank_trials(group))


def test_the_fastest_is_named_with_its_interval() -> None:
    first = answers(*scaling())[0]
    rate = r"55\.0\d? images/s \(95 % interval 5\d\.\d+–5\d\.\d+\)\."
    assert re.fullmatch(f"ResNet-50 training is fastest with 16 threads: {rate}", first)


def test_ties_with_the_fastest_are_named_in_the_headline() -> None:
    sentences = answers(*scaling()[:4], trial(around(50.2, 0.1), params={"threads": 16}))
    assert sentences[0].startswith("ResNet-50 training is fastest with 16 threads: ")
    assert sentences[0].endswith(" No significant difference from 8 threads.")


def test_where_a_wider_trial_ties_with_a_narrower_one_no_gain_is_shown() -> None:
    rates = {1: 10.0, 2: 19.9, 4: 20.0}
    sentences = answers(*(trial(around(rate, 0.1), params={"threads": t}) for t, rate in rates.items()))
    assert sentences[1] == (
        "No gain is shown for ResNet-50 training beyond 2 threads: 4 threads show no significant difference from them."
    )


def test_nothing_is_called_fastest_when_no_difference_is_shown() -> None:
    sentences = answers(*(trial(around(20 + 0.01 * t, 0.2), params={"threads": t}) for t in (1, 2, 4)))
    assert sentences[0].startswith("ResNet-50 training: no setting is significantly faster than the others.")
    assert re.search(r"Highest: 20\.0 images/s \(95 % interval [\d.]+–[\d.]+\) with 4 threads\.$", sentences[0])


def test_a_single_run_each_says_nothing_about_which_is_fastest() -> None:
    sentences = answers(*(trial([10.0 * t], params={"threads": t}) for t in (1, 2, 4)))
    assert "in a single run. This does not show which setting is fastest" in sentences[0]
    assert not any("×" in sentence for sentence in sentences)


def test_a_lone_trial_is_not_called_fastest() -> None:
    assert answers(trial(20.0))[0] == (
        "ResNet-50 training gives 20.0 images/s (95 % interval 19.9–20.1) with 1 process × 4 threads at batch 16."
    )
    assert answers(trial([20.0]))[0].endswith("at batch 16 (a single run, no interval).")


def test_every_speed_up_names_its_base_and_has_an_interval() -> None:
    sentences = [sentence for sentence in answers(*scaling()) if "× (" in sentence]
    assert sentences[0].startswith("16 threads are 5.50× (")
    assert "as fast as 1 thread, an efficiency of 0.34 (" in sentences[0]


def test_the_width_from_which_threads_gain_little_is_named() -> None:
    assert answers(*scaling())[1] == (
        "ResNet-50 training gains little beyond 4 threads: on average an added one gives less than half "
        "of what 1 thread gives."
    )


def test_noise_claims_no_such_width() -> None:
    # Each added thread gives slightly less than half of its share.
    near_half = {1: 10.0, 2: 14.5, 4: 23.5}
    sentences = answers(*(trial(around(rate, 0.5), params={"threads": t}) for t, rate in near_half.items()))
    assert not any("gains little" in sentence for sentence in sentences)
    assert sentences[1] == (
        "Where more threads stop helping ResNet-50 training is unknown: 4 threads, the most tried, are fastest."
    )


def test_more_threads_that_are_slower_are_called_so() -> None:
    ideal = {1: 10.0, 2: 20.0, 4: 40.0}
    trials = [trial(rate, params={"threads": t}) for t, rate in ideal.items()]
    sentences = answers(*trials[:2], trial(12.0, params={"threads": 4}))
    assert sentences[1].startswith(
        ("ResNet-50 training gains little beyond 2 threads", "ResNet-50 training is slower with more than 2 threads")
    )
    sentences = answers(trials[0], trial(6.0, params={"threads": 2}))
    assert sentences[1].startswith("ResNet-50 training is slower with more than 1 thread: 2 threads give 60 % (")
    assert sentences[1].endswith(") of the throughput of 1 thread.")


def test_a_split_into_processes_is_compared_with_one_process_on_as_many_cores() -> None:
    shapes = {(1, 16): 20.0, (4, 4): 26.2, (16, 1): 15.0}
    sentences = answers(*(trial(r, params={"processes": p, "threads": t}) for (p, t), r in shapes.items()))
    assert sentences[0].startswith("ResNet-50 training is fastest with 4 processes × 4 threads: 26.2 images/s (")
    assert sentences[1].startswith("4 processes × 4 threads gives 1.31× (")
    assert sentences[1].endswith("the throughput of 1 process × 16 threads.")
    assert sentences[2].startswith("16 processes × 1 thread is slowest, with 57 % (")


def test_a_choice_is_weighed_where_the_fastest_is_and_over_all_pairs() -> None:
    trials = [
        trial(rate * threads, params={"math": math, "threads": threads})
        for math, rate in (("vendor", 6.0), ("vanilla", 2.0))
        for threads in (1, 2)
    ]
    sentences = answers(*trials, trial(2.5, params={"math": "vanilla", "threads": 4}))
    assert any(
        s.startswith("With vendor math the throughput is 3.00× (")
        and s.endswith("that with vanilla math, with 2 threads.")
        for s in sentences
    )
    assert any(
        s.startswith("In the 2 pairs of settings that differ in nothing else, vendor math over vanilla math")
        for s in sentences
    )


def test_a_choice_that_makes_no_difference_is_not_praised() -> None:
    sentences = answers(trial(around(20, 0.2), params={"allocator": "retain"}), trial(around(19.9, 0.2), params={}))
    assert any(
        "allocator retain and allocator default show no significant difference" in sentence for sentence in sentences
    )


def test_memory_over_the_batch_is_described() -> None:
    sentences = answers(trial(10.0, params={"batch": 4}), trial(20.0, params={"batch": 64}))
    assert "Peak memory grows from 992 MiB at batch 4 to 1.53 GiB at batch 64." in sentences


def test_disturbed_runs_of_the_fastest_cast_doubt_on_it() -> None:
    best = trial(60.0, params={"threads": 16})
    runs = [{**run, "disturbances": ["other processes used 0.93 s of CPU"]} for run in best.runs]
    sentences = answers(*scaling()[:4], replace(best, runs=tuple(runs)))
    assert sentences[2] == "Treat with caution: other load disturbed its runs."
    again = replace(best, runs=tuple(runs), disturbed=tuple(runs[:1]))
    assert answers(*scaling()[:4], again)[2].endswith("disturbed its runs, even when repeated.")


def test_an_interval_wider_than_asked_for_casts_doubt_on_the_fastest() -> None:
    sentences = answers(trial(10.0, params={"threads": 1}), trial(around(40.0, 0.4), params={"threads": 2}))
    assert sentences[2] == "Treat with caution: its interval is ±16 %, the target was ±5 %."


def test_nothing_is_fastest_among_trials_that_cannot_be_compared() -> None:
    sentences = answers(
        trial(around(30.0, num=2), params={"batch": 1}), *(trial([20.0 - b], params={"batch": b}) for b in (2, 4))
    )
    assert sentences[0].startswith("ResNet-50 training reached its highest throughput with batch 1: 30.0")
    assert sentences[0].endswith("This does not show which setting is fastest: each needs at least two runs.")
    assert not any("fastest with" in sentence or "significant" in sentence for sentence in sentences)


def test_the_fastest_is_so_among_those_that_can_be_compared() -> None:
    sentences = answers(*scaling()[2:], trial([12.0], params={"threads": 2}))
    assert sentences[0].endswith(", among the 3 settings with two runs or more.")
    assert "1 trial of 4 had a single run and cannot be compared." in sentences


def test_a_gain_that_one_comparison_shows_and_many_do_not_is_called_so() -> None:
    near = trial(around(20.0, 0.1), params={"batch": 16, "threads": 1})
    best = trial(around(21.1, 0.1), params={"batch": 32, "threads": 1})
    alone = answers(near, best)
    assert alone[0].startswith("ResNet-50 training is fastest with batch 32")
    slower = [trial(1.0 * b, params={"batch": b, "threads": 1}) for b in range(1, 16)]
    among = answers(near, best, *slower)
    assert among[0].endswith(" No significant difference from batch 16.")
    assert any(
        "1.06×" in s and s.endswith("; this holds for the one comparison, not after correction for all 17 settings.")
        for s in among
    )


def test_a_speed_up_that_is_not_significant_is_not_claimed() -> None:
    sentences = answers(
        trial(around(10.0, 1.2), params={"threads": 1}), trial(around(13.8, 1.2), params={"threads": 2})
    )
    assert "no setting is significantly faster" in sentences[0]
    assert not any("as fast as" in sentence or "efficiency" in sentence for sentence in sentences)
    assert any(s.startswith("2 threads and 1 thread show no significant difference: 1.38× (") for s in sentences)


def test_sentences_begin_as_sentences_do() -> None:
    pair = [trial(10.0 * t, params={"threads": t, "workload": "matmul", "mode": "infer"}) for t in (1, 2)]
    assert answers(*pair)[0].startswith("Square matrix product inference is fastest")


def test_memory_that_does_not_grow_is_not_said_to_grow() -> None:
    sentences = answers(
        *(trial(10.0 * b, params={"batch": b}, metrics={"peak_memory_bytes": 13.3 * 2**20}) for b in (1, 2))
    )
    assert "Peak memory is 13.3 MiB at batch 1 and at batch 2." in sentences


def test_failures_are_counted() -> None:
    sentences = answers(*scaling(), failed(params={"batch": 4096}), failed(params={"batch": 8192}))
    assert sentences[-1] == "2 trials failed. The reasons are listed below."


def test_where_nothing_was_measured_the_reason_is_the_answer() -> None:
    [sentences] = answers(failed(params={"batch": 4}), failed(params={"batch": 8}))
    assert sentences == (
        "No measurements of ResNet-50 training: 2 trials gave no result, because rank 0 was killed for want of memory."
    )


def test_two_machines_are_ranked_apart_and_compared_at_their_best() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4", "hostname": "node2"}
    sentences = answers(*scaling(), *(trial(20.0 * t, params={"threads": t}, machine=other) for t in (1, 2)))
    assert sentences[0].startswith("On icelake, 16 cores: ResNet-50 training is fastest with 16 threads: 55.0")
    assert any(s.startswith("On zen4, 16 cores: ResNet-50 training is fastest with 2 threads: 40.0") for s in sentences)
    assert any(re.match(r"At its best, icelake, 16 cores gives 1\.3[78]× \(", sentence) for sentence in sentences)


def test_two_stores_of_one_machine_are_kept_apart_by_name() -> None:
    sources = [
        RecordSource(label=f"/data/{name}", name=name, records=scaling(spread))
        for name, spread in (("a", 0.01), ("b", 0.02))
    ]
    [group] = group_records(sources)
    sentences = describe_group(group, rank_trials(group))
    assert sentences[0].startswith("In a: ")
    assert any("show no significant difference" in sentence and "At their best" in sentence for sentence in sentences)


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
    records = [trial(10.0, params={**params, "memory_format": "a"}), trial(20.0, params={**params, "dtype": "b"})]
    records.append(replace(trial(5.0), params={**PARAMS, **params, "extra": None}))
    for sentence in answers(*records):
        assert len(sentence) < 600
        assert sentence.isprintable()


def test_the_real_store_answers_its_questions() -> None:
    report = build_report([REAL_STORE])
    sentences = [sentence for part in report.studies for sentence in part.answers]
    fastest = "AlexNet training is fastest with 16 threads at batch 16"
    assert sentences[0] == f"{fastest}: 148 images/s (95 % interval 121–175)."
    assert sentences[1].startswith("At batch 16, AlexNet training gains little beyond 8 threads: on average ")
    assert sentences[2].startswith("Treat with caution: other load disturbed its runs")
    assert "8 threads give 64 % (51 to 77) of the throughput of 16 threads, at batch 16." in sentences
    assert report.summary[:2] == [sentences[0], sentences[2]]
    assert any(s.startswith("ResNet-50 training is fastest with 16 threads at batch 16") for s in sentences)
    assert len(report.summary) == 8
    assert report.summary[0].startswith("AlexNet training is fastest")
