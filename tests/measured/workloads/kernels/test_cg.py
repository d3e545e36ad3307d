"""Conjugate gradients: correct on every framework, exact counts, and reported breakdowns."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.cg import operators
from corewise.measured.workloads.kernels.cg.iteration import SolverBreakdown, choose_iterations_at_once
from corewise.measured.workloads.kernels.cg.operators import build_operator
from corewise.measured.workloads.kernels.cg.stencil import (
    build_stencil_rows,
    compute_stencil_eigenvalues,
    compute_stencil_product,
    count_nonzeros,
)
from corewise.measured.workloads.kernels.cg.system import LinearSystem
from corewise.measured.workloads.kernels.cg.workload import CG, ConjugateGradientRun
from corewise.measured.workloads.kernels.kernel import KernelSetup

SIZES = {"dense": 150, "csr": 9, "matrix-free": 9}


def load_torch_arrays() -> Any:
    pytest.importorskip("torch")
    from corewise.measured.runtimes.torch.arrays import TorchArrays

    return TorchArrays()


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Any:
    return NumpyArrays() if request.param == "numpy" else load_torch_arrays()


@pytest.fixture
def use_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, row blocks and vector blocks so small that a small system has many, the last ones shorter."""
    monkeypatch.setattr(operators, "TILE", 32)
    monkeypatch.setattr(operators, "LARGEST_BLOCK", 150 * 64)
    monkeypatch.setattr(operators, "ELEMENTS_PER_THREAD", 200)


def build_run(arrays: Any, folder: Path, matrix: str, **args: Any) -> Any:
    given = {**CG.parameters, "matrix": matrix, "size": SIZES[matrix], "iterations": 25, **args}
    return CG.build(KernelSetup(arrays, "float64", given, seed=3, folder=str(folder), num_threads=1))


def build_dense_stencil(edge: int, shift: float = 0.0) -> Any:
    """The stencil's matrix by its definition: points at most one step away in every direction."""
    places = np.array([(z, y, x) for z in range(edge) for y in range(edge) for x in range(edge)])
    near = np.abs(places[:, None, :] - places[None, :, :]).max(axis=2) <= 1
    return np.where(near, -1.0, 0.0) + (27 + shift) * np.eye(edge**3)


@pytest.mark.parametrize("matrix", SIZES)
def test_a_solve_passes_its_checks(arrays: Any, matrix: str, tmp_path: Path) -> None:
    run = build_run(arrays, tmp_path, matrix)
    check = run.check()
    assert check.passed, check
    history = run.read_facts()["residual_history"]
    assert history[0] == [0, 1.0]
    assert history[-1][0] == 25
    assert history[-1][1] < 1e-5
    run.close()


