"""Distributed kernels on one, two and three forked ranks, which pass messages over gloo."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("run_kernel_ranks.py")
NUM_RANKS = (1, 2, 3)
RUNTIMES = ("torch", "numpy")
SCENARIOS = (*("cg", "cg_checkpoints", "fft_interleaved", "fft_natural", "fft_short", "product", "product_of_teams"),)


class Results:
    """What all ranks of all groups found: facts by group and rank, and arrays."""

    def __init__(self, folder: Path) -> None:
        self._facts = {
            (count, rank): json.loads((folder / f"{count}-{rank}.json").read_text())
            for count in NUM_RANKS
            for rank in range(count)
        }
        self._values = {place: dict(np.load(folder / f"{place[0]}-{place[1]}.npz")) for place in self._facts}

    def list_facts(self, num_ranks: int, name: str) -> list[Any]:
        return [self._facts[num_ranks, rank][name] for rank in range(num_ranks)]

    def list_values(self, num_ranks: int, name: str) -> list[Any]:
        return [self._values[num_ranks, rank][name] for rank in range(num_ranks)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, NUM_RANKS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Results(folder)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_numbers_are_right_on_every_rank(results: Results, scenario: str, runtime: str, num_ranks: int) -> None:
    for facts in results.list_facts(num_ranks, f"{runtime} {scenario}"):
        assert facts["check_passed"], facts
        assert not facts["independent"]
        assert facts["samples_per_step"] * num_ranks == pytest.approx(1)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_step_is_split_into_computing_and_messages(results: Results, scenario: str, num_ranks: int) -> None:
    for facts in results.list_facts(num_ranks, f"torch {scenario}"):
        parts = {"compute_s", "communication_s", *(["input_s"] if "product" in scenario else [])}
        assert set(facts["metrics"]) == parts
        assert facts["metrics"]["compute_s"] > 0
        assert facts["metrics"]["communication_s"] > 0
        backend = "none" if num_ranks == 1 else "gloo"
        assert facts["facts"]["collectives_backend"] == backend


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_all_ranks_have_the_solution_of_one_rank(results: Results, num_ranks: int, runtime: str) -> None:
    (expected,) = results.list_values(1, f"{runtime} cg x")
    solutions = results.list_values(num_ranks, f"{runtime} cg x")
    for x in solutions:
        assert np.max(np.abs(x - expected)) < 1e-12 * np.max(np.abs(expected))
        assert np.array_equal(x, solutions[0])
    (alone,) = results.list_values(1, f"{runtime} cg residuals")
    together = results.list_values(num_ranks, f"{runtime} cg residuals")[0]
    assert np.allclose(together, alone, rtol=1e-9, atol=0)


def test_the_solution_is_that_of_the_solver_in_one_process(results: Results) -> None:
    from corewise.measured.runtimes.numpy.arrays import NumpyArrays
    from corewise.measured.workloads.kernels.cg.system import LinearSystem
    from corewise.measured.workloads.kernels.cg.workload import CG

    problem = CG.read_problem({"size": 101, "iterations": 20})
    system = LinearSystem(NumpyArrays(), problem, 0, 1)
    system.solver.start()
    system.solver.run(20)
    for x in results.list_values(2, "numpy cg x"):
        assert np.max(np.abs(x - system.solver.x)) < 1e-12 * np.max(np.abs(x))


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("scenario", ["fft_interleaved", "fft_natural", "fft_short"])
def test_the_transform_is_that_of_one_process_in_the_documented_order(
    results: Results, scenario: str, runtime: str, num_ranks: int
) -> None:
    rows, columns = results.list_facts(num_ranks, f"{runtime} {scenario}")[0]["facts"]["signal_matrix"]
    shares, transforms = (
        np.concatenate(results.list_values(num_ranks, f"{runtime} {scenario} {name}"))
        for name in ("signal", "transform")
    )
    if scenario == "fft_natural":
        signal, transform = shares.reshape(-1), transforms.reshape(-1)
    else:
        # Row b has the samples b, b + columns, ...; row p has the frequencies p, p + rows, ...
        assert shares.shape == (columns, rows)
        assert transforms.shape == (rows, columns)
        signal, transform = shares.T.reshape(-1), transforms.T.reshape(-1)
    assert np.std(signal) > 0.5
    error = np.max(np.abs(transform - np.fft.fft(signal.astype(np.complex128))))
    assert error < (1e-4 if scenario == "fft_short" else 1e-12) * len(signal)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("scenario", ["product", "product_of_teams"])
def test_every_number_of_the_product_is_right(results: Results, scenario: str, runtime: str, num_ranks: int) -> None:
    a, b, c = (results.list_values(num_ranks, f"{runtime} {scenario} {name}")[0] for name in "abc")
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.max(np.abs(c - expected)) < (1e-12 if scenario == "product" else 1e-4)
    (alone,) = results.list_values(1, f"{runtime} {scenario} a")
    assert np.array_equal(a, alone)


def test_ranks_of_a_team_share_each_tile(results: Results) -> None:
    assert results.list_facts(1, "torch product_of_teams")[0]["facts"]["ranks_per_tile"] == 1
    for facts in results.list_facts(2, "torch product_of_teams"):
        assert facts["facts"]["ranks_per_tile"] == 2
        assert facts["facts"]["push_s"] > 0
        assert facts["facts"]["num_tiles_written"] == 8


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("cg_of_few_rows", "processes cannot share 1 rows; use at most 1"),
        ("fft_of_a_size_that_does_not_divide", "cannot share a signal of 34 values"),
        ("product_of_one_tile", "cannot share 1 products of tiles"),
    ],
)
def test_ranks_that_cannot_share_a_problem_are_refused(
    results: Results, scenario: str, reason: str, num_ranks: int
) -> None:
    for refusals in results.list_facts(num_ranks, "refusals"):
        assert reason in refusals[scenario]


def test_a_folder_that_is_not_shared_is_refused_before_anything_is_computed(results: Results) -> None:
    (alone,) = results.list_facts(1, "refusals")
    assert alone["product_in_separate_folders"] == ""
    for num_ranks in (2, 3):
        for rank, refusals in enumerate(results.list_facts(num_ranks, "refusals")):
            reason = refusals["product_in_separate_folders"]
            assert "is not shared by all ranks" in reason
            assert "Name a folder on a shared file system in args.folder" in reason
            assert (f"rank {rank} on " in reason) == (rank > 0)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("scenario", ["product_in_an_unusable_folder", "cg_checkpoint_in_an_unusable_folder"])
def test_an_unusable_folder_is_named_by_the_first_rank_and_ends_the_others(
    results: Results, scenario: str, num_ranks: int
) -> None:
    first, *others = results.list_facts(num_ranks, "refusals")
    assert "/proc/none" in first[scenario]
    assert [each[scenario] for each in others] == ["rank 0 failed; its message has the reason"] * (num_ranks - 1)
