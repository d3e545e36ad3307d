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
    assert told[0].endswith("; 8 threads is not told apart from it.")
    assert "8 threads are not told apart from 16 threads: no gain is shown beyond them." in told


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
    assert "From 4 threads on, each added thread gives less than half of what 1 thread gives." in answers(
        *scaling()
    )


def test_noise_claims_no_such_width() -> None:
    near_half = {1: 10.0, 2: 14.5, 4: 23.5}  # each added thread gives a little less than half
    told = answers(*(trial(around(rate, 0.5), params={"threads": t}) for t, rate in near_half.items()))
    assert not any(sentence.startswith("From ") for sentence in told)


def test_more_threads_that_are_slower_are_called_so() -> None:
    told = answers(*scaling()[:4], trial(30.0, params={"threads": 16}))
    assert any(sentence.startswith("More is slower: 16 threads give 60 % (") for sentence in told)


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
    assert any("were disturbed by other load" in sentence for sentence in told)


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
    assert "8 threads give 64 % (51 to 77) of the throughput of 16 threads." in told
    assert "From 8 threads on, each added thread gives less than half of what 1 thread gives." in told
    assert len(report.summary) == 4
    assert report.summary[0].startswith("AlexNet training is fastest")
