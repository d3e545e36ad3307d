"""How a signal is split into a matrix that ranks can share."""

import pytest

from corewise.measured.workloads.kernels.distributed.fft_grid import build_grid


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 16])
def test_a_power_of_two_is_split_in_the_same_way_for_few_ranks(num_ranks: int) -> None:
    grid = build_grid(2**21, num_ranks)
    assert grid is not None
    assert (grid.num_rows, grid.num_columns, grid.share) == (2**10, 2**11, 2**21 // num_ranks)


@pytest.mark.parametrize(("size", "num_ranks"), [(1260, 3), (36, 6), (2 * 49 * 3, 7), (13, 1)])
def test_both_sides_are_multiples_of_the_ranks(size: int, num_ranks: int) -> None:
    grid = build_grid(size, num_ranks)
    assert grid is not None
    assert grid.size == size
    assert grid.num_rows % num_ranks == grid.num_columns % num_ranks == 0


@pytest.mark.parametrize(("size", "num_ranks"), [(2**20, 3), (8, 4), (34, 2)])
def test_a_size_without_the_square_of_the_ranks_has_no_grid(size: int, num_ranks: int) -> None:
    assert build_grid(size, num_ranks) is None
