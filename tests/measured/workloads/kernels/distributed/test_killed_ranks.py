"""Commands on several ranks: one rank is killed, the others end soon, and other numbers of ranks resume."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SOLVE = ("corewise.measured.workloads.kernels.cg.solve", "--distributed", "--matrix", "dense", "--threads", "1")
PRODUCT = ("corewise.measured.workloads.kernels.tiled_product", "--distributed", "--threads", "1", "--json")
PATIENCE_S = 120.0
LOST = "the connection to another rank was lost; run the same command again to resume"

pytest.importorskip("torch")


def find_free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def start_ranks(num_ranks: int, *arguments: str) -> "list[subprocess.Popen[str]]":
    """Start the ranks as torchrun and `corewise launch` do."""
    port = find_free_port()
    ranks = []
    for rank in range(num_ranks):
        job = {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": num_ranks}
        env = {**os.environ, **{name: str(value) for name, value in job.items()}, "MASTER_ADDR": "127.0.0.1"}
        env["MASTER_PORT"] = str(port)
        command = [sys.executable, "-m", *arguments]
        ranks.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return ranks


def finish_ranks(ranks: "Sequence[subprocess.Popen[str]]") -> list[tuple[int, str, str]]:
    """Return the exit code, output and errors of each rank."""
    outputs = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


def run_ranks(num_ranks: int, *arguments: str) -> tuple[str, str]:
    """Run to the end; return output and errors of rank 0."""
    finished = finish_ranks(start_ranks(num_ranks, *arguments))
    assert [code for code, _, _ in finished] == [0] * num_ranks, finished
    assert [output for _, output, _ in finished[1:]] == [""] * (num_ranks - 1)
    return finished[0][1], finished[0][2]


def kill_one_rank(ranks: "Sequence[subprocess.Popen[str]]", is_time: Callable[[], bool]) -> list[tuple[int, str, str]]:
    """Kill the last rank when it is time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_time() and time.monotonic() < deadline and all(rank.poll() is None for rank in ranks):
        time.sleep(0.002)
    ranks[-1].send_signal(signal.SIGKILL)
    finished = finish_ranks(ranks)
    assert finished[-1][0] == -signal.SIGKILL, "the rank had ended before it was killed"
    return finished


def parse_residuals(output: str) -> Any:
    return np.array([json.loads(line)["residual"] for line in output.splitlines()])


def read_iteration(file: Path) -> int:
    header: Mapping[str, Any] = json.loads(file.read_bytes().split(b"\n")[1])
    return int(header["iteration"])


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_killed_solve_resumes_on_another_number_of_ranks(before: int, after: int, tmp_path: Path) -> None:
    file = tmp_path / "cg"
    arguments = [*SOLVE, "--size", "801", "--checkpoint-every", "3", "--iterations"]
    ranks = start_ranks(before, *arguments, "100000", "--checkpoint", str(file))
    others = kill_one_rank(ranks, file.exists)[:-1]
    for code, _, errors in others:
        assert code == 1
        assert LOST in errors
    reached = read_iteration(file)
    wanted = str(reached + 12)
    resumed, errors = run_ranks(after, *arguments, wanted, "--checkpoint", str(file))
    assert f"resuming after iteration {reached}" in errors
    # The residuals of an uninterrupted solve, as far as they are above the rounding of the last bits.
    unbroken, _ = run_ranks(1, *arguments, wanted, "--checkpoint", str(tmp_path / "other"))
    residuals, expected = parse_residuals(resumed), parse_residuals(unbroken)
    assert len(residuals) == reached + 13
    assert np.max(np.abs(residuals - expected)) < 1e-10 * expected[0]


@pytest.mark.slow
def test_a_killed_product_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    arguments = [*PRODUCT, "--size", "1500", "--tile", "100", "--folder", str(folder)]
    ranks = start_ranks(3, *arguments)
    others = kill_one_rank(ranks, lambda: len(list(folder.glob("C_*.tile"))) > 20)[:-1]
    assert {code for code, _, _ in others} == {1}
    kept = len(list(folder.glob("C_*.tile")))
    assert 20 < kept < 225
    output, _ = run_ranks(2, *arguments)
    result = json.loads(output)
    assert result["check_passed"]
    assert (result["num_tiles_kept"], result["num_tiles_written"]) == (kept, 225 - kept)
    assert not list(folder.glob(".C_*"))


@pytest.mark.slow
def test_mistakes_end_every_rank_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "cg"
    run_ranks(2, *SOLVE, "--size", "64", "--iterations", "4", "--checkpoint", str(file), "--checkpoint-every", "2")
    arguments = [*SOLVE, "--size", "65", "--iterations", "4", "--checkpoint", str(file), "--checkpoint-every", "2"]
    first, second = finish_ranks(start_ranks(2, *arguments))
    assert (first[0], second[0]) == (2, 2)
    assert "belongs to another problem: it has size 64 instead of 65" in first[2]
    too_few = finish_ranks(start_ranks(2, *SOLVE, "--size", "1"))
    assert all("2 processes cannot share 1 rows" in errors for _, _, errors in too_few)
    sparse = finish_ranks(start_ranks(2, *SOLVE, "--matrix", "csr"))
    assert all("add --matrix dense" in errors for _, _, errors in sparse)


@pytest.mark.slow
def test_without_a_launcher_the_command_names_some(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "SLURM", "OMPI", "PMI"))}
    command = [sys.executable, "-m", *PRODUCT, "--size", "8", "--folder", str(tmp_path / "tiles")]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "start it with srun, mpirun, torchrun or `corewise launch" in done.stderr
