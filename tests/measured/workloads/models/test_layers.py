"""The arithmetic of described layers, computed by hand."""

import pytest

from corewise.measured.workloads.models.branch_layers import Branches
from corewise.measured.workloads.models.layer_costs import iterate_operations
from corewise.measured.workloads.models.layers import (
    AdaptiveAvgPool,
    BatchNorm,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    Sequence,
    ShapeError,
    count_parameters,
)
from corewise.measured.workloads.models.sequence_layers import Attention, LayerNorm, Lstm, MeanOverSteps


def test_a_convolution_knows_its_shape_parameters_and_arithmetic() -> None:
    conv = Conv(4, 6, kernel=3, stride=2, padding=1, groups=2)
    assert conv.compute_output_shape((4, 9, 7)) == (6, 5, 4)
    assert conv.num_parameters == 6 * (2 * 9) + 6
    assert conv.count_multiply_adds((4, 9, 7)) == 6 * 5 * 4 * 2 * 9
    assert conv.count_forward_elements((4, 9, 7)) == 4 * 9 * 7 + 6 * 5 * 4


def test_a_linear_layer_counts_its_bias_only_when_it_has_one() -> None:
    assert Linear(10, 3).num_parameters == 33
    assert Linear(10, 3, bias=False).num_parameters == 30


def test_pooling_and_flattening_have_no_parameters_and_change_only_the_shape() -> None:
    layers = Sequence((MaxPool(kernel=3, stride=2), AdaptiveAvgPool(2), Flatten()))
    assert layers.compute_output_shape((5, 7, 7)) == (20,)
    assert count_parameters(layers) == 0


def test_a_residual_counts_both_branches_and_their_sum() -> None:
    body = Sequence((Conv(3, 8, kernel=1, bias=False), BatchNorm(8)))
    block = Residual(body, Conv(3, 8, kernel=1, bias=False))
    done = list(iterate_operations(block, (3, 2, 2)))
    assert [type(o.layer).__name__ for o in done] == ["Conv", "BatchNorm", "Conv", "Add"]
    assert done[-1].forward_elements == 3 * 8 * 4
    assert count_parameters(block) == 24 + 16 + 24


def test_backward_moves_the_gradients_and_what_was_saved() -> None:
    (relu,) = iterate_operations(ReLU(), (2, 3, 3))
    assert relu.forward_elements == 36
    assert relu.backward_elements == 36 + 18


def test_layers_over_data_alone_give_no_gradient_of_their_input() -> None:
    layers = Sequence((Flatten(), Linear(4, 3), ReLU(), Linear(3, 2)))
    first, *rest = [o for o in iterate_operations(layers, (1, 2, 2), on_data=True) if o.num_multiply_adds]
    assert (first.num_multiply_adds, first.num_backward_multiply_adds) == (12, 12)
    assert first.backward_elements == (4 + 3) + 4 - 4
    assert [o.num_backward_multiply_adds for o in rest] == [12]
    relu = next(iterate_operations(Sequence((ReLU(), Linear(4, 3))), (4,), on_data=True))
    assert (relu.num_backward_multiply_adds, relu.backward_elements) == (0, 0)


def test_a_linear_layer_takes_every_step_of_a_sequence() -> None:
    linear = Linear(4, 6)
    assert linear.compute_output_shape((5, 4)) == (5, 6)
    assert linear.count_multiply_adds((5, 4)) == 5 * 4 * 6
    assert linear.count_saved_elements((5, 4)) == 20


def test_an_lstm_counts_its_gates() -> None:
    lstm = Lstm(3, 5)
    assert lstm.compute_output_shape((7, 3)) == (7, 5)
    assert lstm.num_parameters == 4 * 5 * 3 + 4 * 5 * 5 + 2 * 4 * 5
    assert lstm.count_multiply_adds((7, 3)) == 7 * 4 * 5 * (3 + 5)
    weights, states, inputs = 7 * 20 * 8, 6 * 20 * 5, 7 * 20 * 3
    assert lstm.count_backward_multiply_adds((7, 3), on_data=True) == weights + states
    assert lstm.count_backward_multiply_adds((7, 3), on_data=False) == weights + states + inputs
    assert lstm.count_forward_elements((7, 3)) == 7 * 3 + 7 * 5
    assert lstm.count_saved_elements((7, 3)) == 7 * (3 + 4 * 5 + 5 + 5)


def test_attention_compares_every_step_with_every_other() -> None:
    attention = Attention(8, num_heads=2)
    assert attention.compute_output_shape((5, 24)) == (5, 8)
    assert attention.count_multiply_adds((5, 24)) == 2 * 5 * 5 * 8
    assert attention.num_parameters == 0
    assert attention.count_saved_elements((5, 24)) == 5 * 24 + 5 * 8


def test_branches_are_concatenated_or_summed() -> None:
    pair = Branches((Lstm(3, 5), Lstm(3, 4)), join="concatenate")
    assert pair.compute_output_shape((7, 3)) == (7, 9)
    assert [o.forward_elements for o in iterate_operations(pair, (7, 3))][-1] == 2 * 7 * 9
    total = Branches((pair, pair, pair), join="sum")
    assert total.compute_output_shape((7, 3)) == (7, 9)
    assert [o.forward_elements for o in iterate_operations(total, (7, 3))][-1] == 4 * 7 * 9
    assert count_parameters(total) == 3 * count_parameters(pair)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Lstm(3, 5), (7, 4)),
        (Lstm(3, 5), (3,)),
        (Attention(8, num_heads=2), (5, 8)),
        (LayerNorm(4), (5, 3)),
        (Branches((Linear(4, 3), Linear(4, 2)), join="sum"), (4,)),
        (Branches((Linear(4, 3), MeanOverSteps()), join="concatenate"), (5, 4)),
        (Conv(3, 8, kernel=3), (4, 8, 8)),
        (Conv(3, 8, kernel=5), (3, 4, 4)),
        (MaxPool(kernel=3, stride=2), (3, 2, 2)),
        (Linear(10, 2), (5, 2, 1)),
        (BatchNorm(3), (4, 2, 2)),
        (Residual(Conv(3, 8, kernel=1)), (3, 4, 4)),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_and_named(layer: object, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as refused:
        list(iterate_operations(layer, shape))  # type: ignore[arg-type]
    assert str(shape) in str(refused.value)
