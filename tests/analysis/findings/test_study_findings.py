"""Findings: each has evidence, and a command that can be typed."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import typer
from tests.report.sample_trials import MACHINE, PROTOCOL, REAL_STORE, around, failed, scaling, trial
from typer.core import TyperGroup

from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.findings.study_findings import collect_findings
from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.cli.app import build_app
from corewise.report.report_builder import build_report
from corewise.stats.quantiles import compute_t_quantile
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.store.brief_records import extract_brief
from corewise.study.command_line_overrides import apply_overrides
from corewise.study.record import Record
from corewise.study.syntax.yaml_lines import parse_yaml

APP = build_app()


def findings(*records: Record, study: str = "a-study") -> dict[str, Finding]:
    """The findings by their titles without the study's name."""
    groups = group_records([RecordSource(label="my store", records=records)])
    studied = StudyEvidence(study, "my store", [(group, rank_trials(group)) for group in groups])
    return {finding.title.partition(": ")[2]: finding for finding in collect_findings(studied)}


def quiet(**changes: Any) -> list[Record]:
    """Trials about which nothing stands out."""
    return scaling(**changes)


def with_runs(record: Record, **change: Any) -> Record:
    return replace(record, runs=tuple({**run, **change} for run in record.runs))


def test_quiet_trials_give_no_finding() -> None:
    assert findings(*quiet()) == {}


def test_failures_are_a_problem_with_their_categories_and_the_most_frequent_reason() -> None:
    found = findings(*quiet(), failed(params={"batch": 64}), failed("something else", params={"batch": 128}))
    assert found["2 trials failed"].level == "problem"
    assert "memory 2" in found["2 trials failed"].evidence
    assert "--set batch=1,2,4" in found["2 trials failed"].remedy


def test_disturbed_runs_are_reported_by_their_cause() -> None:
    best = with_runs(quiet()[-1], disturbances=["other processes used 1.20 s of CPU on the rank's CPUs in 2.00 s"] * 2)
    found = findings(*quiet()[:-1], best)["1 of 5 trials with disturbed runs, a fastest one among them"]
    assert found.evidence == "other processes on the ranks' CPUs in 5 runs"
    # With one core less, such a trial would not exist.
    assert "reserved_cores" not in found.remedy
    narrow = with_runs(quiet()[0], disturbances=["other processes used 1.20 s of CPU on the rank's CPUs"])
    remedy = findings(*quiet()[1:], narrow)["1 of 5 trials with disturbed runs"].remedy
    assert "--set reserved_cores=1" in remedy
    stolen = with_runs(quiet()[0], disturbances=["the hypervisor took 0.30 s of CPU from the rank's CPUs in 1.00 s"])
    assert "host of your own" in findings(*quiet()[1:], stolen)["1 of 5 trials with disturbed runs"].remedy


def test_throttling_is_reported() -> None:
    found = findings(*quiet()[1:], trial(9.0, params={"threads": 1}, metrics={"throttled_s": 0.5}))
    assert found["a CPU quota throttled 1 trial"].evidence.startswith("up to 0.5 s")


def test_a_warm_up_that_was_not_steady_is_reported_with_a_longer_one() -> None:
    note = ("warm-up ended by its time limit, not steady",)
    record = trial(9.0, params={"threads": 1}, notes=note, protocol={**PROTOCOL, "max_warmup_s": 20.0})
    found = findings(*quiet()[1:], record)
    assert "protocol.max_warmup_s=60" in found["1 trial not steady after warm-up"].remedy


@pytest.mark.parametrize("shorten", [lambda record: record, extract_brief])
@pytest.mark.parametrize(("ends", "is_unsteady"), [(("steady", "steady"), False), (("steady", "time limit"), True)])
def test_the_facts_of_the_ranks_say_whether_the_warm_up_was_steady(
    shorten: Callable[[Record], Record], ends: Sequence[str], is_unsteady: bool
) -> None:
    record = trial(9.0, params={"threads": 1}, notes=("a note on steady state",))
    ranks = [{"rank": i, "warm_up_ended": end} for i, end in enumerate(ends)]
    record = replace(record, runs=tuple({**run, "ranks": ranks} for run in record.runs))
    found = findings(*quiet()[1:], shorten(record))
    assert ("1 trial not steady after warm-up" in found) == is_unsteady


def test_too_wide_intervals_are_reported_with_the_number_of_runs_they_would_take() -> None:
    wide = [trial(around(10.0 * t, 0.4), params={"threads": t}) for t in (1, 2, 4)]
    [(title, found)] = [(t, f) for t, f in findings(*wide).items() if "missed the requested interval" in t]
    assert title == "3 of 3 trials missed the requested interval"
    needed = int(re.search(r"max_runs=(\d+)", found.remedy)[1])  # type: ignore[index]
    spread = float(np.std(np.log(around(1.0, 0.4)), ddof=1))
    halves = [
        compute_t_quantile(n - 1, 1 - compute_level_per_look(5, 60, 0.95) / 2) * spread / n**0.5
        for n in (needed - 1, needed)
    ]
    assert halves[0] > 0.048
    assert halves[1] < 0.052


def test_hopeless_noise_is_not_answered_with_thousands_of_runs() -> None:
    wide = [trial(around(10.0 * t, 2.0), params={"threads": t}) for t in (1, 2)]
    [found] = [f for t, f in findings(*wide).items() if "missed the requested interval" in t]
    assert "More than 60 runs are needed. Reduce noise instead" in found.remedy
    assert "max_runs" not in found.remedy


