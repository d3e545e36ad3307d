"""The knobs of workloads, and the choices that are not tried with their reasons."""

from collections.abc import Mapping
from typing import Any

import pytest

from corewise.measured.workloads.base import Traits
from corewise.study.planning.feasibility import MachineView
from corewise.tuning.search.knobs import (
    HAND_VALUES,
    KnobRequest,
    Offer,
    build_hand_setting,
    list_good_starts,
    list_hand_starts,
    select_knobs,
)

SIXTEEN = MachineView(16, 16)
PLAIN = Traits(takes_images=True, has_batch_norm=False, has_dropout=False)
NORMED = Traits(takes_images=True, has_batch_norm=True, has_dropout=False)


def build_offer(mode: str = "infer", traits: Traits = PLAIN, machine: MachineView = SIXTEEN, **more: Any) -> Offer:
    request = KnobRequest(
        mode=mode,
        runtime=more.get("runtime", "torch"),
        traits=traits,
        fixed=more.get("fixed", {}),
        batch=more.get("batch", 64),
        allow=more.get("allow", ()),
        machine=machine,
        set_by_workload=more.get("set_by_workload", ()),
        kernel=more.get("kernel", ""),
        is_custom=more.get("is_custom", False),
    )
    return select_knobs(request, more.get("explain_infeasible", lambda params: ""))


def list_choices(offer: Offer, knob: str) -> list[Mapping[str, Any]]:
    place = offer.space.find_knob(knob)
    return [] if place is None else list(offer.space.knobs[place].choices)


def list_reasons(offer: Offer, name: str) -> list[str]:
    return [each.reason for each in offer.left_out if name in each.description]


def test_the_stock_default_is_one_unpinned_process_on_all_cores() -> None:
    space = build_offer().space
    params = space.build_params(space.default)
    assert (params["processes"], params["threads"], params["bind"], params["batch"]) == (1, 16, "none", 64)
    assert space.count_changed(space.default) == 0
    assert space.describe(space.default) == "default"


def test_every_factorisation_and_fewer_threads_are_shapes() -> None:
    shapes = {(each["processes"], each["threads"]) for each in list_choices(build_offer(), "shape")}
    assert {(1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (1, 8), (1, 4)} <= shapes


def test_fewer_threads_are_a_ladder_also_for_a_single_process() -> None:
    [shape] = [knob for knob in build_offer("train", NORMED).space.knobs if knob.name == "shape"]
    threads = [[shape.choices[i]["threads"] for i in ladder] for ladder in shape.ladders]
    assert threads == [[16], [16, 8, 4, 2, 1]]


def test_processes_that_train_together_also_exchange_gradients_in_shared_memory() -> None:
    [shape] = [knob for knob in build_offer("train", PLAIN).space.knobs if knob.name == "shape"]
    shared = [number for number, choice in enumerate(shape.choices) if choice.get("collectives") == "shared"]
    assert [shape.choices[number]["processes"] for number in shared] == [2, 4, 8, 16]
    assert tuple(shared) in shape.ladders
    assert shape.describe(shared[0]) == "2×8 over shared memory"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "infer"},
        {"mode": "train", "fixed": {"collectives": "mpi"}},
        {"mode": "train", "fixed": {"device": "cuda"}},
        {"mode": "train", "runtime": "jax"},
        {"mode": "train", "traits": NORMED},
    ],
)
def test_shared_memory_is_not_tried_where_it_carries_nothing_or_another_choice_was_made(
    options: dict[str, Any],
) -> None:
    assert not any("collectives" in choice for choice in list_choices(build_offer(**options), "shape"))


def test_smt_adds_shapes_only_if_cores_have_siblings() -> None:
    assert not any(each.get("smt") for each in list_choices(build_offer(), "shape"))
    with_siblings = list_choices(build_offer(machine=MachineView(8, 16)), "shape")
    assert {"processes": 16, "threads": 1, "smt": True} in with_siblings


def test_distributed_training_needs_permission_if_statistics_depend_on_the_batch() -> None:
    refused = build_offer("train", NORMED)
    assert all(each["processes"] == 1 for each in list_choices(refused, "shape"))
    assert any("--allow batch-statistics" in reason for reason in list_reasons(refused, "2×8"))
    assert any(each["processes"] == 8 for each in list_choices(build_offer("train", PLAIN), "shape"))
    allowed = build_offer("train", NORMED, allow=("batch-statistics",))
    assert any(each["processes"] == 8 for each in list_choices(allowed, "shape"))


