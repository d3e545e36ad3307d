"""Array operations that only conjugate gradients use, compared with numpy."""

from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.numpy.sparse import build_csr


@pytest.fixture(params=["numpy", "torch", *FRAMEWORKS])
def arrays(request: pytest.FixtureRequest, need: Need) -> Any:
    if request.param == "numpy":
        return NumpyArrays()
    need_framework(need, request.param)
    if request.param in FRAMEWORKS:
        return make_arrays(request.param)
    from corewise.measured.runtimes.torch.arrays import TorchArrays

    return TorchArrays()


def draw_array(*shape: int) -> Any:
    return np.random.standard_normal(shape)


def draw_csr(num_rows: int, num_columns: int) -> tuple[Any, Any, Any, Any]:
    """A sparse matrix with one to ten entries in a row, as CSR with 32-bit indices and as it is."""
    random = np.random.default_rng([num_rows, num_columns])
    dense = np.zeros((num_rows, num_columns))
    for row in dense:
        chosen = random.choice(num_columns, random.integers(1, 11), replace=False)
        row[chosen] = random.standard_normal(len(chosen))
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int32)
    return starts, columns.astype(np.int32), dense[rows, columns], dense


@pytest.mark.parametrize("given", [False, True])
def test_a_sparse_matrix_times_a_vector_is_the_product(arrays: Any, given: bool) -> None:
    starts, columns, values, dense = draw_csr(311, 97)
    matrix, x = arrays.build_csr(starts, columns, values, num_columns=97), draw_array(97)
    out = arrays.create_zeros((311,), "float64") if given else None
    got = arrays.to_host(arrays.multiply_csr(matrix, arrays.from_host(x), out=out))
    np.testing.assert_allclose(got, dense @ x, rtol=0, atol=1e-13)


def test_a_sparse_product_can_be_compiled_with_its_matrix_as_an_argument(arrays: Any) -> None:
    starts, columns, values, dense = draw_csr(50, 50)
    matrix, x = arrays.build_csr(starts, columns, values, num_columns=50), draw_array(50)
    twice = arrays.compile(lambda m, v: arrays.multiply_csr(m, arrays.multiply_csr(m, v)))
    got = arrays.to_host(twice(matrix, arrays.from_host(x)))
    np.testing.assert_allclose(got, dense @ (dense @ x), rtol=0, atol=1e-12)


def test_numpy_multiplies_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corewise.measured.runtimes.numpy.sparse.NONZEROS_AT_ONCE", 7)
    starts, columns, values, dense = draw_csr(40, 30)
    x, arrays = draw_array(30), NumpyArrays()
    matrix = arrays.build_csr(starts, columns, values, num_columns=30)
    assert len(matrix.first_rows) > 10
    np.testing.assert_allclose(arrays.multiply_csr(matrix, x), dense @ x, rtol=0, atol=1e-13)


def test_numpy_refuses_an_empty_row() -> None:
    with pytest.raises(ValueError, match="an entry in every row"):
        build_csr(np.array([0, 1, 1, 2], np.int32), np.array([0, 1], np.int32), np.ones(2))


@pytest.mark.parametrize("given", [False, True])
def test_scaled_differences_and_quotients_are_numpys(arrays: Any, given: bool) -> None:
    a, b = draw_array(1001), draw_array(1001)
    number = arrays.compute_dot(arrays.from_host(a), arrays.from_host(a))

    def into() -> Any:
        return arrays.from_host(draw_array(1001)) if given else None

    there = [arrays.from_host(each) for each in (a, b)]
    difference = arrays.subtract_scaled(there[0], number, there[1], out=into())
    np.testing.assert_allclose(arrays.to_host(difference), a - (a @ a) * b, rtol=1e-12, atol=1e-9)
    quotient = arrays.add_quotient(there[0], there[1], number, sign=-1.0, out=into())
    np.testing.assert_allclose(arrays.to_host(quotient), a - b / (a @ a), rtol=0, atol=1e-14)


def test_arrays_are_concatenated_stacked_and_transposed(arrays: Any) -> None:
    a, b = draw_array(3, 4), draw_array(3, 2)
    there = [arrays.from_host(each) for each in (a, b)]
    assert np.array_equal(arrays.to_host(arrays.concatenate(there, axis=1)), np.concatenate([a, b], axis=1))
    assert np.array_equal(arrays.to_host(arrays.transpose(there[0])), a.T)
    v = arrays.from_host(draw_array(5))
    stacked = arrays.to_host(arrays.stack([arrays.compute_dot(v, v), arrays.compute_dot(v, v)]))
    assert stacked.shape == (2,)
    assert stacked[0] == stacked[1] > 0
