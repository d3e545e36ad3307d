"""Studies from file to records, on this machine."""

import json
import os

import pytest

from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench
from tests.store.edited_records import edit_record

MATMUL = f"""
question: Does a product of two matrices run here?
workload: matmul
mode: infer
runtime: numpy
axes:
  args.size: [32, 48]
fixed: {{threads: 1, batch: 1}}
protocol: {QUICK_PROTOCOL}
"""


def test_a_study_leaves_one_record_per_trial_and_a_second_run_does_nothing(bench: Bench) -> None:
    study = bench.write_study(MATMUL)
    first = bench.run("run", study, "--store", "store")
    assert first.returncode == 0, first.stderr
    records = bench.read_records()
    assert sorted(r["params"]["args.size"] for r in records) == [32, 48]
    for record in records:
        assert record["status"] == "ok"
        assert record["metrics"]["samples_per_s"] > 0
        assert record["metrics"]["step_s_low"] <= record["metrics"]["step_s"] <= record["metrics"]["step_s_high"]
        assert record["metrics"]["check_error"] < 1e-3
        assert len(record["samples_s"]) >= 6
        assert len({rank["pid"] for run in record["runs"] for rank in run["ranks"]}) == 2
    again = bench.run("run", study, "--store", "store", "--json")
    assert json.loads(again.stdout)["num_already_done"] == 2
    assert [r["finished_at"] for r in bench.read_records()] == [r["finished_at"] for r in records]


def test_a_trial_whose_record_was_edited_is_named_and_measured_again(bench: Bench) -> None:
    study = bench.write_study(MATMUL.replace("[32, 48]", "[32]"))
    bench.run("run", study, "--store", "store")
    [file] = (bench.folder / "store/records").iterdir()
    edit_record(file, ("runs", 0, "samples_s", 0), float("nan"))
    again = bench.run("run", study, "--store", "store", "--json")
    problem = "runs[0].samples_s[0] is the number nan, not a finite number"
    where = f"store/records/{file.name}, line 1 (byte 0)"
    assert f"corewise: skipped a damaged record: {where}: {problem}\n" in again.stderr
    outcome = json.loads(again.stdout)
    assert (outcome["num_ok"], outcome["num_already_done"]) == (1, 0)
    assert [record["params"]["args.size"] for record in bench.read_records()] == [32]


def test_an_override_is_another_trial_in_the_same_store(bench: Bench) -> None:
    study = bench.write_study(MATMUL)
    bench.run("run", study, "--store", "store")
    bench.run("run", study, "--store", "store", "--set", "args.size=40")
    assert sorted(r["params"]["args.size"] for r in bench.read_records()) == [32, 40, 48]


def test_a_plan_runs_nothing_and_its_command_can_be_run(bench: Bench) -> None:
    study = bench.write_study(MATMUL)
    planned = bench.run("plan", study, "--json", "--write", "trials")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert len(plan["trials"]) == 2
    assert plan["estimated_s"] > 0
    assert not (bench.folder / "store").exists()
    command = plan["trials"][0]["command"]
    assert os.system(f"cd {bench.folder} && {command} > output.txt") == 0
    assert "rank 0: ok" in (bench.folder / "output.txt").read_text()


def test_a_plan_shows_what_is_done(bench: Bench) -> None:
    study = bench.write_study(MATMUL)
    bench.run("run", study, "--store", "store", "--set", "args.size=32")
    plan = json.loads(bench.run("plan", study, "--store", "store", "--json").stdout)
    assert [(each["params"]["args.size"], each["is_done"]) for each in plan["trials"]] == [(32, True), (48, False)]
    assert bench.read_records()[0]["trial_id"] == plan["trials"][0]["trial_id"]
    shown = bench.run("plan", study, "--store", "store").stdout
    assert "2 trials (1 already done)" in shown
    elsewhere = bench.run("plan", study, "--store", "none", "--json").stdout
    assert [each["is_done"] for each in json.loads(elsewhere)["trials"]] == [False, False]
    assert not (bench.folder / "none").exists()


def test_a_study_that_sets_variables_which_load_code_needs_consent(bench: Bench) -> None:
    bench.write_factory("", "started.py")
    variable = f"PYTHONPATH: {bench.folder}"
    study = bench.write_study(MATMUL + f"environment: {{{variable}, OMP_DYNAMIC: 'false'}}\n")
    refused = bench.run("run", study, "--store", "store")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"study.yaml: its environment can load code or change more than speed:\n  PYTHONPATH='{bench.folder}'" in (
        refused.stderr
    )
    assert "--trust-environment" in refused.stderr
    assert "OMP_DYNAMIC" not in refused.stderr
    assert not (bench.folder / "store").exists()
    shown = bench.run("plan", study)
    assert (shown.returncode, f"PYTHONPATH='{bench.folder}'" in shown.stdout) == (0, True)
    assert bench.run("plan", study, "--probe").returncode == 2
    plan = json.loads(bench.run("plan", study, "--json").stdout)
    assert plan["untrusted_environment"] == {"PYTHONPATH": str(bench.folder)}
    done = bench.run("run", study, "--store", "store", "--trust-environment")
    assert done.returncode == 0, done.stderr
    assert f"study.yaml sets, as you allow:\n  PYTHONPATH='{bench.folder}'" in done.stderr
    assert bench.read_records()[0]["env"]["PYTHONPATH"] == str(bench.folder)


def test_the_environment_of_the_user_does_not_reach_a_trial(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    own = bench.write_factory(
        """
        import os
        def factory(batch, mode):
            leaked = "OMP_DYNAMIC" in os.environ or os.environ["OMP_NUM_THREADS"] != "1"
            return {"step": lambda: None, "samples_per_step": 1, "check": lambda: (float(leaked), 0.5)}
        """
    )
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    study = bench.write_study(
        f"""
        question: Is the environment ours?
        workload: {own}:factory
        mode: infer
        runtime: numpy
        fixed: {{threads: 1, batch: 1}}
        protocol: {QUICK_PROTOCOL}
        """
    )
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 0, bench.read_records()[0]["reason"]


def test_a_trial_stays_within_one_cpu_of_the_allocation(bench: Bench) -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    study = bench.write_study(MATMUL)
    command = bench.build_command("run", study, "--store", "store")
    os.sched_setaffinity(0, {cpu})
    try:
        done = bench.run(*command[3:])
    finally:
        os.sched_setaffinity(0, before)
    assert done.returncode == 0, done.stderr
    for record in bench.read_records():
        assert record["machine"]["allocation_cpus"] == str(cpu)
        for run in record["runs"]:
            assert {c for rank in run["ranks"] for cpus in rank["thread_cpus"].values() for c in cpus} == {cpu}


def test_infeasible_points_are_recorded_as_skipped_with_the_reason(bench: Bench) -> None:
    study = bench.write_study(MATMUL)
    many = 10 * (os.cpu_count() or 1)
    done = bench.run("run", study, "--store", "store", "--set", f"threads=1,{many}", "--set", "args.size=32")
    assert done.returncode == 0, done.stderr
    statuses = {r["params"]["threads"]: (r["status"], r["reason"]) for r in bench.read_records()}
    assert statuses[1][0] == "ok"
    assert statuses[many][0] == "skipped"
    assert str(many) in statuses[many][1]
