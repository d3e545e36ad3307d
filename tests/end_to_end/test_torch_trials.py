"""Trials on PyTorch: verified placement and allocators, and data-parallel ranks."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corewise.machine.software import find_library
from tests.end_to_end.conftest import Bench

pytest.importorskip("torch")

PROTOCOL = (
    "{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.02, max_warmup_s: 0.3, timeout_s: 120, "
    "max_repeats_disturbed: 0}"
)
TWO_CPUS = len(os.sched_getaffinity(0)) >= 2


def run_study(bench: Bench, text: str, code: int = 0, protocol: str = PROTOCOL) -> list[dict[str, Any]]:
    study = bench.write_study(f"question: Does it hold?\nruntime: torch\n{text}\nprotocol: {protocol}\n")
    done = bench.run("run", study, "--store", "store", timeout=400)
    assert done.returncode == code, done.stdout + done.stderr
    return bench.read_records()


def read_cpus(record: dict[str, Any]) -> list[list[int]]:
    return [rank["cpus"] for rank in record["runs"][0]["ranks"]]


def test_training_and_inference_leave_checked_records_with_their_work(bench: Bench) -> None:
    records = run_study(
        bench, "workload: resnet18\nmode: [train, infer]\nfixed: {threads: 1, batch: 2, args.image_size: 32}"
    )
    by_mode = {r["params"]["mode"]: r for r in records}
    assert {r["status"] for r in records} == {"ok"}
    for record in records:
        assert 0 < record["metrics"]["check_error"] < 1e-2
        assert record["metrics"]["peak_memory_bytes"] > 20e6
        assert record["metrics"]["gflop_per_s"] > 0
        assert record["versions"]["torch"]
    assert 4 < by_mode["train"]["metrics"]["loss"] < 12
    assert by_mode["train"]["work"]["flops_per_sample"] > 2.5 * by_mode["infer"]["work"]["flops_per_sample"]


def test_two_data_parallel_ranks_train_on_separate_cpus(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(TWO_CPUS, "two CPUs")
    [record] = run_study(
        bench,
        "workload: resnet18\nmode: train\naxes: {processes: [2]}\n"
        "fixed: {threads: 1, batch: 4, batch_scope: global, args.image_size: 32}",
    )
    assert record["status"] == "ok", record["reason"]
    first, second = read_cpus(record)
    assert not set(first) & set(second)
    assert record["metrics"]["samples_per_step"] == 4
    for run in record["runs"]:
        for rank in run["ranks"]:
            assert {c for cpus in rank["thread_cpus"].values() for c in cpus} <= set(rank["cpus"])


def test_replicas_run_in_parallel_with_the_batch_split(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(TWO_CPUS, "two CPUs")
    [record] = run_study(
        bench,
        "workload: resnet18\nmode: infer\naxes: {processes: [2]}\n"
        "fixed: {threads: 1, batch: 4, batch_scope: global, args.image_size: 32}",
    )
    assert record["status"] == "ok", record["reason"]
    assert record["metrics"]["samples_per_step"] == 4
    assert record["metrics"]["latency_p50_s"] > 0


@pytest.mark.slow
def test_every_thread_is_bound_to_one_core_when_asked(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(TWO_CPUS, "two CPUs")
    [record] = run_study(
        bench, "workload: resnet18\nmode: infer\nfixed: {threads: 2, batch: 2, bind: core, args.image_size: 32}"
    )
    assert record["status"] == "ok", record["reason"]
    masks = record["runs"][0]["ranks"][0]["thread_cpus"].values()
    assert {len(mask) for mask in masks} == {1}
    assert len({mask[0] for mask in masks}) == 2


def test_a_thread_outside_its_ranks_cpus_fails_the_trial_and_is_named(
    bench: Bench, need: Callable[[bool, str], None]
) -> None:
    need(TWO_CPUS, "two CPUs")
    bench.write_factory(
        """
        import os, threading
        def factory(batch, mode):
            def escape():
                os.sched_setaffinity(threading.get_native_id(), range(os.cpu_count()))
                threading.Event().wait()
            threading.Thread(target=escape, daemon=True).start()
            return {"step": lambda: None, "samples_per_step": 1}
        """
    )
    [record] = run_study(bench, "workload: own.py:factory\nmode: infer\nfixed: {threads: 1, batch: 1}", code=1)
    assert record["kind"] == "placement"
    assert "outside the rank's CPUs" in record["reason"]


# Each step allocates 64 MiB, which glibc returns to the kernel by default.
ALLOCATING = """
import torch
def factory(batch, mode):
    def step():
        torch.ones(16 * 2**20)
    return {"step": step, "samples_per_step": 1}