def test_lower_precision_and_batch_need_permission() -> None:
    assert (
        list_choices(build_offer(), "precision")
        == list_choices(build_offer(), "batch")
        == list_choices(build_offer(), "denormals")
        == []
    )
    assert any("--allow lower-precision" in reason for reason in list_reasons(build_offer(), "bfloat16"))
    assert {"dtype": "bfloat16"} in list_choices(build_offer(allow=("lower-precision",)), "precision")
    assert list_choices(build_offer(allow=("batch",), batch=4), "batch")[0] == {"batch": 4}
    assert {"batch": 16} in list_choices(build_offer(allow=("batch",), batch=4), "batch")


def test_another_batch_needs_permission_even_if_it_is_the_axis_default() -> None:
    assert list_choices(build_offer(batch=4), "batch") == []


def test_knobs_that_the_machine_lacks_are_listed_with_their_reason() -> None:
    def explain_infeasible(params: Mapping[str, Any]) -> str:
        return "jemalloc is not installed here" if params.get("allocator") == "jemalloc" else ""

    offer = build_offer(explain_infeasible=explain_infeasible)
    assert {"allocator": "jemalloc"} not in list_choices(offer, "allocator")
    assert list_reasons(offer, "jemalloc") == ["jemalloc is not installed here"]


def test_memory_policies_are_knobs_only_with_several_numa_nodes() -> None:
    assert list_choices(build_offer(), "memory_policy") == []
    assert list_choices(build_offer(machine=MachineView(16, 16, num_numa_nodes=2)), "memory_policy")


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [({"threads": 4}, {(1, 4), (4, 4)}), ({"processes": 2}, {(2, 8)}), ({"processes": 1, "threads": 16}, set())],
)
def test_a_fixed_axis_is_not_varied(fixed: dict[str, int], expected: set[tuple[int, int]]) -> None:
    offer = build_offer(fixed=fixed)
    params = offer.space.build_params(offer.space.default)
    assert all(params[name] == value for name, value in fixed.items())
    shapes = {(each["processes"], each["threads"]) for each in list_choices(offer, "shape")}
    assert shapes == expected or (len(expected) == 1 and not shapes)


def test_numpy_has_no_knobs_of_frameworks() -> None:
    names = {knob.name for knob in build_offer(runtime="numpy").space.knobs}
    assert names <= {"shape", "allocator", "bind", "huge_pages", "wait_policy"}
    assert list_reasons(build_offer(runtime="numpy"), "execution") == ["not available in the numpy runtime"]
    assert list_reasons(build_offer(runtime="jax"), "math") == ["not available in the jax runtime"]
    assert list_reasons(build_offer(runtime="tensorflow"), "execution") == ["not available in the tensorflow runtime"]
    assert "math" in {knob.name for knob in build_offer(runtime="tensorflow").space.knobs}


def test_the_hand_setting_is_pinned_channels_last_and_keeps_its_memory() -> None:
    space = build_offer().space
    params = space.build_params(build_hand_setting(space))
    assert (params["processes"], params["threads"]) == (1, 16)
    assert {name: params[name] for name in HAND_VALUES} == dict(HAND_VALUES)
    assert params["allocator"] == "tcmalloc"


def test_the_hand_setting_retains_memory_if_no_allocator_is_installed() -> None:
    without = {"tcmalloc", "jemalloc"}
    offer = build_offer(explain_infeasible=lambda params: "no" if params.get("allocator") in without else "")
    space = offer.space
    assert space.build_params(build_hand_setting(space))["allocator"] == "retain"


def test_the_ladder_to_a_setting_adds_one_knob_at_a_time() -> None:
    space = build_offer().space
    hand = build_hand_setting(space)
    steps = list(space.list_steps(hand))
    assert [space.count_changed(step) for step in steps] == [1, 2, 3]
    assert steps[-1] == hand


def test_a_setting_is_found_again_by_its_parameters() -> None:
    space = build_offer(machine=MachineView(4, 8)).space
    for knob in range(len(space.knobs)):
        for choice in range(len(space.knobs[knob].choices)):
            setting = space.replace_choice(space.default, knob, choice)
            assert space.find_setting(space.build_params(setting)) == setting


def test_a_setting_is_found_by_the_complete_parameters_of_a_trial() -> None:
    space = build_offer().space
    hand = build_hand_setting(space)
    complete = {**space.build_params(hand), "freezing": "none", "interop_threads": None, "smt": False}
    assert space.find_setting(complete) == hand


