"""Which knobs there are, and what is left out with its reason."""

from collections.abc import Mapping
from typing import Any

import pytest

from corewise.spec.feasibility import MachineView
from corewise.tuner.knobs import BY_HAND, Asked, Offer, good_starts, hand_setting, knobs_for
from corewise.workloads.base import Traits

SIXTEEN = MachineView(16, 16)
PLAIN = Traits(takes_images=True, has_batch_norm=False, has_dropout=False)
NORMED = Traits(takes_images=True, has_batch_norm=True, has_dropout=False)


def offer(mode: str = "infer", traits: Traits = PLAIN, machine: MachineView = SIXTEEN, **more: Any) -> Offer:
    asked = Asked(
        mode=mode,
        runtime=more.get("runtime", "torch"),
        traits=traits,
        fixed=more.get("fixed", {}),
        batch=more.get("batch", 64),
        allow=more.get("allow", ()),
        machine=machine,
        own=more.get("own", ()),
        kernel=more.get("kernel", ""),
    )
    return knobs_for(asked, more.get("reason_against", lambda params: ""))


def choices(found: Offer, knob: str) -> list[Mapping[str, Any]]:
    place = found.space.index(knob)
    return [] if place is None else list(found.space.knobs[place].choices)


def reasons(found: Offer, word: str) -> list[str]:
    return [each.reason for each in found.left_out if word in each.what]


def test_the_stock_default_is_one_unpinned_process_on_all_cores() -> None:
    space = offer().space
    params = space.params(space.default)
    assert (params["processes"], params["threads"], params["bind"], params["batch"]) == (1, 16, "none", 64)
    assert space.num_changed(space.default) == 0
    assert space.words(space.default) == "default"


def test_every_factorisation_and_fewer_threads_are_shapes() -> None:
    shapes = {(each["processes"], each["threads"]) for each in choices(offer(), "shape")}
    assert {(1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (1, 8), (1, 4)} <= shapes


def test_fewer_threads_branch_off_also_where_one_process_is_all_there_may_be() -> None:
    [shape] = [knob for knob in offer("train", NORMED).space.knobs if knob.name == "shape"]
    threads = [[shape.choices[i]["threads"] for i in ladder] for ladder in shape.ladders]
    assert threads == [[16], [16, 8, 4, 2, 1]]


def test_smt_adds_shapes_only_where_there_are_siblings() -> None:
    assert not any(each.get("smt") for each in choices(offer(), "shape"))
    with_siblings = choices(offer(machine=MachineView(8, 16)), "shape")
    assert {"processes": 16, "threads": 1, "smt": True} in with_siblings


def test_processes_that_train_together_need_permission_where_statistics_depend_on_the_batch() -> None:
    refused = offer("train", NORMED)
    assert all(each["processes"] == 1 for each in choices(refused, "shape"))
    assert any("--allow batch-statistics" in reason for reason in reasons(refused, "2×8"))
    assert any(each["processes"] == 8 for each in choices(offer("train", PLAIN), "shape"))
    allowed = offer("train", NORMED, allow=("batch-statistics",))
    assert any(each["processes"] == 8 for each in choices(allowed, "shape"))


def test_lower_precision_and_batch_need_permission() -> None:
    assert choices(offer(), "precision") == choices(offer(), "batch") == choices(offer(), "denormals") == []
    assert any("--allow lower-precision" in reason for reason in reasons(offer(), "bfloat16"))
    assert {"dtype": "bfloat16"} in choices(offer(allow=("lower-precision",)), "precision")
    assert choices(offer(allow=("batch",), batch=4), "batch")[0] == {"batch": 4}
    assert {"batch": 16} in choices(offer(allow=("batch",), batch=4), "batch")


def test_another_batch_needs_permission_even_where_it_is_the_axis_default() -> None:
    assert choices(offer(batch=4), "batch") == []


def test_what_the_machine_lacks_is_left_out_with_its_reason() -> None:
    def lacking(params: Mapping[str, Any]) -> str:
        return "jemalloc is not installed here" if params.get("allocator") == "jemalloc" else ""

    found = offer(reason_against=lacking)
    assert {"allocator": "jemalloc"} not in choices(found, "allocator")
    assert reasons(found, "jemalloc") == ["jemalloc is not installed here"]


def test_memory_policies_are_knobs_only_with_several_numa_nodes() -> None:
    assert choices(offer(), "memory_policy") == []
    assert choices(offer(machine=MachineView(16, 16, num_numa_nodes=2)), "memory_policy")


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ({"threads": 4}, {(1, 4), (4, 4)}),
        ({"processes": 2}, {(2, 8)}),
        ({"processes": 1, "threads": 16}, set()),
    ],
)
def test_a_fixed_axis_is_not_varied(fixed: dict[str, int], expected: set[tuple[int, int]]) -> None:
    found = offer(fixed=fixed)
    params = found.space.params(found.space.default)
    assert all(params[name] == value for name, value in fixed.items())
    shapes = {(each["processes"], each["threads"]) for each in choices(found, "shape")}
    assert shapes == expected or (len(expected) == 1 and not shapes)


