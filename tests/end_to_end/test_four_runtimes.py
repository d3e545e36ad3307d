"""One study on every framework: the same kernel, the same checks, and a report of a missing one."""

import importlib.util
from collections.abc import Callable

import pytest

from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench

RUNTIMES = ("numpy", "torch", "jax", "tensorflow")
STUDY = f"""
question: Does every framework reach the same bandwidth?
workload: stream
runtime: [numpy, torch, jax, tensorflow]
fixed: {{args.size_bytes: 80008, threads: 1}}
protocol: {QUICK_PROTOCOL}
"""
BROKEN = 'raise ImportError("a library of it is missing")'


def test_one_study_runs_on_every_framework_with_the_same_checks(
    bench: Bench, need: Callable[[bool, str], None]
) -> None:
    for name in RUNTIMES:
        need(importlib.util.find_spec(name) is not None, f"{name} is not installed")
    study = bench.write_study(STUDY)
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 0, done.stderr
    records = {record["params"]["runtime"]: record for record in bench.read_records()}
    assert set(records) == set(RUNTIMES)
    for name, record in records.items():
        assert record["status"] == "ok", record["reason"]
        assert record["params"]["dtype"] == "float64"
        assert record["metrics"]["check_error"] <= 4 * 2.0**-53
        assert record["metrics"]["gbyte_per_s"] > 0
        assert record["versions"][name]
        for run in record["runs"]:
            (rank,) = run["ranks"]
            assert all(cpus == rank["cpus"] for cpus in rank["thread_cpus"].values())
            assert rank.get("num_threads", 1) == 1
            assert name in rank["versions"]
    assert len({record["work"]["bytes_per_sample"] for record in records.values()}) == 1
    shown = bench.run("show", "--store", "store").stdout
    assert all(name in shown for name in RUNTIMES)


@pytest.mark.slow
def test_cells_run_backward_where_a_framework_differentiates(bench: Bench, need: Callable[[bool, str], None]) -> None:
    for name in ("jax", "tensorflow"):
        need(importlib.util.find_spec(name) is not None, f"{name} is not installed")
    study = bench.write_study(
        f"""
        question: How fast is the backward pass of cells?
        workload: lstm_cell
        runtime: [numpy, jax, tensorflow]
        mode: infer
        fixed: {{threads: 1, batch: 1, args.problem: t3mb2sic8, args.direction: BWD_DW}}
        protocol: {QUICK_PROTOCOL}
        """
    )
    assert bench.run("run", study, "--store", "store").returncode == 0
    records = {record["params"]["runtime"]: record for record in bench.read_records()}
    assert records["numpy"]["status"] == "skipped"
    assert "numpy has no automatic differentiation" in records["numpy"]["reason"]
    for name in ("jax", "tensorflow"):
        assert records[name]["status"] == "ok", records[name]["reason"]
        assert 0 < records[name]["metrics"]["check_error"] < 1e-5
        assert records[name]["metrics"]["gflop_per_s"] > 0
        (rank,) = records[name]["runs"][0]["ranks"]
        assert (rank["direction"], rank["problem"]) == ("BWD_DW", "l1t3mb2_sic8_slc8_dhc8_dic8")
        assert all(cpus == rank["cpus"] for cpus in rank["thread_cpus"].values())


@pytest.mark.slow
def test_a_framework_that_cannot_be_imported_is_recorded_and_the_others_run(bench: Bench) -> None:
    (bench.folder / "broken").mkdir()
    bench.write_factory(BROKEN, "broken/jax.py")
    study = bench.write_study(
        STUDY.replace("[numpy, torch, jax, tensorflow]", "[numpy, jax]")
        + f"environment: {{PYTHONPATH: {bench.folder / 'broken'}}}\n"
    )
    bench.run("run", study, "--store", "store", "--trust-environment")
    records = {record["params"]["runtime"]: record for record in bench.read_records()}
    assert records["numpy"]["status"] == "ok"
    assert (records["jax"]["status"], records["jax"]["kind"]) == ("failed", "missing")
    assert "pip install 'corewise[jax]'" in records["jax"]["reason"]
    assert "a library of it is missing" in records["jax"]["reason"]