"""


@pytest.mark.slow
def test_the_retaining_allocator_is_proved_by_page_faults(bench: Bench) -> None:
    bench.write_factory(ALLOCATING)
    records = run_study(
        bench,
        "workload: own.py:factory\nmode: infer\naxes: {allocator: [default, retain]}\nfixed: {threads: 1, batch: 1}",
        protocol="{min_runs: 1, max_runs: 1, min_samples: 60, min_sample_s: 0.01, max_warmup_s: 0.2, "
        "max_repeats_disturbed: 0}",
    )
    faults = {r["params"]["allocator"]: r["metrics"]["minor_faults_per_step"] for r in records}
    assert faults["default"] > 100
    assert faults["retain"] < faults["default"] / 10


@pytest.mark.parametrize("allocator", ["tcmalloc", "jemalloc"])
def test_a_preloaded_allocator_is_in_the_process(
    bench: Bench, need: Callable[[bool, str], None], allocator: str
) -> None:
    need(find_library(allocator) is not None, f"lib{allocator}")
    bench.write_factory(ALLOCATING)
    [record] = run_study(
        bench, f"workload: own.py:factory\nmode: infer\nfixed: {{threads: 1, batch: 1, allocator: {allocator}}}"
    )
    assert record["status"] == "ok", record["reason"]
    assert allocator in record["env"]["LD_PRELOAD"]


@pytest.mark.slow
def test_all_layouts_and_kernels_compute_correct_results(bench: Bench) -> None:
    records = run_study(
        bench,
        "workload: resnet18\nmode: infer\n"
        "axes: {memory_format: [contiguous, channels_last, blocked], math: [vendor, vanilla]}\n"
        "fixed: {threads: 1, batch: 2, args.image_size: 32}",
    )
    assert {r["status"] for r in records} <= {"ok", "skipped"}
    assert sum(r["status"] == "ok" for r in records) >= 5
    for record in records:
        if record["status"] == "skipped":
            assert record["params"]["memory_format"] == "blocked"
            assert record["params"]["math"] == "vanilla"


def test_images_from_a_folder_are_read_by_loader_workers(bench: Bench) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("cats", "dogs"):
        folder = Path(bench.folder, "images", label)
        folder.mkdir(parents=True)
        for number in range(4):
            image.effect_noise((48, 40), 90).convert("RGB").save(folder / f"{number}.jpg")
    [record] = run_study(
        bench,
        "workload: resnet18\nmode: train\n"
        "fixed: {threads: 1, batch: 2, data: images, loader_workers: 1, args.image_size: 32}",
    )
    assert record["status"] == "ok", record["reason"]


@pytest.mark.slow
def test_a_corrupt_image_is_named(bench: Bench) -> None:
    pytest.importorskip("PIL.Image")
    folder = Path(bench.folder, "images", "cats")
    folder.mkdir(parents=True)
    (folder / "broken.jpg").write_bytes(b"not an image")
    [record] = run_study(
        bench,
        "workload: resnet18\nmode: infer\nfixed: {threads: 1, batch: 1, data: images, args.image_size: 32}",
        code=1,
    )
    assert "broken.jpg" in record["reason"]
