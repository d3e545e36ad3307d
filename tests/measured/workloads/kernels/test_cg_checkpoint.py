"""Checkpoints of conjugate gradients: a killed solve resumes exactly, and bad files are refused."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, need_framework, run_for_json

from corewise.measured.runtimes.base import Infeasible, NotNow
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.cg import solve as cg_solve
from corewise.measured.workloads.kernels.cg.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from corewise.measured.workloads.kernels.cg.iteration import SolverState
from corewise.measured.workloads.kernels.cg.system import LinearSystem
from corewise.measured.workloads.kernels.cg.workload import CG
from corewise.measured.workloads.kernels.kernel import KernelSetup

PROBLEM = {"matrix": "csr", "size": 3}
SOLVE = [sys.executable, "-m", "corewise.measured.workloads.kernels.cg.solve"]
PATIENCE_S = 150


def build_checkpoint(iteration: int = 4) -> Checkpoint:
    fresh = np.random.default_rng(iteration).standard_normal
    state = SolverState(iteration, fresh(27), fresh(27), fresh(27), fresh(iteration + 1) ** 2)
    return Checkpoint(state, PROBLEM, {"num_threads": 2})


def parse_histories(lines: str) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def solve(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SOLVE, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_killed_solve_resumes_with_the_same_residuals_to_the_last_bit(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    file = tmp_path / "cg.checkpoint"
    matrix, size = random.choice([("csr", 24), ("matrix-free", 40), ("dense", 1000)])
    arguments = ["--matrix", matrix, "--size", str(size), "--runtime", runtime, "--threads", "2"]
    arguments += ["--checkpoint-every", "3", "--iterations"]
    endless = [*SOLVE, *arguments, "100000", "--checkpoint", str(file)]
    with subprocess.Popen(endless, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as victim:
        deadline = time.monotonic() + PATIENCE_S
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.1))
        victim.kill()
        victim.communicate()
    assert victim.returncode == -signal.SIGKILL, "it had ended before it was killed"
    reached = int(json.loads(file.read_bytes().split(b"\n")[1])["iteration"])
    resumed = solve(*arguments, str(reached + 20), "--checkpoint", str(file))
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after iteration {reached}" in resumed.stderr
    assert "last bits" not in resumed.stderr
    unbroken = solve(*arguments, str(reached + 20), "--checkpoint", str(tmp_path / "other"))
    assert parse_histories(resumed.stdout) == parse_histories(unbroken.stdout)
    assert len(parse_histories(resumed.stdout)) == reached + 21


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path) -> None:
    path, written = str(tmp_path / "file"), build_checkpoint()
    write_checkpoint(path, written)
    read = read_checkpoint(path, PROBLEM)
    for name in ("x", "r", "p", "residuals"):
        assert np.array_equal(getattr(read.state, name), getattr(written.state, name))
    assert read.state.iteration == 4
    assert (read.problem, read.conditions) == (written.problem, written.conditions)
    assert os.listdir(tmp_path) == ["file"]


def test_a_truncated_checkpoint_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checkpoint(str(path), build_checkpoint())
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        message = "is truncated: " if length >= first_line else "first line is damaged|is truncated"
        with pytest.raises(BadCheckpoint, match=message):
            read_checkpoint(str(path), PROBLEM)


def test_a_checkpoint_with_any_bit_flipped_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checkpoint(str(path), build_checkpoint())
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << random.randrange(8)
        path.write_bytes(bytes(flipped))
        with pytest.raises(BadCheckpoint, match=r"damaged|truncated"):
            read_checkpoint(str(path), PROBLEM)


def test_a_checkpoint_with_something_after_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checkpoint(str(path), build_checkpoint())
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BadCheckpoint, match="is damaged"):
        read_checkpoint(str(path), PROBLEM)


def test_a_checkpoint_of_another_problem_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    write_checkpoint(path, build_checkpoint())
    with pytest.raises(BadCheckpoint, match="belongs to another problem: it has size 3 instead of 4"):
        read_checkpoint(path, {"matrix": "csr", "size": 4})


def test_a_write_that_fails_leaves_the_last_checkpoint_as_it_was(tmp_path: Path) -> None:
    path, first = str(tmp_path / "file"), build_checkpoint()
    num_bytes = write_checkpoint(path, first)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writing fails midway, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checkpoint(path, build_checkpoint(9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_checkpoint(path, PROBLEM).state.iteration == 4
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "other", [{"size": 6}, {"shift": 0.5}, {"matrix": "matrix-free", "size": 5}, {"matrix": "dense", "size": 125}]
)
def test_every_part_of_a_problem_makes_it_another(tmp_path: Path, other: dict[str, Any]) -> None:
    path, args = str(tmp_path / "file"), {"matrix": "csr", "size": 5}
    system = LinearSystem(NumpyArrays(), CG.read_problem(args), seed=0, num_threads=1)
    system.solver.start()
    system.save(path, system.solver.capture_state())
    assert system.load(path).state.iteration == 0
    for seed, changed in ((0, {**args, **other}), (1, args)):
        with pytest.raises(BadCheckpoint, match="another problem"):
            LinearSystem(NumpyArrays(), CG.read_problem(changed), seed=seed, num_threads=1).load(path)


@pytest.mark.parametrize("every", [1, 20])
def test_the_check_iterates_after_its_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "iterations": 20, "checkpoint_every": every}
    run: Any = CG.build(KernelSetup(NumpyArrays(), "float64", args, seed=0, folder=str(tmp_path), num_threads=1))
    solver, resume = run._system.solver, run._system.solver.resume

    def resume_wrongly(state: SolverState) -> None:
        resume(state)
        solver.p *= 1.01

    monkeypatch.setattr(solver, "resume", resume_wrongly)
    check = run.check()
    assert not check.passed
    assert check.reference == "the residuals without a restart"


def test_processes_of_a_trial_have_separate_checkpoints(tmp_path: Path) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "iterations": 20, "checkpoint_every": 5}
    args["checkpoint"] = str(tmp_path / "mine")
    for rank in (0, 1):
        run = CG.build(KernelSetup(NumpyArrays(), "float64", args, rank, folder=str(tmp_path), num_threads=1))
        assert run.check().passed
        run.close()
    assert sorted(os.listdir(tmp_path)) == ["mine.0", "mine.1"]


def test_a_check_that_fails_leaves_no_copy_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "iterations": 20, "checkpoint_every": 5}
    run: Any = CG.build(KernelSetup(NumpyArrays(), "float64", args, seed=0, folder=str(tmp_path), num_threads=1))
    monkeypatch.delattr(run._system.solver.__class__, "resume")
    with pytest.raises(AttributeError):
        run.check()
    assert [name for name in os.listdir(tmp_path) if "first" in name] == []


@pytest.mark.parametrize("every", [4, 5, 20, 30])
def test_a_step_with_checkpoints_restarts_in_its_check_and_cleans_up(tmp_path: Path, every: int) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "iterations": 20, "checkpoint_every": every}
    run = CG.build(KernelSetup(NumpyArrays(), "float64", args, seed=0, folder=str(tmp_path), num_threads=1))
    assert run.check().passed
    assert run.read_facts().get("num_checkpoints", 0) == 20 // every
    run.close()
    assert os.listdir(tmp_path) == []


def test_the_command_reports_a_breakdown_after_the_valid_residuals(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runtime", "numpy", "--size", "8", "--shift", "-9", "--iterations", "50"]
    assert cg_solve.main(arguments) == cg_solve.FAILED
    output = capsys.readouterr()
    last = parse_histories(output.out)[-1]["iteration"]
    assert f"broke down in iteration {last + 1}: p'Ap = -" in output.err


def test_the_command_refuses_mistakes_and_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    bad.write_text("something else\n")
    for arguments, reason in (
        (["--size", "5", "--checkpoint", str(bad)], "is not a checkpoint of conjugate gradients"),
        (["--size", "1200"], r"cg needs \d+ bytes .* the largest that fits is size \d+"),
        (["--size", "0"], "size must be a whole number"),
        (["--size", "5", "--device", "cuda"], "only --runtime torch supports it"),
        (["--size", "5", "--checkpoint-every", "5"], "has no effect without --checkpoint FILE"),
        (
            ["--size", "5", "--checkpoint", str(tmp_path / "no" / "file"), "--checkpoint-every", "5"],
            "no checkpoint can be written to .*no/file: No such file or directory",
        ),
        (["--size", "5", "--checkpoint", str(tmp_path)], "no checkpoint can be written to .*: Is a directory"),
    ):
        assert cg_solve.main(["--runtime", "numpy", "--iterations", "5", *arguments]) == cg_solve.MISTAKE
        assert re.search(reason, capsys.readouterr().err)


@pytest.mark.parametrize(("option", "value"), [("--threads", "0"), ("--threads", "-1"), ("--seed", "-1")])
def test_invalid_numbers_are_refused_with_their_option(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cg_solve.main(["--size", "5", option, value])
    assert left.value.code == cg_solve.MISTAKE
    assert f"argument {option}: must be a whole number of at least" in capsys.readouterr().err


def test_fewer_iterations_than_a_checkpoint_has_are_its_first_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runtime", "numpy", "--size", "8", "--checkpoint", str(tmp_path / "c")]
    arguments += ["--checkpoint-every", "10", "--iterations"]
    assert cg_solve.main([*arguments, "30"]) == cg_solve.DONE
    whole = parse_histories(capsys.readouterr().out)
    assert cg_solve.main([*arguments, "20"]) == cg_solve.DONE
    output = capsys.readouterr()
    assert parse_histories(output.out) == whole[:21]
    assert "already has 30 iterations; showing the first 20" in output.err


def test_a_full_disk_is_reported_before_and_during_a_solve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    arguments = ["--runtime", "numpy", "--size", "8", "--checkpoint", str(path), "--iterations", "50"]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert cg_solve.main(arguments) == cg_solve.FAILED
    output = capsys.readouterr()
    assert output.out == ""
    assert re.search(rf"no space for the checkpoint {path} of \d+ bytes: .* 1000 bytes free", output.err)
    monkeypatch.undo()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert cg_solve.main(arguments) == cg_solve.FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    output = capsys.readouterr()
    assert re.search(rf"the checkpoint {path} of \d+ bytes could not be written: File too large", output.err)
    assert os.listdir(tmp_path) == []


def test_a_restart_under_other_conditions_warns_of_last_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    arguments = ["--size", "6", "--checkpoint", str(tmp_path / "c"), "--checkpoint-every", "5", "--iterations"]
    arguments = ["--threads", "1", *arguments]
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert cg_solve.main([*arguments, "5"]) == cg_solve.DONE
    kept = json.loads((tmp_path / "c").read_bytes().split(b"\n")[1])["conditions"]
    assert {"version of torch", "version of numpy", "cpu_capability"} <= set(kept)
    assert cg_solve.main([*arguments, "10"]) == cg_solve.DONE
    assert "last bits" not in capsys.readouterr().err
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert cg_solve.main([*arguments, "15"]) == cg_solve.DONE
    output = capsys.readouterr().err
    assert "the last bits may differ from an uninterrupted run: MKL_CBWR not set then, COMPATIBLE now" in output


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_take_the_threads_they_are_given(need: Need, framework: str, tmp_path: Path) -> None:
    need_framework(need, framework)
    source = f"""