def test_trained_weights_are_not_frozen_and_sequences_have_no_image_layout() -> None:
    frozen = [each for each in list_choices(build_offer("train"), "execution") if "freezing" in each]
    assert frozen == []
    assert any("freezing" in each for each in list_choices(build_offer("infer"), "execution"))
    sequences = Traits(takes_images=False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    offer = build_offer("infer", sequences)
    assert list_choices(offer, "memory_format") == []
    assert {"execution": "script", "interop_threads": 4} in list_choices(offer, "execution")


def test_malleable_execution_is_offered_for_branches_and_unknown_models() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    for traits, is_offered in ((branched, True), (Traits(), True), (PLAIN, False)):
        offer = build_offer(traits=traits).space
        place = offer.find_knob("execution")
        assert place is not None
        numbers = [i for i, c in enumerate(offer.knobs[place].choices) if c["execution"] == "malleable"]
        assert bool(numbers) is is_offered
        assert not set(numbers) & offer.knobs[place].costly
        assert sorted(offer.knobs[place].needs) == numbers


def test_malleable_training_needs_one_process_without_core_binding() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    for mode, num_processes in (("train", 1), ("infer", 4)):
        space = build_offer(mode, branched).space
        place = space.find_knob("execution")
        assert place is not None
        start = space.find_nearest({**space.base, "processes": 4, "threads": 4, "bind": "core"})
        widths = max(space.knobs[place].needs)
        params = space.build_params(space.apply_needs(space.replace_choice(start, place, widths), place))
        assert (params["processes"], params["bind"], params["execution"]) == (num_processes, "rank", "malleable")


def test_a_kernel_has_neither_batches_nor_layouts_and_is_not_shared_by_processes() -> None:
    offer = build_offer(traits=Traits(), batch=1, kernel="gemm", allow=("batch",))
    for name in ("memory_format", "execution", "batch"):
        assert list_choices(offer, name) == []
        assert list_reasons(offer, name) == ["applies to models only; gemm is a kernel"]
    assert all(each["processes"] == 1 for each in list_choices(offer, "shape"))
    assert any("one sample" in reason for reason in list_reasons(offer, "2×8"))
    assert list_choices(offer, "allocator")


def test_values_fixed_by_the_workload_are_not_attributed_to_the_user() -> None:
    fixed = {"dtype": "float64"}
    by_workload = build_offer(fixed=fixed, set_by_workload=("dtype",), kernel="stream", allow=("lower-precision",))
    assert "stream fixed dtype to float64" in list_reasons(by_workload, "bfloat16")
    assert "you fixed dtype to float64" in list_reasons(
        build_offer(fixed=fixed, allow=("lower-precision",)), "bfloat16"
    )


def test_our_own_kernels_are_for_training_and_the_start_after_the_hand_setting() -> None:
    def explain_infeasible(params: Mapping[str, Any]) -> str:
        has_layout = params.get("memory_format") == "channels_last" or params.get("execution") != "fast-kernels"
        return "" if has_layout else "needs channels_last"

    offer = build_offer("train", NORMED, explain_infeasible=explain_infeasible)
    assert {"execution": "fast-kernels"} in list_choices(offer, "execution")
    hand, quick = list_good_starts(offer.space, build_hand_setting(offer.space))
    assert offer.space.build_params(quick) == {**offer.space.build_params(hand), "execution": "fast-kernels"}
    frozen = build_offer("infer", NORMED)
    assert {"execution": "fast-kernels"} not in list_choices(frozen, "execution")


def test_in_inference_frozen_single_core_processes_follow_the_hand_setting() -> None:
    space = build_offer("infer", NORMED).space
    hand, frozen = list_good_starts(space, build_hand_setting(space))
    single_core = {"processes": 16, "threads": 1, "execution": "eager", "freezing": "full"}
    assert space.build_params(frozen) == {**space.build_params(hand), **single_core}
    in_one = build_offer("infer", NORMED, fixed={"processes": 1}).space
    hand, frozen = list_good_starts(in_one, build_hand_setting(in_one))
    assert in_one.build_params(frozen) == {**in_one.build_params(hand), "execution": "eager", "freezing": "full"}
    fixed_execution = build_offer("infer", NORMED, fixed={"execution": "compile", "freezing": "none"}).space
    assert len(list_good_starts(fixed_execution, build_hand_setting(fixed_execution))) == 1


def test_on_a_busy_machine_passive_waiting_is_tried_after_the_hand_setting() -> None:
    space = build_offer("infer", NORMED).space
    by_hand = build_hand_setting(space)
    hand, passive, frozen = list_good_starts(space, by_hand, is_busy=True)
    assert space.build_params(passive) == {**space.build_params(hand), "wait_policy": "passive"}
    assert (hand, frozen) == list_good_starts(space, by_hand)
    assert list_hand_starts(space, by_hand, is_busy=True) == (hand, passive)
    fixed = build_offer("infer", NORMED, fixed={"wait_policy": "active"}).space
    assert list_hand_starts(fixed, build_hand_setting(fixed), is_busy=True) == (build_hand_setting(fixed),)


def test_bfloat16_is_a_start_if_lower_precision_is_allowed() -> None:
    space = build_offer("infer", NORMED, allow=("lower-precision",)).space
    _, frozen, reduced = list_good_starts(space, build_hand_setting(space))
    assert space.build_params(reduced) == {**space.build_params(frozen), "dtype": "bfloat16"}
    space = build_offer("train", NORMED, allow=("lower-precision",)).space
    hand, quick, reduced = list_good_starts(space, build_hand_setting(space))
    assert space.build_params(quick)["execution"] == "fast-kernels"
    assert space.build_params(reduced) == {**space.build_params(hand), "dtype": "bfloat16"}


def test_execution_comes_early_in_training_if_branches_can_run_concurrently() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    names = [knob.name for knob in build_offer("train", branched).space.knobs]
    assert names.index("execution") < names.index("allocator")


def test_execution_comes_early_in_inference_and_late_in_training() -> None:
    for mode, before, after in (("infer", "execution", "allocator"), ("train", "huge_pages", "execution")):
        names = [knob.name for knob in build_offer(mode).space.knobs]
        assert names.index(before) < names.index(after)


def test_knobs_of_other_machines_are_listed_with_what_is_missing() -> None:
    one, two = build_offer(), build_offer(machine=MachineView(16, 32, num_numa_nodes=2))
    assert list_reasons(one, "memory_policy") == ["the allocation lies on one NUMA node"]
    assert list_reasons(one, "smt") == ["the allocation has one hardware thread of each core"]
    assert not list_reasons(two, "memory_policy")
    assert "the allocation has one hardware thread of each core" not in list_reasons(two, "smt")


def test_knobs_with_the_largest_gain_in_training_come_before_pinning_and_waiting() -> None:
    many = MachineView(64, 128, num_numa_nodes=4, libraries=frozenset({"tcmalloc", "jemalloc"}))
    allow = ("lower-precision", "batch-statistics", "batch")
    offer = build_offer("train", NORMED, many, allow=allow, fixed={"data": "/images"})
    names = [knob.name for knob in offer.space.knobs]
    first = ["shape", "memory_format", "precision", "allocator", "loader_workers", "batch"]
    assert names[: len(first)] == first
    late = ("huge_pages", "bind", "openmp", "wait_policy", "denormals", "math")
    assert max(map(names.index, ("placement", "memory_policy"))) < min(map(names.index, late))


def test_a_fixed_value_is_not_listed_as_something_to_allow() -> None:
    assert list_reasons(build_offer(fixed={"dtype": "bfloat16"}), "bfloat16") == []
    assert "allow it with --allow lower-precision" in list_reasons(build_offer(), "bfloat16")[0]


TEXT = Traits(takes_images=False, has_batch_norm=False, has_dropout=True)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_users_model_without_images_has_no_channels_last(mode: str) -> None:
    offer = build_offer(mode, TEXT, is_custom=True)
    layouts = [each["memory_format"] for each in list_choices(offer, "memory_format")]
    assert layouts == (["contiguous", "blocked"] if mode == "infer" else [])
    hand = offer.space.build_params(build_hand_setting(offer.space))
    assert hand.get("memory_format", "contiguous") == "contiguous"
    assert hand["bind"] == "rank"


def test_weights_are_folded_only_where_there_may_be_a_batch_normalisation() -> None:
    for traits, is_offered in ((TEXT, False), (NORMED, True), (Traits(), True)):
        choices = list_choices(build_offer(traits=traits, is_custom=True), "execution")
        assert any(each.get("freezing") == "fold" for each in choices) is is_offered


def test_a_users_model_may_have_branches_whatever_else_is_known() -> None:
    choices = list_choices(build_offer(traits=TEXT, is_custom=True), "execution")
    assert {"execution": "malleable"} in choices


def test_several_processes_train_a_model_without_batch_normalisation_freely() -> None:
    plain = Traits(takes_images=False, has_batch_norm=False, has_dropout=False)
    assert len(list_choices(build_offer("train", plain, is_custom=True), "shape")) > 5
    offer = build_offer("train", NORMED, is_custom=True)
    assert any("batch normalisation sees only" in each for each in list_reasons(offer, "2×8"))


def test_int8_comes_first_where_the_cpu_has_no_bfloat16() -> None:
    for flags, first in ((frozenset({"avx2"}), "int8"), (frozenset({"avx512_bf16"}), "bfloat16"), (None, "bfloat16")):
        machine = MachineView(16, 16, instruction_sets=flags)
        offer = build_offer(traits=TEXT, machine=machine, allow=("lower-precision",), is_custom=True)
        assert list_choices(offer, "precision")[1]["dtype"] == first
        starts = list_good_starts(offer.space, build_hand_setting(offer.space))
        assert [offer.space.build_params(each).get("dtype") for each in starts][-1] == first
