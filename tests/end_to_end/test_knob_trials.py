"""Trials of settings with a proof in the record: huge pages, parallel branches, folded norms."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Bench
from tests.end_to_end.test_torch_trials import TWO_CPUS, run_study

pytest.importorskip("torch")

MIB = 2**20
HOLDING = """
import torch
def factory(batch, mode):
    held = []
    def step():
        held[:] = [torch.ones(16 * 2**20)]
    return {"step": step, "samples_per_step": 1}
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def read_facts(record: dict[str, Any], run: int = 0) -> dict[str, Any]:
    return dict(record["runs"][run]["ranks"][0])


def test_huge_pages_are_proved_by_the_memory_in_them(bench: Bench, need: Callable[[bool, str], None]) -> None:
    setting = HUGE_PAGES.read_text() if HUGE_PAGES.exists() else "[never]"
    need("[never]" not in setting, "a kernel with transparent huge pages")
    bench.write_factory(HOLDING)
    records = run_study(
        bench,
        "workload: own.py:factory\nmode: infer\naxes: {huge_pages: [default, transparent]}\n"
        "fixed: {threads: 1, batch: 1, allocator: retain}",
    )
    assert {r["status"] for r in records} == {"ok"}, [r["reason"] for r in records]
    found = {r["params"]["huge_pages"]: r["metrics"]["huge_page_bytes"] for r in records}
    # The tensor alone has 64 MiB.
    assert found["transparent"] >= 60 * MIB
    if "[madvise]" in setting:
        assert found["default"] < 30 * MIB


@pytest.mark.slow
def test_branches_run_in_parallel_where_possible(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(TWO_CPUS, "two CPUs")
    records = run_study(
        bench,
        "workload: lstm_ensemble\nmode: infer\naxes: {execution: [eager, script]}\n"
        "fixed: {interop_threads: 2, threads: 2, batch: 8, args.time_steps: 10, args.num_classes: 10}",
    )
    ended = {r["params"]["execution"]: r for r in records}
    assert {execution: r["status"] for execution, r in ended.items()} == {"eager": "skipped", "script": "ok"}
    assert "interop_threads needs execution: script" in ended["eager"]["reason"]
    facts = read_facts(ended["script"])
    assert (facts["num_threads"], facts["num_interop_threads"]) == (1, 2)
    assert all(set(mask) <= set(facts["cpus"]) for mask in facts["thread_cpus"].values())


def test_the_record_contains_the_proof_of_settings(bench: Bench) -> None:
    records = run_study(
        bench,
        "workload: resnet18\nmode: infer\n"
        "axes: {freezing: [none, fold]}\n"
        "fixed: {denormals: flush, threads: 1, batch: 2, args.image_size: 32}",
    )
    assert {r["status"] for r in records} == {"ok"}, [r["reason"] for r in records]
    for record in records:
        facts = read_facts(record)
        assert facts.get("num_folded") == (20 if record["params"]["freezing"] == "fold" else None)
        assert facts["denormals_flushed"] is True


def test_malleable_execution_is_recorded_with_its_plan(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(TWO_CPUS, "two CPUs")
    from corewise.accelerate.kernels.build import NativeBuildError, load_native_module

    with contextlib.suppress(NativeBuildError):
        # Build it now, so the time limit of the trial does not include the build.
        load_native_module()
    [record] = run_study(
        bench,
        "workload: lstm_ensemble\nmode: infer\nfixed: {execution: malleable, threads: 2, batch: 16, "
        "args.members: 2, args.time_steps: 20, args.num_classes: 10}",
    )
    assert record["status"] == "ok", record["reason"]
    assert record["env"]["GOMP_SPINCOUNT"] == "300000"
    assert record["metrics"]["planning_s"] > 0
    assert "compile_s" not in record["metrics"]
    first, again = (read_facts(record, run) for run in (0, 1))
    for facts in (first, again):
        assert all(set(mask) <= set(facts["cpus"]) for mask in facts["thread_cpus"].values())
        plan = facts["malleable"]
        assert len(plan["tasks"]) > 3
        assert all(set(bar["cpus"]) <= set(facts["cpus"]) for bar in plan["timeline"])
        assert bool(plan["timeline"]) is (plan["chosen"] != "plain")
    # The second run reads the plan from the cache of the trial.
    assert again["malleable"]["was_kept"]
    assert not first["malleable"]["was_kept"]