def test_single_runs_are_reported() -> None:
    found = findings(trial([10.0]), trial([20.0], params={"threads": 8}))
    assert "protocol.min_runs=5" in found["2 of 2 trials had a single run"].remedy


def test_the_best_at_the_edge_of_the_grid_asks_for_more() -> None:
    found = findings(*(trial(10.0 + b, params={"batch": b}) for b in (4, 16, 64)))
    assert "--set batch=64,128,256" in found["the fastest has the largest batch tried, 64"].remedy
    inside = findings(*(trial(20.0 - abs(b - 16), params={"batch": b}) for b in (4, 16, 24)))
    assert not any("largest batch" in title for title in inside)


def test_threads_that_fill_the_allocation_are_no_edge() -> None:
    assert not any("largest threads" in title for title in findings(*quiet()))
    found = findings(*quiet()[:4])
    assert "--set threads=8,16" in found["the fastest has the largest threads tried, 8"].remedy


def test_memory_near_its_limit_is_reported() -> None:
    small = {**MACHINE, "memory_bytes": 1.2e9}
    assert any("nearly filled the memory" in title for title in findings(*quiet(machine=small)))


def test_page_faults_in_every_step_are_reported_unless_the_allocator_was_changed() -> None:
    metrics = {"minor_faults_per_step": 500_000.0, "step_s": 0.2}
    found = findings(*quiet()[1:], trial(9.0, params={"threads": 1}, metrics=metrics))
    [finding] = [f for t, f in found.items() if "allocate much memory" in t]
    assert "500,000 page faults (1.91 GiB) per step" in finding.evidence
    assert "--set allocator=default,retain" in finding.remedy
    kept = trial(9.0, params={"threads": 1, "allocator": "retain"}, metrics=metrics)
    assert not any("allocate much memory" in title for title in findings(*quiet()[1:], kept))


def test_a_cpu_that_changed_its_speed_is_reported_among_trials_on_as_many_cores() -> None:
    def trials(canaries_ms: dict[int, list[float]]) -> list[Record]:
        return [
            trial(10.0 * t, params={"threads": t, "batch": b}, metrics={"canary_s": ms / 1000})
            for t, times in canaries_ms.items()
            for b, ms in enumerate(times, 1)
        ]

    # The clock is lower when all cores work, which is expected.
    by_width = trials({1: [4.0] * 5, 16: [6.0] * 5})
    assert not any("speed of the CPU" in title for title in findings(*by_width))
    # There is nothing to compare them with.
    alone = trials({1: [4.0], 2: [9.0], 4: [3.0], 8: [4.0], 16: [7.0]})
    assert not any("speed of the CPU" in title for title in findings(*alone))
    drifting = trials({1: [4.0, 4.1, 4.0, 5.5, 4.0], 16: [6.0] * 5})
    assert any("speed of the CPU" in title for title in findings(*drifting))


def test_unused_hardware_threads_are_reported() -> None:
    found = findings(*quiet(machine={**MACHINE, "allocation_cpus": "0-31"}))
    finding = found["the second hardware thread of each core was not tried"]
    assert finding.evidence == "32 CPUs on 16 cores"
    assert "--set smt=false,true" in finding.remedy


def test_runs_that_differ_more_than_steps_are_reported() -> None:
    metrics = {"between_process_cv": 0.08, "within_process_cv": 0.01}
    assert any("runs differ more" in title for title in findings(*quiet(metrics=metrics)))


def test_what_a_record_says_of_its_machine_is_passed_on() -> None:
    machine_findings = [
        {"severity": "error", "claim": "The CPU quota is 0.5.", "evidence": "cgroup", "remedy": "Raise it."}
    ]
    machine = {**MACHINE, "findings": machine_findings}
    groups = group_records([RecordSource(label="s", records=quiet(machine=machine))])
    found = collect_findings(StudyEvidence("x", "s", [(g, rank_trials(g)) for g in groups]))
    assert found == [Finding(level="problem", title="The CPU quota is 0.5.", evidence="cgroup", remedy="Raise it.")]


def commands(finding: Finding) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"`corewise ([^`]+)`", finding.remedy)]


@pytest.mark.parametrize("name", ["thread-scaling", "my study", "o'brien"])
def test_every_command_of_a_remedy_can_be_typed(name: str) -> None:
    group = typer.main.get_command(APP)
    assert isinstance(group, TyperGroup)
    noisy = [trial(around(10.0 * t, 0.4), params={"threads": t, "batch": 4 * t}, study=name) for t in (1, 2, 4)]
    found = [*findings(*noisy, failed(study=name), study=name).values(), *build_report([REAL_STORE]).findings]
    num = 0
    for finding in found:
        for verb, *arguments in commands(finding):
            group.commands[verb].make_context(verb, list(arguments))
            settings = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"]
            document = apply_overrides(parse_yaml("workload: resnet50\naxes: {}\n", "study"), settings)
            assert not document.mistakes
            num += 1
    assert num >= 10


def test_a_custom_study_is_named_by_its_file() -> None:
    found = findings(trial([1.0]), trial([2.0], params={"threads": 8}), study="mine")
    remedy = found["2 of 2 trials had a single run"].remedy
    assert "`corewise run mine.yaml --store 'my store' " in remedy
