"""Conjugate gradients: right on every framework, exact counts, breakdowns that say what happened."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.runtimes.numpy.arrays import NumpyArrays
from corewise.workloads.kernels import cg_operators
from corewise.workloads.kernels.base import Setup
from corewise.workloads.kernels.cg import CG, ConjugateGradientRun
from corewise.workloads.kernels.cg_iteration import Breakdown, iterations_at_once
from corewise.workloads.kernels.cg_operators import make_operator
from corewise.workloads.kernels.cg_stencil import (
    num_nonzeros,
    stencil_eigenvalues,
    stencil_product,
    stencil_rows,
)
from corewise.workloads.kernels.cg_system import System

SIZES = {"dense": 150, "csr": 9, "matrix-free": 9}


def torch_arrays() -> Any:
    pytest.importorskip("torch")
    from corewise.runtimes.torch.arrays import TorchArrays

    return TorchArrays()


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Any:
    return NumpyArrays() if request.param == "numpy" else torch_arrays()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, row blocks and vector blocks so small that a small system has many, the last ones shorter."""
    monkeypatch.setattr(cg_operators, "TILE", 32)
    monkeypatch.setattr(cg_operators, "LARGEST_BLOCK", 150 * 64)
    monkeypatch.setattr(cg_operators, "ELEMENTS_PER_THREAD", 200)


def built(arrays: Any, folder: Path, matrix: str, **args: Any) -> Any:
    given = {**CG.parameters, "matrix": matrix, "size": SIZES[matrix], "iterations": 25, **args}
    return CG.build(Setup(arrays, "float64", given, seed=3, folder=str(folder), num_threads=1))


def dense_stencil(edge: int, shift: float = 0.0) -> Any:
    """The stencil's matrix by its definition: points no further than one step apart in every direction."""
    places = np.array([(z, y, x) for z in range(edge) for y in range(edge) for x in range(edge)])
    near = np.abs(places[:, None, :] - places[None, :, :]).max(axis=2) <= 1
    return np.where(near, -1.0, 0.0) + (27 + shift) * np.eye(edge**3)


@pytest.mark.parametrize("matrix", SIZES)
def test_a_solve_passes_its_checks(arrays: Any, matrix: str, tmp_path: Path) -> None:
    run = built(arrays, tmp_path, matrix)
    check = run.check()
    assert check.passed, check
    history = run.facts()["residual_history"]
    assert history[0] == [0, 1.0]
    assert history[-1][0] == 25
    assert history[-1][1] < 1e-5
    run.close()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("matrix", SIZES)
def test_blocks_of_rows_and_vectors_change_nothing_but_last_bits(
    arrays: Any, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks = built(arrays, tmp_path, matrix)
    assert in_blocks.check().passed
    operator = in_blocks._system.operator
    assert len(operator.data if matrix != "matrix-free" else operator.blocks) > 2
    monkeypatch.setattr(cg_operators, "LARGEST_BLOCK", 2**30)
    monkeypatch.setattr(cg_operators, "ELEMENTS_PER_THREAD", 2**30)
    whole = built(arrays, tmp_path, matrix)
    whole.step()
    histories = [run._system.solver.residuals() for run in (in_blocks, whole)]
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("matrix", SIZES)
def test_jax_and_tensorflow_solve_the_same_systems(
    framework: str, matrix: str, tmp_path: Path, need: Need
) -> None:
    need_framework(need, framework)
    theirs, ours = (
        built(each, tmp_path, matrix, iterations=6, checkpoint_every=3)
        for each in (make_arrays(framework), NumpyArrays())
    )
    assert theirs.check().passed
    theirs.step()  # again: arrays given up in the first step are not used in the second
    ours.step()
    np.testing.assert_allclose(theirs._system.solver.residuals(), ours._system.solver.residuals(), rtol=1e-10)


@pytest.mark.parametrize("edge", [1, 2, 5])
@pytest.mark.parametrize("matrix", ["csr", "matrix-free"])
def test_the_stencil_is_the_matrix_of_its_definition(arrays: Any, matrix: str, edge: int) -> None:
    operator = make_operator(matrix, arrays, edge, 0.5, seed=0, num_threads=1)
    wanted = dense_stencil(edge, 0.5)
    x = np.random.default_rng(edge).standard_normal(edge**3)
    out = arrays.from_host(operator.embed(np.full(edge**3, np.pi)))
    got, curvature = operator.product(operator.data, arrays.from_host(operator.embed(x)), out)
    np.testing.assert_allclose(operator.extract(arrays.to_host(got)), wanted @ x, rtol=0, atol=1e-12)
    assert float(curvature) == pytest.approx(x @ wanted @ x)
    np.testing.assert_allclose(stencil_product(x, edge, 0.5), wanted @ x, rtol=0, atol=1e-12)


def test_the_border_of_a_matrix_free_vector_stays_zero(arrays: Any) -> None:
    operator = make_operator("matrix-free", arrays, 6, 0.0, seed=0, num_threads=1)
    p = arrays.from_host(operator.embed(np.random.default_rng(6).standard_normal(6**3)))
    out, _ = operator.product(operator.data, p, arrays.zeros((operator.length,), "float64"))
    got = arrays.to_host(out)
    assert np.array_equal(got, operator.embed(operator.extract(got)))


def test_rows_of_the_stencil_are_the_same_whether_made_at_once_or_in_pieces() -> None:
    starts, columns, values = stencil_rows(4, 0, 64, 0.0)
    assert starts[-1] == len(columns) == len(values) == num_nonzeros(4)
    first, second = stencil_rows(4, 0, 23, 0.0), stencil_rows(4, 23, 64, 0.0)
    assert np.array_equal(np.concatenate([first[1], second[1]]), columns)
    assert np.array_equal(np.concatenate([first[0][:-1], second[0] + first[0][-1]]), starts)
    assert starts.dtype == columns.dtype == np.int32


@pytest.mark.parametrize("edge", [1, 2, 3, 6])
def test_the_eigenvalues_of_the_stencil_are_exact(edge: int) -> None:
    found = np.linalg.eigvalsh(dense_stencil(edge, -0.25))
    assert stencil_eigenvalues(edge, -0.25) == pytest.approx((found[0], found[-1]))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [1, 2, 5, 64, 150])
