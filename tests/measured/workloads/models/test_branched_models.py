"""Inception-v3, the two-tower recommender and the mixture of experts: sizes and work, computed by hand."""

from typing import Any

import pytest

from corewise.measured.workloads.base import Traits, describe_traits
from corewise.measured.workloads.models.branch_layers import Branches, Embedding, Gated, Join, Part, WithAuxiliary
from corewise.measured.workloads.models.layer_costs import iterate_operations
from corewise.measured.workloads.models.layers import Conv, Dropout, Flatten, Layer, Linear, Sequence, ShapeError
from corewise.measured.workloads.registry import find_workload

TOWERS: dict[str, Any] = {
    "user_ids": 20, "item_ids": 10, "user_fields": 3, "item_fields": 2, "embedding": 4, "user_width": 8,
    "item_width": 6, "layers": 2, "output": 5,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "layers": 1, "experts": 3, "top_k": 2, "width": 4, "hidden": 6, "tokens": 5, "num_classes": 7,
}  # fmt: skip


def test_inception_has_the_published_parameters_and_arithmetic() -> None:
    model = find_workload("inception_v3")
    infer, train = (model.count_work(mode, {}) for mode in ("infer", "train"))
    assert infer.num_parameters == train.num_parameters == 27_161_264
    assert infer.flops_per_sample / 2e9 == pytest.approx(5.713, rel=1e-3)
    assert infer.pixels_per_sample == 299 * 299
    without_head = 27_161_264 - (768 * 128 + 2 * 128 + 128 * 768 * 25 + 2 * 768 + 769 * 1000)
    # This is the published number without the head.
    assert without_head == 23_834_568


def test_the_auxiliary_head_costs_in_training_alone() -> None:
    model: Any = find_workload("inception_v3")
    layers = model.build_layers({})
    head = layers.auxiliary
    assert head.compute_output_shape((768, 17, 17)) == (1000,)
    training = list(iterate_operations(layers, (3, 299, 299), training=True))
    inferring = list(iterate_operations(layers, (3, 299, 299), training=False))
    of_head = list(iterate_operations(head, (768, 17, 17)))
    # Training also has the dropout.
    assert len(training) == len(inferring) + len(of_head) + 1
    assert not any(isinstance(each.layer, Dropout) for each in inferring)


def test_smaller_images_can_be_inferred_but_not_trained_on() -> None:
    model = find_workload("inception_v3")
    assert model.count_work("infer", {"image_size": 75}).pixels_per_sample == 75 * 75
    with pytest.raises(ValueError, match=r"inception_v3: image_size 74 is too small"):
        model.count_work("infer", {"image_size": 74})
    with pytest.raises(ValueError, match=r"inception_v3 cannot train on samples of \(3, 298, 298\): Conv"):
        model.count_work("train", {"image_size": 298})


def test_the_towers_work_is_that_of_their_linear_layers() -> None:
    model: Any = find_workload("two_tower")
    user, item = 12 * 8 + 8 * 8 + 8 * 5, 8 * 6 + 6 * 6 + 6 * 5
    biases = 8 + 8 + 5 + 6 + 6 + 5
    infer, train = (model.count_work(mode, TOWERS) for mode in ("infer", "train"))
    assert infer.num_parameters == 20 * 4 + 10 * 4 + user + item + biases
    assert infer.flops_per_sample == 2 * (user + item)
    # Embeddings are trained, so no layer has data alone as its input.
    assert train.flops_per_sample == 6 * (user + item)
    rows = (3 + 2 * 12) + (2 + 2 * 8)
    linear = (12 + 8) + (8 + 8) + (8 + 5) + (8 + 6) + (6 + 6) + (6 + 5)
    relu = 2 * (8 + 8) + 2 * (6 + 6)
    assert infer.bytes_per_sample == 4 * (rows + linear + relu + (10 + 1))
    assert model.compute_input_shape(TOWERS) == (5,)
    assert model.list_id_limits(TOWERS) == (20, 20, 20, 10, 10)


