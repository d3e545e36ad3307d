"""Counters, instruction sets and optimizers from a study to a record, on this machine."""

import shutil
from collections.abc import Callable

import pytest

from corewise.measured.probes.counters import explain_missing_counters
from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench

# Cachegrind is a hundred times as slow as the processor, so the product is small.
SIZE = 64
KERNEL = f"""
workload: gemm
mode: infer
runtime: numpy
fixed: {{threads: 1, args.size: {SIZE}}}
protocol: {QUICK_PROTOCOL}
"""
TRAINING = f"""
workload: resnet18
mode: train
axes: {{isa: [avx2, amx], optimizer: [adam, adamw]}}
fixed: {{threads: 1, batch: 2, args.image_size: 32, args.num_classes: 4, wait_policy: passive}}
protocol: {QUICK_PROTOCOL}
"""


def count_with(source: str) -> str:
    return KERNEL.replace(QUICK_PROTOCOL, f"{QUICK_PROTOCOL[:-1]}, counters: {source}}}")


def test_a_trial_has_counts_or_the_reason_why_not(bench: Bench) -> None:
    assert bench.run("run", bench.write_study(count_with("perf")), "--store", "store").returncode == 0
    [record] = bench.read_records()
    metrics, facts, missing = record["metrics"], record["runs"][0]["ranks"][0], explain_missing_counters()
    assert metrics["cpu_migrations"] >= 0
    if missing:
        assert facts["counters_reason"] == missing
        assert f"no counts by perf: {missing}" in record["notes"]
        assert "no counts by perf" in bench.run("show", "--store", "store").stdout
    else:
        # A product of n × n matrices has n³ multiply-adds, of which an instruction does at most 32.
        assert metrics["perf_instructions_per_sample"] > SIZE**3 / 32
        assert metrics["perf_ipc"] > 0


def test_the_default_measures_no_record_again_and_stores_no_new_field(bench: Bench) -> None:
    assert bench.run("run", bench.write_study(KERNEL), "--store", "store").returncode == 0
    [record] = bench.read_records()
    assert "counters" not in record["protocol"]
    assert not any(note.startswith("no counts") for note in record["notes"])


@pytest.mark.slow
def test_cachegrind_counts_a_study_where_it_is_asked_for(need: Callable[[bool, str], None], bench: Bench) -> None:
    need(shutil.which("valgrind") is not None, "valgrind is not installed")
    ran = bench.run("run", bench.write_study(count_with("cachegrind")), "--store", "store")
    assert ran.returncode == 0, ran.stderr
    assert "counting instructions with cachegrind" in ran.stdout
    [record] = bench.read_records()
    metrics = record["metrics"]
    # With AVX2, an instruction multiplies and adds four float64 or eight float32 values.
    assert SIZE**3 / 8 < metrics["cachegrind_instructions_per_sample"] < SIZE**3 * 2
    assert metrics["cachegrind_mpki"] >= 0
    assert any("valgrind has no AVX-512" in note for note in record["notes"])
    assert "cachegrind" in bench.run("show", "--store", "store").stdout


@pytest.mark.slow
def test_instruction_set_and_optimizer_are_proved_in_the_record(bench: Bench) -> None:
    pytest.importorskip("torch")
    assert bench.run("run", bench.write_study(TRAINING), "--store", "store").returncode == 0
    records = {(r["params"]["isa"], r["params"]["optimizer"]): r for r in bench.read_records()}
    for optimizer in ("adam", "adamw"):
        record = records["avx2", optimizer]
        assert record["status"] == "ok", record["reason"]
        facts = record["runs"][0]["ranks"][0]
        assert facts["aten_isa"] == "AVX2"
        assert (facts["optimizer"], facts["learning_rate"]) == (optimizer, 1e-4)
        assert record["env"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    skipped = records["amx", "adam"]
    assert skipped["status"] == "ok" or "isa: amx needs a CPU" in skipped["reason"]
