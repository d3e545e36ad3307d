"""A plan describes itself as text, timeline and trace."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import torch
from tests.accelerate.sample_models import Wide

from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.malleable.execute.timeline import TimelineEntry, build_chrome_trace
from corewise.accelerate.malleable.explanation import describe_plan
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable
from corewise.accelerate.malleable.plan.candidate_choice import choose_fastest, compute_median, explain_losses
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask

Make = Callable[..., Malleable]
CALLS = tuple(Call(name, max, (Ref(0),), {}, (n + 1,)) for n, name in enumerate(("left", "right", "join")))
PROGRAM = Program(CALLS, 4, (0,), {}, {}, (Ref(3),))
TASKS = (OperatorTask((0,), ()), OperatorTask((1,), ()), OperatorTask((2,), (0, 1)))
COSTS = ({1: 0.004, 2: 0.003}, {1: 0.004, 2: 0.003}, {1: 0.002, 2: 0.001})
LANES = (Lane(0, 2), Lane(0, 1, True), Lane(1, 1))
PLAN = LanePlan(LANES, (LaneStep(0, 1, ()), LaneStep(1, 2, ()), LaneStep(2, 0, (0, 1))), 0.005)

EXPLAINED = """\
3 operators in 3 tasks on 2 cores; no schedule can take less than 5 ms
candidate  ms   expected
moldable   5.2  5         runs
plain      7
moldable reaches 96 % of this bound

task   cores  on   ms  ms at each width
left   1      4    4   1: 4  2: 3
right  1      6    4   1: 4  2: 3
join   2      4-6  1   1: 2  2: 1"""


def test_an_explanation_shows_candidates_bound_and_widths() -> None:
    times, expected = {"plain": 0.007, "moldable": 0.0052}, {"moldable": 0.005}
    text = describe_plan(PROGRAM, TASKS, PLAN, COSTS, (4, 6), times, expected, "moldable", 0.005)
    assert text == EXPLAINED


def test_where_the_module_runs_itself_the_explanation_says_so() -> None:
    text = describe_plan(PROGRAM, TASKS, None, COSTS, (4, 6), {"plain": 0.005}, {}, "plain", 0.005)
    assert "plain reaches 100 % of this bound" in text
    assert text.endswith("The module itself runs: no candidate was faster.")


def test_a_candidate_with_the_lower_median_that_does_not_run_has_its_reason() -> None:
    """The figures shown are those that the decision was made from."""
    times = {"plain": [0.010, 0.002, 0.010, 0.002, 0.010], "2×1": [0.006] * 5, "moldable": [0.02] * 5}
    chosen = choose_fastest(times)
    assert chosen == "plain"
    medians, losses = {name: compute_median(each) for name, each in times.items()}, explain_losses(times, chosen)
    text = describe_plan(PROGRAM, TASKS, None, COSTS, (4, 6), medians, {}, chosen, 0.002, losses=losses)
    assert re.search(r"2×1 +6 +faster than plain in only 3 of 5 rounds", text)
    assert re.search(r"plain +10 +runs", text)
    assert re.search(r"moldable +20 +slower than plain", text)
    assert text.endswith("The module itself runs: 2×1 was faster than plain in only 3 of 5 rounds.")


def test_a_notebook_shows_the_explanation(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(64, 16)
    fast = planned(model, (x,))
    with torch.no_grad():
        fast(x)
    html = fast._repr_html_()
    assert html.startswith("<div><p><b>Wide")
    assert "<details>" in html
    assert fast.explain().splitlines()[-1].strip().replace("<", "&lt;") in html
    assert "<script" not in html


def test_a_trace_draws_a_task_on_each_of_its_cpus() -> None:
    trace = build_chrome_trace(
        [TimelineEntry(0, "left", 1, (4,), 0.0, 0.004), TimelineEntry(2, "join", 0, (4, 6), 0.004, 0.005)]
    )
    drawn = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["tid"]) for event in drawn] == [("left", 4), ("join", 4), ("join", 6)]
    assert drawn[0]["dur"] == 4000.0
    named = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert named == ["CPU 4", "CPU 6"]


def test_the_timeline_of_a_call_holds_every_task_after_what_it_needs(planned: Make, tmp_path: Path) -> None:
    model, x = Wide().eval(), torch.randn(64, 16)
    with torch.no_grad():
        fast = planned(model, x)
        fast(x)
    entries = {one.task: one for one in fast.timeline()}
    [entry] = fast._plans.values()
    assert entry.decision is not None
    assert sorted(entries) == list(range(len(entry.decision.tasks)))
    for number, task in enumerate(entry.decision.tasks):
        assert 0 <= entries[number].start_s <= entries[number].end_s
        assert all(entries[other].end_s <= entries[number].start_s for other in task.needs)
    fast.trace(tmp_path / "trace.json")
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) >= len(entries)


def test_the_best_of_what_was_timed_runs_and_all_are_shown() -> None:
    model, x = Wide().eval(), torch.randn(64, 16)
    with torch.no_grad(), malleable(model, x, executor="python", planning_s=0.2, keep=False) as fast:
        text = fast.explain()
        torch.testing.assert_close(fast(x), model(x))
    assert "Wide, inputs 64×16 float32, evaluating, without gradients: " in text
    assert "plain" in text
    assert len(re.findall(r" runs$", text, re.MULTILINE)) == 1 or "no plan differs" in text


def test_an_uncalled_model_says_that_it_saw_no_inputs(planned: Make) -> None:
    assert planned(Wide()).explain() == "Wide: no inputs seen yet."
