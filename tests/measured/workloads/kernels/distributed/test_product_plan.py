"""The plan of a tiled product on several ranks: complete, balanced, and free of deadlocks."""

from collections import Counter

import pytest

from corewise.measured.workloads.kernels.distributed.product_plan import ProductShare, choose_team_size, plan_rank
from corewise.measured.workloads.kernels.distributed.rank_shares import split_evenly

CASES = [
    ((4, 4, 4), 1),
    ((4, 4, 4), 2),
    ((4, 4, 4), 16),
    ((5, 3, 2), 4),
    ((1, 1, 7), 3),
    ((3, 3, 3), 9),
    ((2, 5, 6), 12),
    ((7, 7, 7), 5),
]


def plan_all(shape: tuple[int, int, int], num_ranks: int, done: frozenset[tuple[int, int]]) -> list[ProductShare]:
    return [plan_rank(shape, num_ranks, rank, 4, done) for rank in range(num_ranks)]


@pytest.mark.parametrize("done", [frozenset(), frozenset({(0, 0), (0, 2), (1, 1)})], ids=["all", "rest"])
@pytest.mark.parametrize(("shape", "num_ranks"), CASES)
def test_every_product_is_computed_once_and_every_tile_has_one_owner(
    shape: tuple[int, int, int], num_ranks: int, done: frozenset[tuple[int, int]]
) -> None:
    rows, columns, depth = shape
    missing = {(row, column) for row in range(rows) for column in range(columns)} - done
    plans = plan_all(shape, num_ranks, done)
    steps = Counter(step for plan in plans for step in plan.steps)
    assert steps == Counter({(*tile, k): 1 for tile in missing for k in range(depth)})
    owned = Counter(
        stage.tile for plan in plans for stage in plan.stages if stage.tile is not None and stage.pushed_to is None
    )
    assert owned == Counter(missing)


@pytest.mark.parametrize("done", [frozenset(), frozenset({(0, 0), (0, 2), (1, 1)})], ids=["all", "rest"])
@pytest.mark.parametrize(("shape", "num_ranks"), CASES)
def test_every_push_meets_the_reducer_that_waits_for_this_tile(
    shape: tuple[int, int, int], num_ranks: int, done: frozenset[tuple[int, int]]
) -> None:
    plans = plan_all(shape, num_ranks, done)
    pushed = [
        (rank, stage.pushed_to, stage.tile)
        for rank, plan in enumerate(plans)
        for stage in plan.stages
        if stage.pushed_to is not None
    ]
    received = [
        (stage.received_from, rank, stage.own)
        for rank, plan in enumerate(plans)
        for stage in plan.stages
        if stage.received_from is not None
    ]
    assert sorted(pushed) == sorted(received)
    assert len(pushed) == len(set(pushed))
    team_size = plans[0].team_size
    assert len(pushed) == (team_size - 1) * len({tile for _, _, tile in pushed})


@pytest.mark.parametrize(("shape", "num_ranks"), CASES)
def test_blocking_messages_in_the_order_of_the_plan_do_not_deadlock(
    shape: tuple[int, int, int], num_ranks: int
) -> None:
    """A stage ends when its push was received and its part has arrived, as with blocking messages."""
    plans = plan_all(shape, num_ranks, frozenset())
    places = [0] * num_ranks
    # Messages posted by the current stage of each rank: pushes and receives still open.
    pushes, receives = {}, {}

    def post(rank: int) -> None:
        stages = plans[rank].stages
        while places[rank] < len(stages):
            stage = stages[places[rank]]
            if stage.pushed_to is not None:
                pushes[rank] = stage.pushed_to
            if stage.received_from is not None:
                receives[rank] = stage.received_from
            if rank in pushes or rank in receives:
                return
            places[rank] += 1

    for rank in range(num_ranks):
        post(rank)
    progress = True
    while progress:
        progress = False
        for rank, target in list(pushes.items()):
            if receives.get(target) == rank:
                del pushes[rank], receives[target]
                progress = True
        for rank in range(num_ranks):
            if places[rank] < len(plans[rank].stages) and rank not in pushes and rank not in receives:
                places[rank] += 1
                post(rank)
                progress = True
    assert places == [len(plan.stages) for plan in plans]


def test_teams_are_as_large_as_the_balance_allows() -> None:
    assert choose_team_size((4, 4, 4), 1) == 1
    assert choose_team_size((4, 4, 4), 2) == 2
    assert choose_team_size((4, 4, 4), 16) == 4
    # Three ranks cannot halve four tiles, but share sixteen almost evenly.
    assert choose_team_size((4, 4, 4), 3) == 1
    assert choose_team_size((1, 1, 8), 4) == 4


def test_shares_differ_by_at_most_one() -> None:
    assert split_evenly(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert split_evenly(2, 3) == [(0, 1), (1, 2), (2, 2)]
