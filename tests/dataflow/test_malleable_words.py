"""What a plan says of itself: in words, as a timeline, as a trace."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import torch
from tests.dataflow.made_models import Wide

from corewise.dataflow.explain import described
from corewise.dataflow.malleable import Malleable, malleable
from corewise.dataflow.program import Call, Program, Ref
from corewise.dataflow.schedule import Lane, Plan, Step, Task
from corewise.dataflow.timeline import Ran, chrome_trace

Make = Callable[..., Malleable]
CALLS = tuple(Call(name, max, (Ref(0),), {}, (n + 1,)) for n, name in enumerate(("left", "right", "join")))
PROGRAM = Program(CALLS, 4, (0,), {}, {}, (Ref(3),))
TASKS = (Task((0,), ()), Task((1,), ()), Task((2,), (0, 1)))
COSTS = ({1: 0.004, 2: 0.003}, {1: 0.004, 2: 0.003}, {1: 0.002, 2: 0.001})
LANES = (Lane(0, 2), Lane(0, 1, True), Lane(1, 1))
PLAN = Plan(LANES, (Step(0, 1, ()), Step(1, 2, ()), Step(2, 0, (0, 1))), 0.005)

EXPLAINED = """\
3 operators in 3 tasks on 2 cores; no schedule of them ends before 5 ms
candidate  ms   expected
moldable   5.2  5         runs
plain      7
moldable reaches 96 % of the bound

task   cores  on   ms  ms at each width
left   1      4    4   1: 4  2: 3
right  1      6    4   1: 4  2: 3
join   2      4-6  1   1: 2  2: 1"""


def test_an_explanation_shows_candidates_bound_and_widths() -> None:
    times, expected = {"plain": 0.007, "moldable": 0.0052}, {"moldable": 0.005}
    text = described(PROGRAM, TASKS, PLAN, COSTS, (4, 6), times, expected, "moldable", 0.005)
    assert text == EXPLAINED


def test_where_the_module_runs_itself_the_explanation_says_so() -> None:
    text = described(PROGRAM, TASKS, None, COSTS, (4, 6), {"plain": 0.005}, {}, "plain", 0.005)
    assert "plain reaches 100 % of the bound" in text
    assert text.endswith("The module itself runs: nothing tried was faster by enough.")


def test_a_trace_draws_a_task_on_each_of_its_cpus() -> None:
    trace = chrome_trace([Ran(0, "left", 1, (4,), 0.0, 0.004), Ran(2, "join", 0, (4, 6), 0.004, 0.005)])
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
    ran = {one.task: one for one in fast.timeline()}
    [entry] = fast._entries.values()
    assert entry.decision is not None
    assert sorted(ran) == list(range(len(entry.decision.tasks)))
    for number, task in enumerate(entry.decision.tasks):
        assert 0 <= ran[number].start_s <= ran[number].end_s
        assert all(ran[other].end_s <= ran[number].start_s for other in task.needs)
    fast.trace(tmp_path / "trace.json")
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) >= len(ran)


def test_the_best_of_what_was_timed_runs_and_all_are_shown() -> None:
    model, x = Wide().eval(), torch.randn(64, 16)
    with torch.no_grad(), malleable(model, x, executor="python", planning_s=0.2, keep=False) as fast:
        text = fast.explain()
        torch.testing.assert_close(fast(x), model(x))
    assert "Wide, inputs 64×16 float32, evaluating, without gradients: " in text
    assert "plain" in text
    assert len(re.findall(r" runs$", text, re.MULTILINE)) == 1 or "no plan differs" in text


def test_nothing_seen_is_said_too(planned: Make) -> None:
    assert planned(Wide()).explain() == "Wide: no inputs seen yet."