@pytest.mark.usefixtures("use_small_pieces")
@pytest.mark.parametrize("matrix", SIZES)
def test_blocks_of_rows_and_vectors_change_nothing_but_last_bits(
    arrays: Any, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks = build_run(arrays, tmp_path, matrix)
    assert in_blocks.check().passed
    operator = in_blocks._system.operator
    assert len(operator.data if matrix != "matrix-free" else operator.blocks) > 2
    monkeypatch.setattr(operators, "LARGEST_BLOCK", 2**30)
    monkeypatch.setattr(operators, "ELEMENTS_PER_THREAD", 2**30)
    whole = build_run(arrays, tmp_path, matrix)
    whole.step()
    histories = [run._system.solver.read_residuals() for run in (in_blocks, whole)]
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("matrix", SIZES)
def test_jax_and_tensorflow_solve_the_same_systems(framework: str, matrix: str, tmp_path: Path, need: Need) -> None:
    need_framework(need, framework)
    theirs, ours = (
        build_run(each, tmp_path, matrix, iterations=6, checkpoint_every=3)
        for each in (make_arrays(framework), NumpyArrays())
    )
    assert theirs.check().passed
    # A second step must not use arrays that the first one donated.
    theirs.step()
    ours.step()
    np.testing.assert_allclose(theirs._system.solver.read_residuals(), ours._system.solver.read_residuals(), rtol=1e-10)


@pytest.mark.parametrize("edge", [1, 2, 5])
@pytest.mark.parametrize("matrix", ["csr", "matrix-free"])
def test_the_stencil_is_the_matrix_of_its_definition(arrays: Any, matrix: str, edge: int) -> None:
    operator = build_operator(matrix, arrays, edge, 0.5, seed=0, num_threads=1)
    wanted = build_dense_stencil(edge, 0.5)
    x = np.random.default_rng(edge).standard_normal(edge**3)
    out = arrays.from_host(operator.to_layout(np.full(edge**3, np.pi)))
    got, curvature = operator.compute_product(operator.data, arrays.from_host(operator.to_layout(x)), out)
    np.testing.assert_allclose(operator.from_layout(arrays.to_host(got)), wanted @ x, rtol=0, atol=1e-12)
    assert float(curvature) == pytest.approx(x @ wanted @ x)
    np.testing.assert_allclose(compute_stencil_product(x, edge, 0.5), wanted @ x, rtol=0, atol=1e-12)


def test_the_border_of_a_matrix_free_vector_stays_zero(arrays: Any) -> None:
    operator = build_operator("matrix-free", arrays, 6, 0.0, seed=0, num_threads=1)
    p = arrays.from_host(operator.to_layout(np.random.default_rng(6).standard_normal(6**3)))
    out, _ = operator.compute_product(operator.data, p, arrays.create_zeros((operator.length,), "float64"))
    got = arrays.to_host(out)
    assert np.array_equal(got, operator.to_layout(operator.from_layout(got)))


def test_rows_of_the_stencil_are_the_same_whether_made_at_once_or_in_pieces() -> None:
    starts, columns, values = build_stencil_rows(4, 0, 64, 0.0)
    assert starts[-1] == len(columns) == len(values) == count_nonzeros(4)
    first, second = build_stencil_rows(4, 0, 23, 0.0), build_stencil_rows(4, 23, 64, 0.0)
    assert np.array_equal(np.concatenate([first[1], second[1]]), columns)
    assert np.array_equal(np.concatenate([first[0][:-1], second[0] + first[0][-1]]), starts)
    assert starts.dtype == columns.dtype == np.int32


@pytest.mark.parametrize("edge", [1, 2, 3, 6])
def test_the_eigenvalues_of_the_stencil_are_exact(edge: int) -> None:
    found = np.linalg.eigvalsh(build_dense_stencil(edge, -0.25))
    assert compute_stencil_eigenvalues(edge, -0.25) == pytest.approx((found[0], found[-1]))


@pytest.mark.usefixtures("use_small_pieces")
@pytest.mark.parametrize("size", [1, 2, 5, 64, 150])
def test_a_dense_matrix_is_symmetric_positive_definite_and_full_of_random_numbers(size: int) -> None:
    operator = build_operator("dense", NumpyArrays(), size, 0.0, seed=7, num_threads=1)
    matrix = np.concatenate(operator.data)
    assert np.array_equal(matrix, matrix.T)
    least, greatest = operator.bound_eigenvalues()
    found = np.linalg.eigvalsh(matrix)
    assert 0 < least <= found[0]
    assert found[-1] <= greatest
    assert len(np.unique(matrix)) == size * (size + 1) // 2


def test_a_wrong_product_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = NumpyArrays()
    run = build_run(arrays, tmp_path, "csr")
    matrix = run._system.operator.data[0]
    matrix.values[1000] += 1e-3
    assert not run.check().passed


def test_the_check_with_the_largest_relative_error_is_reported(tmp_path: Path) -> None:
    run: Any = build_run(NumpyArrays(), tmp_path, "csr", tolerance=1e-4)
    run.check()
    reached = run.read_facts()["residual_history"][-1][1]
    close = build_run(NumpyArrays(), tmp_path, "csr", tolerance=reached * 1.001).check()
    assert close.passed
    assert close.reference == "the requested tolerance"


def test_a_solver_that_is_not_conjugate_gradients_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steepest descent: the residual it carries is true, but it is slower than theory allows."""
    run = build_run(NumpyArrays(), tmp_path, "csr", size=20, iterations=60)
    solver = run._system.solver
    update = type(solver)._update_direction
    monkeypatch.setattr(
        type(solver), "_update_direction", lambda self, x, step, p, r, _: update(self, x, step, p, r, 0.0)
    )
    check = run.check()
    assert not check.passed
    assert "bound for conjugate gradients" in check.reference


@pytest.mark.parametrize("matrix", SIZES)
def test_an_indefinite_matrix_is_reported_with_iteration_and_curvature(
    arrays: Any, matrix: str, tmp_path: Path
) -> None:
    run = build_run(arrays, tmp_path, matrix, shift=-2.0 if matrix == "dense" else -20.0)
    with pytest.raises(SolverBreakdown, match=r"in iteration \d+: p'Ap = -\S+, so the matrix is not positive"):
        run.check()


def test_a_breakdown_names_the_first_bad_iteration(tmp_path: Path) -> None:
    """Against the same recurrences, written down in numpy."""
    run = build_run(NumpyArrays(), tmp_path, "csr", shift=-9.0)
    a, b = build_dense_stencil(9, -9.0), run._system.rhs
    r, p, iteration = b.copy(), b.copy(), 0
    while True:
        iteration += 1
        curvature = p @ a @ p
        if curvature <= 0:
            break
        step, before = (r @ r) / curvature, r @ r
        r = r - step * (a @ p)
        p = r + (r @ r) / before * p
    with pytest.raises(SolverBreakdown, match=f"in iteration {iteration}: p'Ap = {curvature:.4g}"[:-2]):
        run.check()
    # These are the residual before the first iteration and those of the valid iterations.
    assert len(run._system.solver.get_known_residuals()) == iteration


def test_a_system_solved_exactly_stays_solved(arrays: Any, tmp_path: Path) -> None:
    for matrix in ("dense", "csr", "matrix-free"):
        run = build_run(arrays, tmp_path, matrix, size=1, iterations=40)
        assert run.check().passed
        assert np.all(np.isfinite(run._system.solver.read_residuals()))


def test_a_tolerance_that_is_not_reached_fails_the_check(tmp_path: Path) -> None:
    assert build_run(NumpyArrays(), tmp_path, "csr", tolerance=1e-4).check().passed
    check = build_run(NumpyArrays(), tmp_path, "csr", tolerance=1e-14).check()
    assert not check.passed
    assert check.reference == "the requested tolerance"


def test_the_work_is_counted_as_the_papers_count_it() -> None:
    dense = CG.count_work("infer", {"matrix": "dense", "size": 1000, "iterations": 500})
    assert dense.flops_per_sample == 500 * 2 * 1000**2
    assert dense.bytes_per_sample == 500 * (8 * 1000**2 + 80 * 1000)
    nonzeros = len(build_stencil_rows(7, 0, 343, 0.0)[1])
    csr = CG.count_work("infer", {"matrix": "csr", "size": 7, "iterations": 3})
    assert csr.flops_per_sample == 3 * (2 * nonzeros + 10 * 343)
    assert csr.bytes_per_sample == 3 * (12 * nonzeros + 4 * 344 + 80 * 343)
    free = CG.count_work("infer", {"matrix": "matrix-free", "size": 7, "iterations": 3})
    assert free.flops_per_sample == csr.flops_per_sample
    assert free.bytes_per_sample == 3 * 80 * 343


@pytest.mark.parametrize("matrix", SIZES)
def test_the_largest_system_that_fits_fits_and_the_next_does_not(matrix: str) -> None:
    args = {"matrix": matrix, "size": 1000}
    size = CG.fit_to_memory(args, "float64", 10**6)["size"]
    assert CG.estimate_memory_bytes({**args, "size": size}, "float64") <= 10**6
    assert CG.estimate_memory_bytes({**args, "size": size + 1}, "float64") > 10**6


@pytest.mark.parametrize(
    ("args", "message"),
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
def test_invalid_parameters_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CG.count_work("infer", args)


@pytest.mark.parametrize(
    ("num_iterations", "every", "at_once"),
    [(500, 0, 10), (47, 0, 10), (7, 0, 7), (1, 0, 1), (500, 50, 10), (500, 7, 7), (100, 11, 1), (3, 12, 6)],
)
def test_iterations_compiled_together_end_at_checkpoints(num_iterations: int, every: int, at_once: int) -> None:
    assert choose_iterations_at_once(num_iterations, every) == at_once


def test_a_step_starts_from_zero(arrays: Any, tmp_path: Path) -> None:
    run: ConjugateGradientRun = build_run(arrays, tmp_path, "matrix-free", iterations=13)
    histories = []
    for _ in range(2):
        run.step()
        histories.append(run._system.solver.read_residuals().copy())
    assert np.array_equal(*histories)
    assert len(histories[0]) == 14


def test_the_solution_is_that_of_a_direct_solver(tmp_path: Path) -> None:
    run = build_run(NumpyArrays(), tmp_path, "dense", iterations=100)
    run.step()
    matrix = np.concatenate(run._system.operator.data)
    direct = np.linalg.solve(matrix, run._system.rhs)
    assert np.linalg.norm(run._system.solver.capture_state().x - direct) < 1e-11 * np.linalg.norm(direct)
    assert math.isclose(np.linalg.norm(direct), np.linalg.norm(run._system.solution), rel_tol=1e-9)


@pytest.mark.parametrize("matrix", SIZES)
def test_the_direction_divided_by_the_residual_gives_the_same_iterations(arrays: Any, matrix: str) -> None:
    """What a GPU runs, here on the CPU."""
    system = LinearSystem(arrays, CG.read_problem({"matrix": matrix, "size": SIZES[matrix]}), seed=3, num_threads=1)
    solver, histories, solutions = system.solver, [], []
    for divided in (False, True):
        solver.set_divided(divided)
        solver.start()
        solver.run(20)
        histories.append(solver.read_residuals())
        solutions.append(solver.capture_state().x)
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-9)
    np.testing.assert_allclose(solutions[0], solutions[1], rtol=0, atol=1e-12)


def test_the_divided_form_resumes_from_a_state_to_the_last_bit(arrays: Any) -> None:
    system = LinearSystem(arrays, CG.read_problem({"matrix": "csr", "size": SIZES["csr"]}), seed=3, num_threads=1)
    solver = system.solver
    solver.set_divided(True)
    solver.start()
    solver.run(10)
    middle = solver.capture_state()
    solver.run(20)
    unbroken = solver.capture_state()
    solver.resume(middle)
    solver.run(20)
    assert np.array_equal(solver.capture_state().residuals, unbroken.residuals)
    assert np.array_equal(solver.capture_state().x, unbroken.x)


def test_a_breakdown_of_the_divided_form_reports_the_same_curvature(tmp_path: Path) -> None:
    run = build_run(NumpyArrays(), tmp_path, "csr", shift=-9.0)
    messages = []
    for divided in (False, True):
        run._system.solver.set_divided(divided)
        with pytest.raises(SolverBreakdown) as caught:
            run.step()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_problem_holds_its_parameters() -> None:
    problem = CG.read_problem({"matrix": "csr"})
    assert dataclasses.asdict(problem) == {**CG.parameters, "matrix": "csr", "size": 96}
