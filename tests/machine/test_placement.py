"""Placement on made-up machines: examples a person can check, and properties that hold on all of them."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine.sysfs_trees import Tree, add_apple_m1, add_core_i9_13900k, add_snapdragon_865

from corewise.machine.machine_model import Cpu, Topology
from corewise.machine.placement import PlacementError, place_ranks
from corewise.machine.topology import format_cpu_list, read_topology
from corewise.measured.trial import RankPlacement


def build_machine(
    sockets: list[list[int]], num_siblings: int = 1, adjacent: bool = False, offline: tuple[int, ...] = ()
) -> Topology:
    """A machine given by the cores of each node of each socket; siblings numbered side by side or apart."""
    num_cores = sum(sum(nodes) for nodes in sockets)
    cpus, core, node = list[Cpu](), 0, 0
    for socket, nodes in enumerate(sockets):
        for size in nodes:
            for _ in range(size):
                numbers = [core * num_siblings + i if adjacent else core + i * num_cores for i in range(num_siblings)]
                online = [n for n in numbers if n not in offline]
                cpus += [Cpu(n, online[0], socket, node) for n in online]
                core += 1
            node += 1
    return Topology(tuple(sorted(cpus, key=lambda c: c.number)), offline)


def list_cpus(ranks: tuple[RankPlacement, ...]) -> list[list[int]]:
    return [list(rank.cpus) for rank in ranks]


def place_on(topology: Topology, num_processes: int, num_threads: int, **options: object) -> list[list[int]]:
    cpus = options.pop("cpus", [c.number for c in topology.cpus])
    return list_cpus(
        place_ranks(topology, cpus, num_processes=num_processes, num_threads=num_threads, **options)  # type: ignore[arg-type]
    )


def test_a_single_cpu_holds_one_rank_of_one_thread() -> None:
    assert place_on(build_machine([[4]]), 1, 1, cpus=[1]) == [[1]]


def test_adjacent_siblings_are_not_taken_for_two_cores() -> None:
    assert place_on(build_machine([[4]], 2, adjacent=True), 1, 2) == [[0, 2]]


def test_siblings_numbered_apart_are_not_taken_for_two_cores() -> None:
    assert place_on(build_machine([[4]], 2), 2, 2, cpus=[0, 4, 1, 5, 2, 6, 3, 7]) == [[0, 1], [2, 3]]


def test_a_core_of_which_only_the_second_sibling_is_allocated_is_used_by_it() -> None:
    assert place_on(build_machine([[2]], 2), 1, 2, cpus=[0, 3]) == [[0, 3]]


def test_with_smt_cores_come_before_siblings() -> None:
    smt = build_machine([[4]], 2)
    assert place_on(smt, 1, 3, smt=True) == [[0, 1, 2]]
    assert place_on(smt, 1, 6, smt=True) == [[0, 1, 2, 3, 4, 5]]


def test_with_smt_each_rank_takes_the_siblings_of_its_own_cores() -> None:
    assert place_on(build_machine([[4]], 2), 2, 3, smt=True) == [[0, 1, 4], [2, 3, 6]]


def test_with_smt_ranks_keep_to_a_node_and_else_to_a_socket() -> None:
    assert place_on(build_machine([[1, 3]], 2), 3, 2, smt=True) == [[0, 4], [1, 2], [3, 7]]
    first, *others = place_on(build_machine([[1, 1], [3, 3]], 2), 3, 4, smt=True)
    assert first == [0, 1, 8, 9]
    assert {cpu % 8 for rank in others for cpu in rank} == {2, 3, 4, 5, 6, 7}


def test_with_smt_no_core_stays_idle_to_keep_ranks_whole() -> None:
    ranks = place_on(build_machine([[3, 3, 3]], 2), 5, 2, smt=True)
    assert {cpu % 9 for rank in ranks for cpu in rank} == set(range(9))


def test_with_smt_a_rank_short_of_siblings_takes_the_nearest() -> None:
    cores_0_and_2_whole_3_and_5_halved = [0, 6, 2, 8, 3, 5]
    ranks = place_on(build_machine([[2, 2, 2]], 2), 3, 2, smt=True, cpus=cores_0_and_2_whole_3_and_5_halved)
    assert ranks == [[0, 2], [3, 8], [5, 6]]


def test_compact_fills_a_node_before_the_next() -> None:
    assert place_on(build_machine([[4, 4]]), 2, 2) == [[0, 1], [2, 3]]


def test_compact_rank_that_must_straddle_touches_the_fewest_nodes() -> None:
    assert place_on(build_machine([[2, 2, 4, 4]]), 1, 5) == [[4, 5, 6, 7, 8]]


def test_compact_ranks_of_four_leave_the_odd_cores_of_six_and_six_alone() -> None:
    assert place_on(build_machine([[6], [6]]), 2, 4) == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_compact_straddles_only_when_it_must() -> None:
    ranks = place_ranks(build_machine([[6], [6]]), range(12), num_processes=3, num_threads=4)
    assert list_cpus(ranks) == [[0, 1, 2, 3], [4, 5, 10, 11], [6, 7, 8, 9]]
    assert [rank.memory_nodes for rank in ranks] == [(0,), (0, 1), (1,)]


def test_compact_prefers_to_straddle_within_a_socket() -> None:
    assert place_on(build_machine([[3, 2], [3, 3]]), 1, 6) == [[5, 6, 7, 8, 9, 10]]


def test_compact_on_three_and_one_skips_the_small_node() -> None:
    assert place_on(build_machine([[1, 3]]), 1, 2) == [[1, 2]]


def test_twelve_nodes_each_hold_a_rank_with_its_own_memory() -> None:
    ranks = place_ranks(build_machine([[8] * 6, [8] * 6]), range(96), num_processes=12, num_threads=8, policy="numa")
    assert [rank.memory_nodes for rank in ranks] == [(n,) for n in range(12)]
    assert list_cpus(ranks)[11] == list(range(88, 96))


def test_numa_balances_ranks_over_nodes() -> None:
    assert place_on(build_machine([[4], [4]]), 2, 2, policy="numa") == [[0, 1], [4, 5]]


def test_numa_refuses_a_rank_larger_than_a_node_and_says_why() -> None:
    with pytest.raises(PlacementError) as caught:
        place_ranks(build_machine([[3, 1]]), range(4), num_processes=2, num_threads=2, policy="numa")
    assert str(caught.value) == (
        "2 processes × 2 threads need 4 cores, each process within one NUMA node; "
        "the nodes have 3+1 cores, room for 1 of them"
    )


def test_spread_deals_ranks_over_sockets_before_nodes() -> None:
    four_nodes = build_machine([[4, 4], [4, 4]])
    assert place_on(four_nodes, 2, 2, policy="spread") == [[0, 1], [8, 9]]
    assert place_on(four_nodes, 5, 2, policy="spread") == [[0, 1], [8, 9], [4, 5], [12, 13], [2, 3]]


def test_spread_puts_the_threads_of_one_rank_evenly_over_nodes() -> None:
    assert place_on(build_machine([[4], [4]]), 1, 4, policy="spread") == [[0, 1, 4, 5]]
    assert place_on(build_machine([[3, 1]]), 1, 3, policy="spread") == [[0, 1, 3]]


def test_spread_ranks_too_large_for_a_node_stay_within_a_socket() -> None:
    assert place_on(build_machine([[2, 2], [2, 2]]), 2, 4, policy="spread") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_reserved_cores_are_the_lowest_numbered() -> None:
    assert place_on(build_machine([[4]], 2, adjacent=True), 1, 3, num_reserved_cores=1) == [[2, 4, 6]]


def test_offline_cpus_are_never_used() -> None:
    assert place_on(build_machine([[4]], offline=(1,)), 1, 3, cpus=[0, 1, 2, 3]) == [[0, 2, 3]]


def test_memory_policy_passes_through() -> None:
    (rank,) = place_ranks(build_machine([[2]]), [0, 1], num_processes=1, num_threads=1, memory_policy="interleave")
    assert rank == RankPlacement((0,), (0,), "interleave")


def test_oversubscribed_ranks_wrap_round() -> None:
    assert place_on(build_machine([[3]]), 3, 2, oversubscribe=True) == [[0, 1], [0, 2], [1, 2]]


def test_an_oversubscribed_rank_larger_than_the_machine_gets_all_of_it() -> None:
    assert place_on(build_machine([[2]]), 2, 5, oversubscribe=True) == [[0, 1], [0, 1]]


def test_oversubscription_that_is_not_needed_changes_nothing() -> None:
    topology = build_machine([[6], [6]], 2)
    for policy in ("compact", "spread", "numa"):
        assert place_on(topology, 2, 4, policy=policy, oversubscribe=True) == place_on(topology, 2, 4, policy=policy)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"num_processes": 4, "num_threads": 4, "num_reserved_cores": 1},
            "4 processes × 4 threads need 16 cores; the allocation has 2 (1 reserved)",
        ),
        ({"num_processes": 1, "num_threads": 3}, "1 process × 3 threads need 3 cores; the allocation has 2"),
        (
            {"num_processes": 1, "num_threads": 5, "smt": True},
            "1 process × 5 threads need 5 CPUs; the allocation has 4",
        ),
        ({"num_processes": 1, "num_threads": 0}, "0 threads: at least 1 needed"),
        ({"num_processes": -1, "num_threads": 1}, "-1 processes: at least 1 needed"),
        (
            {"num_processes": 1, "num_threads": 1, "num_reserved_cores": 2},
            "2 reserved cores leave none; the allocation has 2",
        ),
        (
            {"num_processes": 1, "num_threads": 1, "policy": "compat"},
            "unknown placement 'compat'; did you mean 'compact'?",
        ),
        (
            {"num_processes": 1, "num_threads": 1, "memory_policy": "zzz"},
            "unknown memory policy 'zzz'; known: default, interleave, local",
        ),
    ],
)
def test_impossible_points_name_their_numbers(options: dict[str, object], reason: str) -> None:
    with pytest.raises(PlacementError) as caught:
        place_ranks(build_machine([[2]], 2), range(4), **options)  # type: ignore[arg-type]
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ((1, 4), ["0,2,4,6"]),
        ((1, 8), ["0,2,4,6,8,10,12,14"]),
        ((2, 8), ["0,2,4,6,8,10,12,14", "16-23"]),
        ((3, 4), ["0,2,4,6", "8,10,12,14", "16-19"]),
        # Only the efficiency cores are as many.
        ((1, 16), ["16-31"]),
        ((1, 20), ["0,2,4,6,8,10,12,14,16-27"]),
        ((4, 6), ["0,2,4,6,8,10", "16-21", "22-27", "12,14,28-31"]),
    ],
)
@pytest.mark.parametrize("policy", ["compact", "spread", "numa"])
def test_a_hybrid_intel_processor_fills_performance_cores_first(
    tree: Tree, options: tuple[int, int], ranks: list[str], policy: str
) -> None:
    topology = read_topology(add_core_i9_13900k(tree).root)
    assert [format_cpu_list(rank) for rank in place_on(topology, *options, policy=policy)] == ranks


def test_hybrid_ranks_use_smt_siblings_only_if_cores_do_not_suffice(tree: Tree) -> None:
    topology = read_topology(add_core_i9_13900k(tree).root)
    assert place_on(topology, 1, 16, smt=True) == place_on(topology, 1, 16)
    assert [format_cpu_list(rank) for rank in place_on(topology, 2, 16, smt=True)] == ["0-15", "16-31"]
    five = [format_cpu_list(rank) for rank in place_on(topology, 5, 5, smt=True)]
    assert five == ["0-2,4,6", "8-10,12,14", "16-20", "21-25", "26-30"]
    (everything,) = place_on(topology, 1, 32, smt=True)
    assert everything == [*range(0, 16, 2), *range(16, 32), *range(1, 16, 2)]


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ((1, 1), ["7"]),
        ((1, 3), ["4-6"]),
        # The two faster types together, rather than the slowest alone.
        ((1, 4), ["4-7"]),
        ((2, 4), ["4-7", "0-3"]),
        ((2, 2), ["4-5", "6-7"]),
        ((1, 8), ["0-7"]),
        ((8, 1), ["7", "4", "5", "6", "0", "1", "2", "3"]),
    ],
)
def test_three_capacities_are_used_from_the_highest(tree: Tree, options: tuple[int, int], ranks: list[str]) -> None:
    topology = read_topology(add_snapdragon_865(tree).root)
    assert [format_cpu_list(rank) for rank in place_on(topology, *options)] == ranks


def test_threads_start_on_the_fastest_cores(tree: Tree) -> None:
    assert place_on(read_topology(add_snapdragon_865(tree).root), 1, 6) == [[7, 4, 5, 6, 0, 1]]


@pytest.mark.parametrize(
    ("options", "ranks"),
    [((1, 4), ["4-7"]), ((2, 3), ["4-6", "0-2"]), ((3, 2), ["4-5", "6-7", "0-1"]), ((1, 6), ["0-1,4-7"])],
)
def test_an_apple_processor_starts_with_its_last_cores(tree: Tree, options: tuple[int, int], ranks: list[str]) -> None:
    topology = read_topology(add_apple_m1(tree).root)
    assert [format_cpu_list(rank) for rank in place_on(topology, *options)] == ranks


def test_oversubscribed_ranks_of_a_hybrid_processor_share_cores_of_one_type(tree: Tree) -> None:
    ranks = place_on(read_topology(add_apple_m1(tree).root), 4, 3, oversubscribe=True)
    assert all(set(rank) <= {0, 1, 2, 3} or set(rank) <= {4, 5, 6, 7} for rank in ranks)


# --- properties ---------------------------------------------------------------------------------------------


@st.composite
def draw_points(draw: st.DrawFn, max_cores_per_node: int = 6, max_nodes: int = 4) -> tuple[Topology, list[int], dict]:
    sockets = draw(
        st.lists(
            st.lists(st.integers(1, max_cores_per_node), min_size=1, max_size=max_nodes // 2), min_size=1, max_size=2
        )
    )
    whole = build_machine(sockets, draw(st.integers(1, 2)), draw(st.booleans()))
    numbers = [c.number for c in whole.cpus]
    allowed = draw(st.lists(st.sampled_from(numbers), unique=True, min_size=1) | st.just(numbers))
    options = {
        "num_processes": draw(st.integers(1, 5)),
        "num_threads": draw(st.integers(1, 6)),
        "policy": draw(st.sampled_from(["compact", "spread", "numa"])),
        "smt": draw(st.booleans()),
        "num_reserved_cores": draw(st.sampled_from([0, 0, 0, 1])),
    }
    return whole, allowed, options


@st.composite
def draw_hybrid_points(draw: st.DrawFn) -> tuple[Topology, list[int], dict]:
    """A point on a machine whose cores are of up to three classes; SMT siblings are of one class."""
    topology, allowed, options = draw(draw_points())
    class_of = {core: draw(st.integers(0, 2)) for core in sorted({cpu.core for cpu in topology.cpus})}
    cpus = tuple(replace(cpu, core_class=class_of[cpu.core]) for cpu in topology.cpus)
    return Topology(cpus, topology.offline), allowed, options


def list_usable(topology: Topology, allowed: list[int], options: dict) -> list[Cpu]:
    """The CPUs that ranks may use, by an independent reading of the rules."""
    cpus = [c for c in topology.cpus if c.number in allowed]
    reserved = sorted({c.core for c in cpus})[: options["num_reserved_cores"]]
    cpus = [c for c in cpus if c.core not in reserved]
    if options["smt"]:
        return cpus
    return [c for c in cpus if c.number == min(o.number for o in cpus if o.core == c.core)]


def uses_sibling_in_vain(used: set[int], cpus: list[Cpu]) -> bool:
    load = Counter(c.core for c in cpus if c.number in used)
    return max(load.values()) > 1 and len(load) < len({c.core for c in cpus})


def clean_assignment_exists(cpus: list[Cpu], num_ranks: int, size: int, physical_first: bool) -> bool:
    """Whether any choice of CPUs keeps every rank within one node, by trying them all."""
    by_node: dict[int, list[int]] = {}
    for cpu in cpus:
        by_node.setdefault(cpu.node, []).append(cpu.number)

    def extend(used: frozenset[int], ranks_left: int) -> bool:
        if not ranks_left:
            return not (physical_first and uses_sibling_in_vain(set(used), cpus))
        return any(
            extend(used | frozenset(chosen), ranks_left - 1)
            for numbers in by_node.values()
            for chosen in combinations([n for n in numbers if n not in used], size)
        )

    return extend(frozenset(), num_ranks)


@settings(max_examples=400, deadline=None)
@given(draw_points() | draw_hybrid_points())
def test_ranks_get_exactly_their_own_cpus_of_the_allocation(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, options)
    try:
        ranks = place_ranks(topology, allowed, **options)
    except PlacementError:
        fits = options["num_processes"] * options["num_threads"] <= len(cpus)
        assert options["policy"] == "numa" or not fits
        return
    used = [n for rank in ranks for n in rank.cpus]
    assert len(ranks) == options["num_processes"]
    assert all(len(rank.cpus) == options["num_threads"] for rank in ranks)
    assert len(used) == len(set(used))
    assert set(used) <= {c.number for c in cpus}
    node_of = {c.number: c.node for c in cpus}
    assert all(rank.memory_nodes == tuple(sorted({node_of[n] for n in rank.cpus})) for rank in ranks)
    assert ranks == place_ranks(topology, list(reversed(allowed)), **options)


@settings(max_examples=300, deadline=None)
@given(draw_points())
def test_no_sibling_is_used_while_a_core_is_free(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, options)
    try:
        used = {n for rank in place_ranks(topology, allowed, **options) for n in rank.cpus}
    except PlacementError:
        return
    if options["policy"] != "numa":
        assert not uses_sibling_in_vain(used, cpus)
        return
    # A confined rank cannot use the cores of another node.
    for node in {c.node for c in cpus if c.number in used}:
        inside = [c for c in cpus if c.node == node]
        assert not uses_sibling_in_vain(used, inside)
    slots = sum(
        len({c.core for c in cpus if c.node == node}) // options["num_threads"] for node in {c.node for c in cpus}
    )
    if slots >= options["num_processes"]:
        assert max(Counter(c.core for c in cpus if c.number in used).values()) == 1


@settings(max_examples=400, deadline=None)
@given(draw_points(max_cores_per_node=3))
def test_no_rank_straddles_a_node_when_all_could_be_kept_whole(point: tuple) -> None:
    topology, allowed, options = point
    if options["policy"] == "spread":
        options = {**options, "policy": "compact"}
    cpus = list_usable(topology, allowed, options)
    size, num_ranks = options["num_threads"], options["num_processes"]
    if not size * num_ranks <= len(cpus) <= 8:
        return
    possible = clean_assignment_exists(cpus, num_ranks, size, physical_first=options["policy"] == "compact")
    try:
        ranks = place_ranks(topology, allowed, **options)
    except PlacementError:
        assert options["policy"] == "numa"
        assert not possible
        return
    if options["policy"] == "numa" or possible:
        assert all(len(rank.memory_nodes) == 1 for rank in ranks)


@settings(max_examples=200, deadline=None)
@given(draw_points())
def test_no_compact_rank_straddles_a_socket_when_whole_cores_suffice_within_sockets(point: tuple) -> None:
    topology, allowed, options = point
    options = {**options, "policy": "compact"}
    cpus = list_usable(topology, allowed, options)
    cores_of_socket = Counter({c.core: c.socket for c in cpus}.values())
    if sum(n // options["num_threads"] for n in cores_of_socket.values()) < options["num_processes"]:
        return
    socket_of = {c.number: c.socket for c in cpus}
    for rank in place_ranks(topology, allowed, **options):
        assert len({socket_of[n] for n in rank.cpus}) == 1


@settings(max_examples=400, deadline=None)
@given(draw_hybrid_points())
def test_no_rank_mixes_types_of_cores_unless_it_must(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, options)
    size = options["num_threads"]
    try:
        ranks = place_ranks(topology, allowed, **{**options, "policy": "compact"})
    except PlacementError:
        return
    class_of = {cpu.number: cpu.core_class for cpu in cpus}
    classes_of = [{class_of[number] for number in rank.cpus} for rank in ranks]
    num_cores = Counter({cpu.core: cpu.core_class for cpu in cpus}.values())
    num_cpus = Counter(class_of.values())
    room = num_cores if size * len(ranks) <= sum(num_cores.values()) else num_cpus
    for mixed in (each for each in classes_of if len(each) > 1):
        for core_class in mixed:
            assert classes_of.count({core_class}) == room[core_class] // size


@settings(max_examples=300, deadline=None)
@given(draw_hybrid_points())
def test_no_rank_uses_slower_cores_while_faster_ones_have_room_for_it(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, {**options, "smt": False})
    options = {**options, "policy": "compact", "smt": False}
    try:
        ranks = place_ranks(topology, allowed, **options)
    except PlacementError:
        return
    used = {number for rank in ranks for number in rank.cpus}
    class_of = {cpu.number: cpu.core_class for cpu in cpus}
    slowest = max(class_of[number] for number in used)
    free = Counter(class_of[number] for number in class_of.keys() - used)
    assert all(free[each] < options["num_threads"] for each in range(slowest))


@settings(max_examples=100, deadline=None)
@given(draw_hybrid_points())
def test_oversubscribed_ranks_mix_types_only_if_none_is_large_enough(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, options)
    if not cpus or options["num_processes"] * options["num_threads"] <= len(cpus):
        return
    sizes = Counter(cpu.core_class for cpu in cpus)
    class_of = {cpu.number: cpu.core_class for cpu in cpus}
    for rank in place_ranks(topology, allowed, oversubscribe=True, **{**options, "policy": "compact"}):
        is_mixed = len({class_of[number] for number in rank.cpus}) > 1
        assert not is_mixed or max(sizes.values()) < options["num_threads"]


@settings(max_examples=100, deadline=None)
@given(draw_points() | draw_hybrid_points())
def test_oversubscription_always_finds_a_place(point: tuple) -> None:
    topology, allowed, options = point
    cpus = list_usable(topology, allowed, options)
    if not cpus:
        return
    ranks = place_ranks(topology, allowed, oversubscribe=True, **options)
    assert len(ranks) == options["num_processes"]
    for rank in ranks:
        assert len(set(rank.cpus)) == len(rank.cpus) <= options["num_threads"]
        assert set(rank.cpus) <= {c.number for c in cpus}
    assert options["policy"] != "numa" or all(len(rank.memory_nodes) == 1 for rank in ranks)


@settings(max_examples=100, deadline=None)
@given(draw_points(), st.integers(1, 6))
def test_numa_ranks_differ_by_at_most_one_over_equal_nodes(point: tuple, num_nodes: int) -> None:
    _, _, options = point
    topology = build_machine([[6] * num_nodes])
    options = {**options, "policy": "numa", "num_reserved_cores": 0}
    try:
        ranks = place_ranks(topology, range(6 * num_nodes), **options)
    except PlacementError:
        return
    per_node = Counter(rank.memory_nodes for rank in ranks)
    counts = [per_node[(node,)] for node in range(num_nodes)]
    assert max(counts) - min(counts) <= 1
