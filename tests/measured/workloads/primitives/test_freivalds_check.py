"""Freivalds' check detects one wrong element anywhere, also in batches."""

import math
from typing import Any

import numpy as np
import pytest

from corewise.measured.workloads.primitives.freivalds_check import (
    ROWS_AT_A_TIME,
    compute_product_error,
    draw_check_vector,
)


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [((7, 8), (8, 5)), ((3, 1500, 8), (1, 8, 5)), ((1, 4, 8), (3, 8, 5)), ((2, 1, 4, 8), (1, 3, 8, 5))],
)
def test_one_wrong_element_of_a_batch_shows(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal(of_a), random.standard_normal(of_b)
    c = a @ b
    assert compute_product_error(a, b, c) < 1e-14
    wrong, broken = c.copy(), c.copy()
    wrong[(-1,) * c.ndim] += 1.0
    broken[(0,) * c.ndim] = math.nan
    assert compute_product_error(a, b, wrong) > 1e-6
    assert math.isnan(compute_product_error(a, b, broken))


def test_another_shape_than_that_of_the_product_is_wrong() -> None:
    a, b = np.ones((2, 3, 4)), np.ones((2, 4, 5))
    assert compute_product_error(a, b, (a @ b)[:1]) == math.inf
    assert compute_product_error(a, b, np.swapaxes(a @ b, 1, 2)) == math.inf


def test_few_rows_at_a_time_are_made_float64() -> None:
    seen: list[int] = []

    def as_float64(rows: Any) -> Any:
        seen.append(len(rows))
        return rows.astype(np.float64)

    a, b = np.ones((3 * ROWS_AT_A_TIME + 1, 4), np.float32), np.ones((4, 5), np.float32)
    assert compute_product_error(a, b, a @ b, as_float64) < 1e-14
    assert max(seen) == ROWS_AT_A_TIME
    assert sum(seen) == 2 * len(a) + len(b)


def test_no_number_of_the_vector_hides_a_column() -> None:
    x = draw_check_vector(10**5)
    assert np.abs(x).min() >= 0.5
    assert np.abs(x).max() <= 1.0
    assert abs(np.mean(x > 0) - 0.5) < 0.02