def test_numpy_has_no_knobs_of_frameworks() -> None:
    names = {knob.name for knob in offer(runtime="numpy").space.knobs}
    assert names <= {"shape", "allocator", "bind", "huge_pages"}
    assert reasons(offer(runtime="numpy"), "execution") == ["the numpy runtime has no such thing"]
    assert reasons(offer(runtime="jax"), "math") == ["the jax runtime has no such thing"]
    assert reasons(offer(runtime="tensorflow"), "execution") == ["the tensorflow runtime has no such thing"]
    assert "math" in {knob.name for knob in offer(runtime="tensorflow").space.knobs}


def test_the_hand_setting_is_pinned_channels_last_and_keeps_its_memory() -> None:
    space = offer().space
    params = space.params(hand_setting(space))
    assert (params["processes"], params["threads"]) == (1, 16)
    assert {name: params[name] for name in BY_HAND} == dict(BY_HAND)
    assert params["allocator"] == "tcmalloc"


def test_the_hand_setting_keeps_freed_memory_where_no_allocator_is_installed() -> None:
    without = {"tcmalloc", "jemalloc"}
    found = offer(reason_against=lambda params: "no" if params.get("allocator") in without else "")
    space = found.space
    assert space.params(hand_setting(space))["allocator"] == "retain"


def test_the_ladder_to_a_setting_adds_one_knob_at_a_time() -> None:
    space = offer().space
    hand = hand_setting(space)
    steps = list(space.steps(hand))
    assert [space.num_changed(step) for step in steps] == [1, 2, 3]
    assert steps[-1] == hand


def test_a_setting_is_found_again_by_its_parameters() -> None:
    space = offer(machine=MachineView(4, 8)).space
    for knob in range(len(space.knobs)):
        for choice in range(len(space.knobs[knob].choices)):
            setting = space.changed(space.default, knob, choice)
            assert space.setting_of(space.params(setting)) == setting


def test_a_setting_is_found_by_the_complete_parameters_of_a_trial() -> None:
    space = offer().space
    hand = hand_setting(space)
    complete = {**space.params(hand), "freezing": "none", "interop_threads": None, "smt": False}
    assert space.setting_of(complete) == hand


