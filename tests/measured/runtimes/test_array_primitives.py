"""Matrix products and LSTM cells on numpy, jax and tensorflow: correct results, and refusals."""

import dataclasses
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.lstm_cell import RecurrentDialect, prepare_arrays_lstm_cell
from corewise.measured.runtimes.arrays.matrix_product import prepare_arrays_matrix_product
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.primitives.lstm_cell import LSTM_CELL
from corewise.measured.workloads.primitives.lstm_reference import find_worst_difference
from corewise.measured.workloads.primitives.matrix_problem import parse_matrix_product
from corewise.measured.workloads.primitives.matrix_product import MATRIX_PRODUCT

Job = Callable[..., Any]


@pytest.fixture(params=("numpy", *FRAMEWORKS))
def framework(request: pytest.FixtureRequest, need: Need) -> str:
    need_framework(need, request.param)
    return str(request.param)


@pytest.fixture
def arrays(framework: str) -> Any:
    return NumpyArrays() if framework == "numpy" else make_arrays(framework)


@pytest.fixture
def dialect(framework: str) -> RecurrentDialect:
    module = importlib.import_module(f"corewise.measured.runtimes.{framework}.primitives.lstm_cell")
    dialect = module.build_dialect()
    assert isinstance(dialect, RecurrentDialect)
    return dialect


@pytest.fixture
def product(arrays: Any, params: Callable[..., TrialParameters], alone: RankContext) -> Job:
    def prepare(**values: Any) -> Any:
        return prepare_arrays_matrix_product(arrays, params(workload="matrix_product", **values), alone, dict)

    return prepare


@pytest.fixture
def cell(arrays: Any, dialect: RecurrentDialect, params: Callable[..., TrialParameters], alone: RankContext) -> Job:
    def prepare(used: RecurrentDialect = dialect, **values: Any) -> Any:
        return prepare_arrays_lstm_cell(arrays, used, params(workload="lstm_cell", **values), alone, dict)

    return prepare


def lacks_short_format(framework: str, dtype: str) -> bool:
    return framework == "numpy" and dtype in ("bfloat16", "float16")


@pytest.mark.parametrize(
    ("problem", "dtype"),
    [
        ("70x33:33x50", "float32"),
        ("70x33:33x50", "float64"),
        ("70x33:33x50", "float16"),
        ("4x20x33:1x33x50", "bfloat16"),
        ("3x1x9x8:1x2x8x5", "float32"),
    ],
)
def test_products_are_right(framework: str, product: Job, problem: str, dtype: str) -> None:
    if lacks_short_format(framework, dtype):
        with pytest.raises(Infeasible, match=f"dtype {dtype}: numpy has .*; use float64 or float32"):
            product(problem=problem, dtype=dtype)
        return
    made = product(problem=problem, dtype=dtype)
    check = made.check()
    made.step()
    assert check.passed
    assert 0 < check.error < {"float32": 1e-5, "float64": 1e-14}.get(dtype, 0.05)
    assert made.read_facts()["problem"] == str(parse_matrix_product(problem))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"reorders": "excluded"}, "takes no prepared weights"),
        ({"problem": "2x3x4:2x4x5", "reorders": "excluded"}, "single matrices"),
        ({"dtype": "int8"}, "no integer matrix product that rounds its result"),
        ({"int8_source": "s8"}, "has no effect: dtype is float32"),
        ({"memory_format": "channels_last"}, "one operator"),
        ({"batch": 2}, "write it into the problem"),
        ({"benchdnn": "benchdnn"}, "compared with runtime torch only"),
        ({"problem": "4000000x4000000:4000000x4000000"}, "M of 1 needs .* second factor: reduce K or N"),
        ({"problem": "400000000000x50:50x60"}, "largest number of rows M that fits is [0-9]+"),
    ],
)
def test_unsupported_products_are_refused(product: Job, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        product(**values)


def test_the_memory_of_the_check_of_a_batch_counts(product: Job) -> None:
    with pytest.raises(Infeasible) as single:
        product(problem="10000000x100000:100000x1")
    with pytest.raises(Infeasible) as batch:
        product(problem="1x10000000x100000:1x100000x1")
    needed = [int(str(each.value).split("needs ")[1].split()[0]) for each in (single, batch)]
    assert needed[1] > 1.5 * needed[0]


@pytest.mark.parametrize(
    ("problem", "dtype", "direction"),
    [
        ("t5mb3sic12", "float32", "FWD_I"),
        ("t4mb3sic6slc10", "float64", "FWD_D"),
        ("t4mb3sic6slc10", "float64", "BWD_DW"),
        ("l2t3mb2sic8", "bfloat16", "FWD_I"),
        ("l2t3mb2sic4slc4dhc6dic4", "float32", "FWD_I"),
        ("l2t3mb2sic4slc4dhc6dic4", "float32", "BWD_DW"),
    ],
)
def test_cells_are_right_in_every_direction(
    framework: str, cell: Job, problem: str, direction: str, dtype: str
) -> None:
    if framework == "numpy" and (direction != "FWD_I" or dtype == "bfloat16"):
        with pytest.raises(Infeasible, match=r"no automatic differentiation|use float64 or float32"):
            cell(problem=problem, direction=direction, dtype=dtype)
        return
    made = cell(problem=problem, direction=direction, dtype=dtype)
    check = made.check()
    made.step()
    made.close()
    assert check.passed
    assert 0 < check.error < {"float32": 1e-5, "float64": 1e-14, "bfloat16": 0.05}[dtype]
    assert made.read_facts()["direction"] == direction


@pytest.mark.parametrize("framework", FRAMEWORKS, indirect=True)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_DW"])
def test_steps_do_not_compile_again(cell: Job, dialect: RecurrentDialect, direction: str) -> None:
    calls = []

    def scan(*given: Any) -> Any:
        calls.append(given)
        return dialect.scan(*given)

    made = cell(dataclasses.replace(dialect, scan=scan), problem="t3mb2sic4", direction=direction)
    num_before = len(calls)
    made.step()
    made.step()
    assert 0 < num_before == len(calls)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"dtype": "int8"}, "no dtype int8"),
        ({"reorders": "excluded"}, "takes no prepared weights"),
        ({"reorders": "excluded", "direction": "BWD_DW"}, "inference only"),
        ({"problem": "sic8dic6dhc8"}, "needs input and output states of equal width"),
        ({"memory_format": "channels_last"}, "one operator"),
        ({"batch": 2}, "the problem defines the minibatch"),
        ({"benchdnn": "benchdnn"}, "compared with runtime torch only"),
        ({"problem": "t9mb99999999999sic8"}, "largest minibatch that fits is [0-9]+"),
    ],
)
def test_unsupported_cells_are_refused(cell: Job, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        cell(**values)


def test_a_difference_a_missing_number_and_another_shape_show() -> None:
    wanted = np.array([[1.0, -4.0]])
    assert find_worst_difference([(wanted, wanted), (wanted, wanted + 0.5)]) == 0.125
    assert math.isnan(find_worst_difference([(wanted, wanted * math.nan), (wanted, wanted + 9)]))
    assert find_worst_difference([(wanted, wanted[0])]) == math.inf


@pytest.mark.parametrize("workload", [MATRIX_PRODUCT, LSTM_CELL], ids=lambda workload: str(workload.name))
def test_the_builders_are_there(framework: str, workload: Any) -> None:
    module, _, function = workload.builders[framework].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
