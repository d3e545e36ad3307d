"""Matrix products and LSTM cells in benchdnn's notation."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from corewise.measured.workloads.primitives.lstm_cell import LSTM_CELL
from corewise.measured.workloads.primitives.lstm_problem import parse_recurrent
from corewise.measured.workloads.primitives.lstm_reference import LayerWeights, run_backward, run_forward
from corewise.measured.workloads.primitives.matrix_problem import parse_matrix_product
from corewise.measured.workloads.primitives.matrix_product import MATRIX_PRODUCT
from corewise.measured.workloads.primitives.problem_notation import ProblemError

SIZE = st.integers(1, 9)


@given(SIZE, SIZE, SIZE, st.lists(st.tuples(SIZE, st.booleans(), st.booleans()), max_size=2))
def test_products_survive_being_written_and_read_again(
    m: int, k: int, n: int, batches: list[tuple[int, bool, bool]]
) -> None:
    first = [1 if once else size for size, once, _ in batches]
    second = [1 if once else size for size, _, once in batches]
    text = ":".join("x".join(map(str, shape)) for shape in ([*first, m, k], [*second, k, n]))
    problem = parse_matrix_product(text)
    assert parse_matrix_product(str(problem)) == problem
    result = np.matmul(np.zeros(problem.source_shape), np.zeros(problem.weights_shape))
    assert result.shape == problem.destination_shape
    assert problem.flops == 2 * result.size * k


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("10x30", 5, "MxK:KxN"),
        ("10x30:20x5", 6, "30 columns, the second 20 rows"),
        ("10xa30:30x5", 3, "whole numbers"),
        ("10x0:30x5", 3, "whole numbers"),
        ("10:10x5", 2, "two sizes"),
        ("99999999999999x5:5x6", 0, "99999999999999 is larger than any memory"),
        ("4x" + "9" * 5000 + ":5x6", 2, "a number of 5000 digits is larger than any memory"),
        ("4x\u0665:5x6", 2, "whole numbers"),
        ("4x5x:5x6", 4, "whole numbers"),
        ("x".join("1" * 13) + ":1x1", 25, "at most 12 sizes, not 13"),
        ("2x10x30:30x5", 8, "3 dimensions, the second 2"),
        ("2x10x30:3x30x5", 8, "batches of 2 and 3"),
        ("10x30:30x5:10x6", 11, "given as 10x6, but the factors give 10x5"),
    ],
)
def test_an_error_points_at_factors_that_do_not_match(text: str, place: int, message: str) -> None:
    with pytest.raises(ProblemError) as met:
        parse_matrix_product(text)
    first_line, _, caret = str(met.value).split("\n")
    assert message in first_line
    assert caret.index("^") - 2 == place


def test_a_product_may_have_a_name() -> None:
    assert parse_matrix_product('10x30:30x20n"bert:1"').name == "bert:1"
    named = parse_matrix_product('4x5:5x6_n"q"')
    assert (named.name, named.destination_shape, str(named)) == ("q", (4, 6), '4x5:5x6:4x6_n"q"')
    assert parse_matrix_product(str(named)) == named


def test_the_work_of_a_product_is_counted_by_format() -> None:
    args = {"problem": "10x30:30x20"}
    assert MATRIX_PRODUCT.count_work("infer", args).flops_per_sample == 2 * 10 * 30 * 20
    assert MATRIX_PRODUCT.count_work("infer", args, "float64").bytes_per_sample == 8 * (300 + 600 + 200)


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_cells_survive_being_written_and_read_again(layers: int, t: int, mb: int, sic: int, slc: int) -> None:
    text = f"l{layers}t{t}mb{mb}sic{sic}" + (f"slc{slc}" if layers == 1 else "")
    problem = parse_recurrent(text)
    assert parse_recurrent(str(problem)) == problem
    assert (problem.dhc, problem.dic) == (sic, sic)


def test_cells_count_their_products_as_benchdnn_does() -> None:
    args = {"problem": "l1t5mb8sic64"}
    # benchdnn counts 0.00262144 Gop.
    assert LSTM_CELL.count_work("infer", args).flops_per_sample == 2_621_440
    assert LSTM_CELL.count_work("infer", {**args, "direction": "BWD_DW"}).flops_per_sample == 2 * 2_621_440


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l1t5mb8", "sic is missing"),
        ("sic8x3", "unknown entry 'x'"),
        ("t2sic8dic4", "sic8 does not fit dic4"),
        ("l2sic8slc4", "slc4 does not fit dic8"),
        ("t0sic8", "t must be at least 1"),
        ("sic8dic9", "dic9 is larger than dhc8"),
    ],
)
def test_cells_that_do_not_match_are_refused(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        parse_recurrent(text)


@pytest.mark.parametrize("projected", [False, True])
def test_the_reference_gradients_are_the_slopes_of_the_reference_outputs(projected: bool) -> None:
    random = np.random.default_rng(5)
    hidden, state = (4, 3) if projected else (3, 3)

    def layer() -> LayerWeights:
        shapes = ((4 * hidden, 3), (4 * hidden, state), (4 * hidden,), (state, hidden))
        made = [random.normal(size=shape) for shape in shapes]
        return LayerWeights(*made[:3], made[3] if projected else None)

    layers = [layer(), layer()]
    x, h, c = (random.normal(size=s) for s in ((5, 2, 3), (2, 2, state), (2, 2, hidden)))
    weights = [random.normal(size=s) for s in ((5, 2, state), (2, 2, state), (2, 2, hidden))]

    def total(x: np.ndarray) -> float:
        out = run_forward(layers, x, h, c)
        return sum(float((w * o).sum()) for w, o in zip(weights, (out.sequence, out.states, out.cells), strict=True))

    given_back, grads = run_backward(layers, run_forward(layers, x, h, c), *weights)
    step = np.zeros_like(x)
    step[1, 0, 2] = 1e-6
    slope = (total(x + step) - total(x - step)) / 2e-6
    assert given_back["x"][1, 0, 2] == pytest.approx(slope, rel=1e-6)
    before = total(x)
    layers[0].of_state[3, 1] += 1e-6
    assert grads[0].of_state[3, 1] == pytest.approx((total(x) - before) / 1e-6, rel=1e-4)
