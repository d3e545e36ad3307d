"""The order of a tiled product: every product once, tiles within memory, few reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.measured.workloads.kernels.tiled_product.tile_order import (
    MIN_TILES,
    PREFETCHED,
    TileBlock,
    TileProduct,
    choose_block,
    count_reads,
    order_products,
)

sides = st.integers(1, 7)
shapes = st.tuples(sides, sides, sides)


def count_most_held(products: list[TileProduct]) -> int:
    """The most tiles of A and B in memory at once, when each is read just before its use."""
    held: set[tuple[str, int, int]] = set()
    most = 0
    for product in products:
        assert not held & set(product.reads)
        held |= set(product.reads)
        assert {("A", product.row, product.k), ("B", product.k, product.column)} <= held
        most = max(most, len(held))
        assert set(product.evictions) <= held
        held -= set(product.evictions)
    assert not held
    return most


def most_sums(products: list[TileProduct]) -> int:
    """The most tiles of C begun and not finished at once."""
    begun: set[tuple[int, int]] = set()
    most = 0
    for product in products:
        place = (product.row, product.column)
        assert product.first == (place not in begun)
        begun.add(place)
        most = max(most, len(begun))
        if product.last:
            begun.remove(place)
    assert not begun
    return most


@given(shapes, st.integers(MIN_TILES, 60))
def test_every_product_is_there_once_and_memory_is_kept(shape: tuple[int, int, int], num_tiles: int) -> None:
    block = choose_block(shape, num_tiles)
    assert block is not None
    assert block.num_tiles <= num_tiles
    products = order_products(shape, block)
    rows, columns, depth = shape
    wanted = {(row, column, k) for row in range(rows) for column in range(columns) for k in range(depth)}
    assert sorted((p.row, p.column, p.k) for p in products) == sorted(wanted)
    assert count_most_held(products) <= block.num_held <= block.num_buffers
    assert most_sums(products) <= block.num_sums


@given(shapes, st.integers(MIN_TILES, 30), st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_finished_tiles_are_left_out(shape: tuple[int, int, int], num_tiles: int, done: set[tuple[int, int]]) -> None:
    block = choose_block(shape, num_tiles)
    assert block is not None
    products = order_products(shape, block, done)
    left = {(row, column) for row in range(shape[0]) for column in range(shape[1])} - done
    assert {(p.row, p.column) for p in products} == left
    assert len(products) == len(left) * shape[2]
    assert count_most_held(products) <= block.num_held
    assert most_sums(products) <= block.num_sums


def test_fewer_than_three_tiles_give_no_block() -> None:
    assert choose_block((4, 4, 4), 2) is None
    assert choose_block((4, 4, 4), 3) == TileBlock(1, 1, 2)


def test_more_memory_reads_less_and_all_memory_reads_each_tile_once() -> None:
    shape = (8, 8, 8)
    reads = []
    for num_tiles in (5, 12, 19, 40, 100):
        block = choose_block(shape, num_tiles)
        assert block is not None
        reads.append(count_reads(order_products(shape, block)))
    assert reads == sorted(reads, reverse=True)
    assert reads[0] < 2 * 8**3
    assert reads[-1] == 2 * 8**2


def test_a_tenth_of_the_memory_reads_far_less_than_two_tiles_per_product_and_prefetches() -> None:
    block = choose_block((8, 8, 8), 3 * 64 // 10)
    assert block is not None
    assert block.num_buffers >= min(block.num_rows, block.num_columns) + 1 + PREFETCHED
    assert count_reads(order_products((8, 8, 8), block)) < 8**3 * 0.7


@given(shapes, st.integers(MIN_TILES, 60), st.integers(1, 12))
def test_a_block_has_no_more_tiles_of_c_than_a_kill_may_cost(
    shape: tuple[int, int, int], num_tiles: int, most: int
) -> None:
    block = choose_block(shape, num_tiles, most)
    assert block is not None
    assert block.num_sums <= most
    assert block.num_tiles <= num_tiles
    products = order_products(shape, block)
    assert len(products) == shape[0] * shape[1] * shape[2]
    assert count_most_held(products) <= block.num_held
    assert most_sums(products) <= most


@pytest.mark.parametrize(("num_tiles", "more"), [(19, 1.15), (40, 1.25), (64, 1.0), (192, 1.0)])
def test_smaller_blocks_read_hardly_more_because_the_memory_they_leave_is_used(num_tiles: int, more: float) -> None:
    shape = (8, 8, 8)
    blocks = [choose_block(shape, num_tiles, most) for most in (None, 4)]
    free, capped = (count_reads(order_products(shape, block)) for block in blocks if block)
    assert capped <= more * free