def test_the_mixture_counts_its_gate_and_every_expert() -> None:
    model = find_workload("mixture_of_experts")
    expert, gate, head = 4 * 6 + 6 * 4, 4 * 3, 4 * 7
    infer, train = (model.count_work(mode, EXPERTS) for mode in ("infer", "train"))
    assert infer.num_parameters == 3 * (expert + 6 + 4) + gate + 2 * 4 + head + 7
    assert infer.flops_per_sample == 2 * (5 * (3 * expert + gate) + head)
    no_gradient_of_the_input = 5 * (3 * 4 * 6 + gate)
    assert train.flops_per_sample == 3 * infer.flops_per_sample - 2 * no_gradient_of_the_input
    fewer = model.count_work("infer", {**EXPERTS, "top_k": 1})
    # All experts compute, whichever are chosen.
    assert fewer == infer


def test_joins_read_what_branches_wrote_and_save_what_products_need() -> None:
    pair = (Linear(4, 3), Linear(4, 3))
    joins = {how: list(iterate_operations(Branches(pair, how), (4,)))[-1] for how in ("concatenate", "sum", "dot")}
    assert {how: join.forward_elements for how, join in joins.items()} == {"concatenate": 12, "sum": 9, "dot": 7}
    assert [joins[how].layer.count_saved_elements((1,)) for how in ("sum", "dot")] == [0, 6]
    gated = Gated(Linear(4, 2), Branches(pair, "stack"), top=1)
    stacked, weighted = (o for o in iterate_operations(gated, (5, 4)) if isinstance(o.layer, Join))
    assert stacked.forward_elements == 2 * 5 * 6
    assert weighted.forward_elements == 5 * (2 + 6 + 3)


def test_images_are_joined_along_their_channels() -> None:
    branches = Branches((Conv(3, 8, kernel=(1, 3), padding=(0, 1)), Conv(3, 4, kernel=1)), join="channels")
    assert branches.compute_output_shape((3, 6, 9)) == (12, 6, 9)
    long = Conv(3, 8, kernel=(1, 7), padding=(0, 3), bias=False)
    assert (long.num_parameters, long.compute_output_shape((3, 5, 5))) == (3 * 8 * 7, (8, 5, 5))
    assert long.count_multiply_adds((3, 5, 5)) == 8 * 25 * 3 * 7


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Branches((Conv(3, 8, kernel=3), Conv(3, 8, kernel=1)), join="channels"), (3, 8, 8)),
        (Branches((Linear(4, 3),) * 3, join="dot"), (4,)),
        (Branches((Linear(4, 3), Linear(4, 2)), join="stack"), (4,)),
        (Part(2, 3), (4,)),
        (Embedding(5, 3), (4, 2)),
        (WithAuxiliary(Flatten(), Linear(5, 2), Linear(4, 2)), (1, 2, 2)),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(layer: Layer, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        list(iterate_operations(layer, shape))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("mixture_of_experts", {"top_k": 9}, "mixture_of_experts: cannot choose 9 of 8 experts"),
        ("mixture_of_experts", {"experts": 0}, "experts must be a whole number of at least 1"),
        ("two_tower", {"user_ids": 0}, "two_tower: user_ids must be a whole number"),
        ("two_tower", {"num_classes": 5}, "two_tower has no parameter 'num_classes'"),
    ],
)
def test_impossible_sizes_are_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_workload(name).count_work("infer", args)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("inception_v3", Traits(True, True, True, concurrent_under="script", has_fast_kernels=True)),
        ("two_tower", Traits(False, False, False, concurrent_under="script", has_fast_kernels=False)),
        ("mixture_of_experts", Traits(False, False, False, "script", has_fast_kernels=False)),
    ],
)
def test_a_workload_with_branches_names_the_execution_that_runs_them_in_parallel(name: str, traits: Traits) -> None:
    assert describe_traits(find_workload(name), {}) == traits


def test_an_empty_chain_leaves_its_input_alone() -> None:
    assert Sequence(()).compute_output_shape((3, 4, 4)) == (3, 4, 4)
    assert list(iterate_operations(Sequence(()), (3, 4, 4))) == []