def test_a_dense_matrix_is_symmetric_positive_definite_and_full_of_random_numbers(size: int) -> None:
    operator = make_operator("dense", NumpyArrays(), size, 0.0, seed=7, num_threads=1)
    matrix = np.concatenate(operator.data)
    assert np.array_equal(matrix, matrix.T)
    least, greatest = operator.eigenvalues()
    found = np.linalg.eigvalsh(matrix)
    assert 0 < least <= found[0]
    assert found[-1] <= greatest
    assert len(np.unique(matrix)) == size * (size + 1) // 2


def test_a_wrong_product_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = NumpyArrays()
    run = built(arrays, tmp_path, "csr")
    matrix = run._system.operator.data[0]
    matrix.values[1000] += 1e-3
    assert not run.check().passed


def test_the_check_that_comes_closest_to_what_it_allows_is_told(tmp_path: Path) -> None:
    run: Any = built(NumpyArrays(), tmp_path, "csr", tolerance=1e-4)
    run.check()
    reached = run.facts()["residual_history"][-1][1]
    close = built(NumpyArrays(), tmp_path, "csr", tolerance=reached * 1.001).check()
    assert close.passed
    assert close.reference == "the tolerance asked for"


def test_a_solver_that_is_not_conjugate_gradients_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steepest descent: the residual it carries is true, but it is slower than theory allows."""
    run = built(NumpyArrays(), tmp_path, "csr", size=20, iterations=60)
    solver = run._system.solver
    turn = type(solver)._turn
    monkeypatch.setattr(type(solver), "_turn", lambda self, x, step, p, r, _: turn(self, x, step, p, r, 0.0))
    check = run.check()
    assert not check.passed
    assert "bound for conjugate gradients" in check.reference


@pytest.mark.parametrize("matrix", SIZES)
def test_an_indefinite_matrix_is_reported_with_iteration_and_curvature(
    arrays: Any, matrix: str, tmp_path: Path
) -> None:
    run = built(arrays, tmp_path, matrix, shift=-2.0 if matrix == "dense" else -20.0)
    with pytest.raises(Breakdown, match=r"in iteration \d+: p'Ap = -\S+, so the matrix is not positive"):
        run.check()


def test_a_breakdown_names_the_first_bad_iteration(tmp_path: Path) -> None:
    """Against the same recurrences, written down in numpy."""
    run = built(NumpyArrays(), tmp_path, "csr", shift=-9.0)
    a, b = dense_stencil(9, -9.0), run._system.rhs
    r, p, iteration = b.copy(), b.copy(), 0
    while True:
        iteration += 1
        curvature = p @ a @ p
        if curvature <= 0:
            break
        step, before = (r @ r) / curvature, r @ r
        r = r - step * (a @ p)
        p = r + (r @ r) / before * p
    with pytest.raises(Breakdown, match=f"in iteration {iteration}: p'Ap = {curvature:.4g}"[:-2]):
        run.check()
    assert len(run._system.solver.known_residuals()) == iteration  # that before the first, and the good ones


def test_a_system_solved_exactly_stays_solved(arrays: Any, tmp_path: Path) -> None:
    for matrix in ("dense", "csr", "matrix-free"):
        run = built(arrays, tmp_path, matrix, size=1, iterations=40)
        assert run.check().passed
        assert np.all(np.isfinite(run._system.solver.residuals()))


def test_a_tolerance_that_is_not_reached_fails_the_check(tmp_path: Path) -> None:
    assert built(NumpyArrays(), tmp_path, "csr", tolerance=1e-4).check().passed
    check = built(NumpyArrays(), tmp_path, "csr", tolerance=1e-14).check()
    assert not check.passed
    assert check.reference == "the tolerance asked for"


def test_the_work_is_counted_as_the_papers_count_it() -> None:
    dense = CG.work("infer", {"matrix": "dense", "size": 1000, "iterations": 500})
    assert dense.flops_per_sample == 500 * 2 * 1000**2
    assert dense.bytes_per_sample == 500 * (8 * 1000**2 + 80 * 1000)
    nonzeros = len(stencil_rows(7, 0, 343, 0.0)[1])
    csr = CG.work("infer", {"matrix": "csr", "size": 7, "iterations": 3})
    assert csr.flops_per_sample == 3 * (2 * nonzeros + 10 * 343)
    assert csr.bytes_per_sample == 3 * (12 * nonzeros + 4 * 344 + 80 * 343)
    free = CG.work("infer", {"matrix": "matrix-free", "size": 7, "iterations": 3})
    assert free.flops_per_sample == csr.flops_per_sample
    assert free.bytes_per_sample == 3 * 80 * 343


@pytest.mark.parametrize("matrix", SIZES)
def test_the_largest_system_that_fits_fits_and_the_next_does_not(matrix: str) -> None:
    args = {"matrix": matrix, "size": 1000}
    size = CG.largest_that_fits(args, "float64", 10**6)["size"]
    assert CG.needed_bytes({**args, "size": size}, "float64") <= 10**6
    assert CG.needed_bytes({**args, "size": size + 1}, "float64") > 10**6


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"matrix": "sparse"}, "must be one of dense, csr, matrix-free"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"matrix": "csr", "size": 4096}, "edge of a cube"),
        ({"iterations": 2.5}, "iterations must be a whole number"),
        ({"shift": "much"}, "shift must be a finite number"),
        ({"shift": float("nan")}, "shift must be a finite number, not nan"),
        ({"shift": float("-inf")}, "shift must be a finite number, not -inf"),
        ({"tolerance": -1.0}, "tolerance must be a number of at least 0"),
        ({"checkpoint": "file"}, "needs checkpoint_every"),
        ({"iteration": 5}, "no parameter 'iteration'"),
    ],
)
def test_what_cannot_be_asked_is_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CG.work("infer", args)


@pytest.mark.parametrize(
    ("num_iterations", "every", "at_once"),
    [(500, 0, 10), (47, 0, 10), (7, 0, 7), (1, 0, 1), (500, 50, 10), (500, 7, 7), (100, 11, 1), (3, 12, 6)],
)
def test_iterations_compiled_together_end_at_checkpoints(
    num_iterations: int, every: int, at_once: int
) -> None:
    assert iterations_at_once(num_iterations, every) == at_once


def test_a_step_begins_anew(arrays: Any, tmp_path: Path) -> None:
    run: ConjugateGradientRun = built(arrays, tmp_path, "matrix-free", iterations=13)
    histories = []
    for _ in range(2):
        run.step()
        histories.append(run._system.solver.residuals().copy())
    assert np.array_equal(*histories)
    assert len(histories[0]) == 14


def test_the_solution_is_that_of_a_direct_solver(tmp_path: Path) -> None:
    run = built(NumpyArrays(), tmp_path, "dense", iterations=100)
    run.step()
    matrix = np.concatenate(run._system.operator.data)
    direct = np.linalg.solve(matrix, run._system.rhs)
    assert np.linalg.norm(run._system.solver.state().x - direct) < 1e-11 * np.linalg.norm(direct)
    assert math.isclose(np.linalg.norm(direct), np.linalg.norm(run._system.solution), rel_tol=1e-9)


@pytest.mark.parametrize("matrix", SIZES)
def test_the_direction_divided_by_the_residual_gives_the_same_iterations(arrays: Any, matrix: str) -> None:
    """What a GPU runs, here on the CPU."""
    system = System(arrays, CG.problem({"matrix": matrix, "size": SIZES[matrix]}), seed=3, num_threads=1)
    solver, histories, solutions = system.solver, [], []
    for divided in (False, True):
        solver.divide(divided)
        solver.start()
        solver.run(20)
        histories.append(solver.residuals())
        solutions.append(solver.state().x)
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-9)
    np.testing.assert_allclose(solutions[0], solutions[1], rtol=0, atol=1e-12)


def test_the_divided_form_goes_on_from_a_state_to_the_last_bit(arrays: Any) -> None:
    system = System(arrays, CG.problem({"matrix": "csr", "size": SIZES["csr"]}), seed=3, num_threads=1)
    solver = system.solver
    solver.divide(True)
    solver.start()
    solver.run(10)
    middle = solver.state()
    solver.run(20)
    unbroken = solver.state()
    solver.resume(middle)
    solver.run(20)
    assert np.array_equal(solver.state().residuals, unbroken.residuals)
    assert np.array_equal(solver.state().x, unbroken.x)


def test_a_breakdown_of_the_divided_form_tells_the_same_curvature(tmp_path: Path) -> None:
    run = built(NumpyArrays(), tmp_path, "csr", shift=-9.0)
    told = []
    for divided in (False, True):
        run._system.solver.divide(divided)
        with pytest.raises(Breakdown) as caught:
            run.step()
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_problem_holds_what_its_parameters_say() -> None:
    problem = CG.problem({"matrix": "csr"})
    assert dataclasses.asdict(problem) == {**CG.parameters, "matrix": "csr", "size": 96}
