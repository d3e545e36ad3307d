"""Matrix products and LSTM cells on torch: results and refusals."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.primitives.lstm_cell import prepare_lstm_cell
from corewise.measured.runtimes.torch.primitives.matrix_product import prepare_matrix_product

pytestmark = pytest.mark.torch
Job = Callable[..., Any]


@pytest.fixture
def product(params: Callable[..., TrialParameters], alone: RankContext) -> Job:
    return lambda **values: prepare_matrix_product(params(workload="matrix_product", **values), alone)


@pytest.fixture
def cell(params: Callable[..., TrialParameters], alone: RankContext) -> Job:
    return lambda **values: prepare_lstm_cell(params(workload="lstm_cell", **values), alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("problem", ["70x33:33x50", "4x20x33:1x33x50"])
def test_products_are_right(product: Job, problem: str, dtype: str) -> None:
    made = product(problem=problem, dtype=dtype)
    assert made.check().passed
    made.step()


def test_a_product_with_prepared_weights_is_right(product: Job) -> None:
    made = product(problem="70x33:33x50", reorders="excluded")
    assert made.check().passed
    assert made.read_facts()["problem"] == "70x33:33x50:70x50"


@pytest.mark.parametrize("int8_source", ["u8", "s8"])
def test_products_of_whole_numbers_are_exact(product: Job, int8_source: str) -> None:
    check = product(problem="70x33:33x50", dtype="int8", int8_source=int8_source).check()
    assert (check.error, check.tolerance) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"problem": "2x3x4:2x4x5", "reorders": "excluded"}, "single matrices"),
        ({"dtype": "float64", "reorders": "excluded"}, "float32 or bfloat16"),
        ({"dtype": "int8", "reorders": "excluded"}, "always prepared"),
        ({"memory_format": "channels_last"}, "only one layout"),
        ({"batch": 2}, "write it into the problem"),
        ({"problem": "4000000x4000000:4000000x4000000"}, "M of 1 needs .* second factor: reduce K or N"),
        ({"problem": "400000000000x50:50x60"}, "largest number of rows M that fits is [0-9]+"),
    ],
)
def test_products_that_do_not_exist_are_refused(product: Job, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        product(**values)


@pytest.mark.parametrize("direction", ["FWD_I", "FWD_D", "BWD_DW"])
@pytest.mark.parametrize(
    ("problem", "dtype"),
    [("t5mb3sic12", "float32"), ("l2t3mb2sic8", "bfloat16"), ("t4mb3sic6slc10", "float64"), ("l2sic8", "float32")],
)
def test_cells_are_right_forward_and_backward(cell: Job, problem: str, direction: str, dtype: str) -> None:
    made = cell(problem=problem, direction=direction, dtype=dtype)
    check = made.check()
    made.step()
    made.close()
    assert check.passed
    assert check.error < {"float32": 1e-5, "float64": 1e-14, "bfloat16": 0.05}[dtype]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("direction", ["FWD_I", "BWD_DW"])
def test_projected_states_are_right(cell: Job, direction: str) -> None:
    assert cell(problem="t4mb3sic6slc10dhc12dic6", direction=direction).check().passed


def test_cells_with_prepared_weights_reorder_nothing(cell: Job, need: Callable[[bool, str], None]) -> None:
    made = cell(problem="t5mb3sic12", reorders="excluded")
    assert made.check().passed
    need("num_onednn_reorders" in made.read_facts(), "oneDNN with its verbose mode in torch")
    assert made.read_facts()["num_onednn_reorders"] == 0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"dtype": "int8"}, "no dtype int8"),
        ({"reorders": "excluded", "direction": "BWD_DW"}, "inference only"),
        ({"reorders": "excluded", "problem": "l2sic8"}, "one layer"),
        ({"problem": "sic8dic6dhc8"}, "have the same width"),
        ({"batch": 2}, "the problem defines the minibatch"),
    ],
)
def test_cells_that_do_not_exist_are_refused(cell: Job, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        cell(**values)
