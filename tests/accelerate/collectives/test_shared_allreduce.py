"""Collectives in shared memory: sums, bits, copies and sizes of chunks."""

from pathlib import Path

import pytest
from tests.accelerate.collectives.rank_runner import run_ranks

from corewise.accelerate.collectives.shared_allreduce import choose_chunk_bytes


@pytest.mark.parametrize("num_ranks", [1, 2, 3, pytest.param(17, marks=pytest.mark.slow)])
def test_sums_are_right_and_have_the_same_bits_on_all_ranks(num_ranks: int, tmp_path: Path) -> None:
    results = run_ranks("sum_cases:sum_sizes", num_ranks, tmp_path)
    assert len(results) == num_ranks
    for row in results[0]:
        dtype, size, is_close, digests = row
        assert is_close, f"{dtype} {size}"
        assert len(digests) == 1, f"{dtype} {size}: two calls differ"
    assert all(result == results[0] for result in results.values())


def test_sums_over_nodes_are_right_on_all_ranks(tmp_path: Path) -> None:
    results = run_ranks("sum_cases:sum_over_nodes", 3, tmp_path)
    assert all(row[2] for row in results[0])
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.parametrize(
    "num_ranks", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)]
)
def test_the_other_collectives_deliver_every_piece(num_ranks: int, tmp_path: Path) -> None:
    results = run_ranks("sum_cases:copy_sizes", num_ranks, tmp_path)
    assert results == {rank: [] for rank in range(num_ranks)}


@pytest.mark.slow
def test_sums_of_special_values_follow_ieee_754(tmp_path: Path) -> None:
    results = run_ranks("sum_cases:sum_special_values", 2, tmp_path)
    *rows, unaligned = results[0]
    for dtype, values in rows:
        assert values == ["0.0", "nan", "inf", "nan", "inf"], dtype
    # The element before the tensor is not touched.
    assert unaligned == ["unaligned", [1.0, 2.0, 2.0]]
    assert results[1] == results[0]


def test_the_slots_of_all_ranks_stay_within_the_cache() -> None:
    assert choose_chunk_bytes(2) == 1 << 20
    assert choose_chunk_bytes(16) == 256 << 10
    assert choose_chunk_bytes(1000) == 64 << 10
