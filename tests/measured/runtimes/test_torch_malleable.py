"""Trials with execution: malleable."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.accelerate.malleable.plan import cost_cache
from corewise.measured import pinning
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules import malleable_module

Params = Callable[..., TrialParameters]
SMALL = {"time_steps": 20, "hidden": 16, "members": 2, "num_classes": 6}


@pytest.fixture(autouse=True)
def python_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use the Python executor, short planning and a separate cache."""
    from corewise.accelerate.malleable.module_wrapper import malleable

    def quick(module: Any, time_limit_s: float | None = None) -> Any:
        return malleable(module, executor="python", planning_s=1.0)

    monkeypatch.setattr("corewise.measured.runtimes.torch.modules.module_preparation.wrap_malleable", quick)
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path / "plans"))


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


@pytest.mark.parametrize(("mode", "dtype"), [("infer", "float32"), ("infer", "bfloat16"), ("train", "float32")])
def test_a_trial_is_correct_and_records_its_plan(params: Params, alone: RankContext, mode: str, dtype: str) -> None:
    before = set(threading.enumerate())
    point = params(workload="lstm_ensemble", mode=mode, dtype=dtype, execution="malleable", threads=2, batch=8, **SMALL)
    job = prepare(point, alone)
    check = job.check()
    assert check.passed, check
    for _ in range(3):
        job.step()
    facts = job.read_facts()
    assert facts["planning_s"] > 0
    plan = facts["malleable"]
    # On one core, nothing is planned.
    if len(os.sched_getaffinity(0)) > 1:
        assert {task["kind"] for task in plan["tasks"]} & {"lstm", "mkldnn_rnn_layer"}
        assert all(need < number for number, task in enumerate(plan["tasks"]) for need in task["needs"])
        assert plan["bound_s"] > 0
        assert set(plan["candidates_s"]) >= {plan["chosen"]}
        assert bool(plan["timeline"]) is (plan["chosen"] != "plain")
    cpus = pinning.read_thread_masks()[threading.get_native_id()].cpus
    assert pinning.find_violations(pinning.read_thread_masks(), cpus, "rank") == []
    job.close()
    assert {t.name for t in threading.enumerate()} <= {t.name for t in before}


def test_planning_is_done_in_the_modes_of_the_trial(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="two_tower", execution="malleable", threads=2, batch=4, layers=1), alone)
    assert not job._configured._plans
    job.check()
    num_planned = len(job._configured._plans)
    job.step()
    assert len(job._configured._plans) == num_planned == 1
    job.close()


def test_plans_of_a_trial_lie_in_its_own_cache(params: Params, alone: RankContext, tmp_path: Path) -> None:
    context = RankContext(0, 1, str(tmp_path), 1, cache=str(tmp_path / "of-the-trial"))
    prepare(params(workload="lstm_ensemble", execution="malleable", **SMALL), context).close()
    assert cost_cache.get_cache_folder() == tmp_path / "of-the-trial"


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"mode": "train", "processes": 2}, "exchange gradients during the backward pass"),
        ({"freezing": "full"}, "malleable execution does not support it"),
        ({"interop_threads": 2}, "concurrently only with execution script"),
    ],
    ids=str,
)
def test_what_malleable_does_not_support_is_infeasible(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(workload="lstm_ensemble", execution="malleable", **SMALL, **point), alone)


def test_a_module_that_cannot_be_planned_runs_unplanned_with_a_reason(
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
    facts = job.read_facts()["malleable"]
    assert facts["chosen"] == "plain"
    assert facts["reason"]
    assert malleable_module.collect_width_facts(job._configured, 1.5)["planning_s"] == 1.5
    job.close()
