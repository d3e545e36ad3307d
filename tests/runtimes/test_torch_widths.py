"""Trials whose thread widths change as the model runs."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.dataflow import kept_costs  # noqa: E402
from corewise.machine import pinning  # noqa: E402
from corewise.runtimes.base import Infeasible, RankContext  # noqa: E402
from corewise.runtimes.registry import find_runtime  # noqa: E402
from corewise.runtimes.torch import widths  # noqa: E402

Params = Callable[..., dict[str, Any]]
SMALL = {"time_steps": 20, "hidden": 16, "members": 2, "num_classes": 6}


@pytest.fixture(autouse=True)
def python_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The executor that needs no compiler, a quick plan, and its files apart."""
    from corewise.dataflow.malleable import malleable

    def quick(module: Any) -> Any:
        return malleable(module, executor="python", planning_s=1.0)

    monkeypatch.setattr("corewise.runtimes.torch.execution.with_changing_widths", quick)
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path / "plans"))


def prepare(params: dict[str, Any], context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("infer", "float32"), ("infer", "bfloat16"), ("train", "float32")]
)
def test_a_trial_computes_rightly_and_tells_its_plan(
    params: Params, alone: RankContext, mode: str, dtype: str
) -> None:
    before = set(threading.enumerate())
    point = params(
        workload="lstm_ensemble", mode=mode, dtype=dtype, execution="malleable", threads=2, batch=8, **SMALL
    )
    job = prepare(point, alone)
    check = job.check()
    assert check.passed, check
    for _ in range(3):
        job.step()
    facts = job.facts()
    assert facts["planning_s"] > 0
    plan = facts["malleable"]
    if len(os.sched_getaffinity(0)) > 1:  # on one core nothing is planned
        assert {task["kind"] for task in plan["tasks"]} & {"lstm", "mkldnn_rnn_layer"}
        assert all(need < number for number, task in enumerate(plan["tasks"]) for need in task["needs"])
        assert plan["bound_s"] > 0
        assert set(plan["candidates_s"]) >= {plan["chosen"]}
        assert bool(plan["timeline"]) is (plan["chosen"] != "plain")
    cpus = pinning.read_thread_masks()[threading.get_native_id()].cpus
    assert pinning.violations(pinning.read_thread_masks(), cpus, "rank") == []
    job.close()
    assert {t.name for t in threading.enumerate()} <= {t.name for t in before}


def test_planning_is_done_in_the_modes_of_the_trial(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="two_tower", execution="malleable", threads=2, batch=4, layers=1), alone)
    assert not job._configured._entries
    job.check()
    num_planned = len(job._configured._entries)
    job.step()
    assert len(job._configured._entries) == num_planned == 1
    job.close()


def test_plans_of_a_trial_lie_in_its_own_cache(params: Params, alone: RankContext, tmp_path: Path) -> None:
    context = RankContext(0, 1, str(tmp_path), 1, cache=str(tmp_path / "of-the-trial"))
    prepare(params(workload="lstm_ensemble", execution="malleable", **SMALL), context).close()
    assert kept_costs.folder() == tmp_path / "of-the-trial"


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"mode": "train", "processes": 2}, "exchange gradients in the middle of it"),
        ({"freezing": "full"}, "malleable execution has no constants"),
        ({"interop_threads": 2}, "side by side under execution script only"),
    ],
    ids=str,
)
def test_what_changing_widths_do_not_have_is_infeasible(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(workload="lstm_ensemble", execution="malleable", **SMALL, **point), alone)


def test_a_module_that_cannot_be_planned_runs_as_it_is_and_says_why(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write(
        "import torch\n"
        "class Chooser(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2 if x.sum() > 0 else x\n"
        "def make(batch, mode):\n"
        "    return Chooser(), (torch.randn(batch, 4),)\n"
    )
    job = prepare(params(workload=name, execution="malleable", threads=2, batch=2), alone)
    assert job.check().passed
    job.step()
    told = job.facts()["malleable"]
    assert told["chosen"] == "plain"
    assert told["reason"]
    assert widths.width_facts(job._configured, 1.5)["planning_s"] == 1.5
    job.close()