def test_weights_that_are_trained_are_not_frozen_and_sequences_have_no_layout_of_images() -> None:
    frozen = [each for each in choices(offer("train"), "execution") if "freezing" in each]
    assert frozen == []
    assert any("freezing" in each for each in choices(offer("infer"), "execution"))
    sequences = Traits(takes_images=False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    found = offer("infer", sequences)
    assert choices(found, "memory_format") == []
    assert {"execution": "script", "interop_threads": 4} in choices(found, "execution")


def test_changing_widths_are_offered_where_there_are_branches_or_nothing_is_known() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    for traits, is_offered in ((branched, True), (Traits(), True), (PLAIN, False)):
        found = offer(traits=traits).space
        place = found.index("execution")
        assert place is not None
        numbers = [i for i, c in enumerate(found.knobs[place].choices) if c["execution"] == "malleable"]
        assert bool(numbers) is is_offered
        assert not set(numbers) & found.knobs[place].costly
        assert sorted(found.knobs[place].needs) == numbers


def test_changing_widths_go_back_to_one_process_in_training_and_unpin_cores() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    for mode, num_processes in (("train", 1), ("infer", 4)):
        space = offer(mode, branched).space
        place = space.index("execution")
        assert place is not None
        start = space.near({**space.base, "processes": 4, "threads": 4, "bind": "core"})
        widths = max(space.knobs[place].needs)
        params = space.params(space.as_needed(space.changed(start, place, widths), place))
        assert (params["processes"], params["bind"], params["execution"]) == (
            num_processes,
            "rank",
            "malleable",
        )


def test_a_kernel_has_neither_batches_nor_layouts_and_is_not_shared_by_processes() -> None:
    found = offer(traits=Traits(), batch=1, kernel="gemm", allow=("batch",))
    for name in ("memory_format", "execution", "batch"):
        assert choices(found, name) == []
        assert reasons(found, name) == ["for models; gemm is a kernel"]
    assert all(each["processes"] == 1 for each in choices(found, "shape"))
    assert any("one sample" in reason for reason in reasons(found, "2×8"))
    assert choices(found, "allocator")


def test_what_a_workload_itself_has_fixed_is_not_laid_to_the_user() -> None:
    fixed = {"dtype": "float64"}
    by_itself = offer(fixed=fixed, own=("dtype",), kernel="stream", allow=("lower-precision",))
    assert "stream itself fixed dtype to float64" in reasons(by_itself, "bfloat16")
    assert "you fixed dtype to float64" in reasons(offer(fixed=fixed, allow=("lower-precision",)), "bfloat16")


def test_our_own_kernels_are_for_training_and_the_start_after_the_hand_setting() -> None:
    def reason_against(params: Mapping[str, Any]) -> str:
        is_laid_out = params.get("memory_format") == "channels_last" or params.get("execution") != "quickened"
        return "" if is_laid_out else "images lie otherwise"

    found = offer("train", NORMED, reason_against=reason_against)
    assert {"execution": "quickened"} in choices(found, "execution")  # with the layout that it needs
    hand, quick = good_starts(found.space, hand_setting(found.space))
    assert found.space.params(quick) == {**found.space.params(hand), "execution": "quickened"}
    frozen = offer("infer", NORMED)
    assert {"execution": "quickened"} not in choices(frozen, "execution")


def test_in_inference_frozen_processes_with_a_core_each_are_tried_after_the_hand_setting() -> None:
    space = offer("infer", NORMED).space
    hand, frozen = good_starts(space, hand_setting(space))
    a_core_each = {"processes": 16, "threads": 1, "execution": "eager", "freezing": "full"}
    assert space.params(frozen) == {**space.params(hand), **a_core_each}
    in_one = offer("infer", NORMED, fixed={"processes": 1}).space
    hand, frozen = good_starts(in_one, hand_setting(in_one))
    assert in_one.params(frozen) == {**in_one.params(hand), "execution": "eager", "freezing": "full"}
    as_it_is = offer("infer", NORMED, fixed={"execution": "compile", "freezing": "none"}).space
    assert len(good_starts(as_it_is, hand_setting(as_it_is))) == 1


def test_where_fewer_digits_are_allowed_bfloat16_is_a_start_too() -> None:
    space = offer("infer", NORMED, allow=("lower-precision",)).space
    _, frozen, short = good_starts(space, hand_setting(space))
    assert space.params(short) == {**space.params(frozen), "dtype": "bfloat16"}
    space = offer("train", NORMED, allow=("lower-precision",)).space
    hand, quick, short = good_starts(space, hand_setting(space))
    assert space.params(quick)["execution"] == "quickened"
    assert space.params(short) == {**space.params(hand), "dtype": "bfloat16"}


def test_where_branches_can_run_side_by_side_ways_to_execute_come_early_in_training() -> None:
    branched = Traits(False, has_batch_norm=False, has_dropout=False, concurrent_under="script")
    names = [knob.name for knob in offer("train", branched).space.knobs]
    assert names.index("execution") < names.index("allocator")


def test_execution_comes_early_where_weights_are_fixed_and_late_where_they_are_trained() -> None:
    for mode, before, after in (("infer", "execution", "allocator"), ("train", "huge_pages", "execution")):
        names = [knob.name for knob in offer(mode).space.knobs]
        assert names.index(before) < names.index(after)


def test_knobs_of_other_machines_are_listed_with_what_is_missing_here() -> None:
    one, two = offer(), offer(machine=MachineView(16, 32, num_numa_nodes=2))
    assert reasons(one, "memory_policy") == ["the allocation lies on one NUMA node"]
    assert reasons(one, "smt") == ["the allocation has one hardware thread of each core"]
    assert not reasons(two, "memory_policy")
    assert "the allocation has one hardware thread of each core" not in reasons(two, "smt")


def test_what_usually_gives_most_of_a_training_is_tried_before_pinning_and_waiting() -> None:
    many = MachineView(64, 128, num_numa_nodes=4, libraries=frozenset({"tcmalloc", "jemalloc"}))
    allow = ("lower-precision", "batch-statistics", "batch")
    found = offer("train", NORMED, many, allow=allow, fixed={"data": "/images"})
    names = [knob.name for knob in found.space.knobs]
    first = ["shape", "memory_format", "precision", "allocator", "loader_workers", "batch"]
    assert names[: len(first)] == first
    late = ("huge_pages", "bind", "openmp", "wait_policy", "denormals", "math")
    assert max(map(names.index, ("placement", "memory_policy"))) < min(map(names.index, late))


def test_what_is_fixed_already_is_not_listed_as_something_to_allow() -> None:
    assert reasons(offer(fixed={"dtype": "bfloat16"}), "bfloat16") == []
    assert "allow it with --allow lower-precision" in reasons(offer(), "bfloat16")[0]