import json, os, sys
for name in ("PJRT_NPROC", "TF_NUM_INTRAOP_THREADS"):
    os.environ.pop(name, None)
from corewise.measured.workloads.kernels.cg import solve as cg_solve
assert "numpy" not in sys.modules
arguments = ["--runtime", "{framework}", "--size", "4", "--iterations", "2", "--threads", "1"]
assert cg_solve.main(arguments) == 0
if "{framework}" == "jax":
    from corewise.measured.runtimes.jax.settings import count_pool_threads
    print(json.dumps(count_pool_threads()))
else:
    from corewise.measured.runtimes.tensorflow.settings import read_process_facts
    print(json.dumps(read_process_facts("cpu", 0)["num_threads"]))
"""
    assert run_for_json(source, {}, tmp_path) == 1


def test_the_command_ends_at_its_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert cg_solve.main(["--runtime", "numpy", "--size", "12", "--tolerance", "1e-6"]) == cg_solve.DONE
    history = parse_histories(capsys.readouterr().out)
    assert len(history) < 100
    assert history[-1]["residual"] <= 1e-6 * history[0]["residual"]


def test_the_command_counts_the_memory_of_the_framework(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runtime", "numpy", "--matrix", "matrix-free", "--size", "128", "--iterations", "1"]
    of_vectors = CG.read_problem({"matrix": "matrix-free", "size": 128}).estimate_memory_bytes()
    monkeypatch.setattr(NumpyArrays, "free_bytes", lambda self: 2 * of_vectors)
    assert cg_solve.main(arguments) == cg_solve.MISTAKE
    output = re.search(r"cg needs (\d+) bytes .* the largest that fits is size \d+", capsys.readouterr().err)
    assert output is not None
    assert int(output.group(1)) > 3 * of_vectors


def test_a_study_is_refused_early_if_no_checkpoint_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "checkpoint_every": 5}

    def build(checkpoint: Path) -> Any:
        given = {**args, "checkpoint": str(checkpoint)}
        return CG.build(KernelSetup(NumpyArrays(), "float64", given, 0, folder=str(tmp_path), num_threads=1))

    with pytest.raises(Infeasible, match=r"cg: no checkpoint can be written to .*c\.0: No such file"):
        build(tmp_path / "missing" / "c")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(NotNow, match=r"cg: no space for the checkpoint"):
        build(tmp_path / "c")


@pytest.mark.parametrize(("every", "is_noted"), [(0, False), (20, False), (21, True)])
def test_checkpoints_that_no_step_reaches_are_noted(tmp_path: Path, every: int, is_noted: bool) -> None:
    args = {**CG.parameters, "matrix": "csr", "size": 6, "iterations": 20, "checkpoint_every": every}
    run: Any = CG.build(KernelSetup(NumpyArrays(), "float64", args, seed=0, folder=str(tmp_path), num_threads=1))
    assert any("no checkpoint is written" in note for note in run.collect_notes()) == is_noted
