"""The arithmetic of described layers, worked out by hand."""

import pytest

from corewise.workloads.layers import (
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
    num_parameters,
    operations,
)


def test_a_convolution_knows_its_shape_parameters_and_arithmetic() -> None:
    conv = Conv(4, 6, kernel=3, stride=2, padding=1, groups=2)
    assert conv.output_shape((4, 9, 7)) == (6, 5, 4)
    assert conv.num_parameters == 6 * (2 * 9) + 6
    assert conv.num_multiply_adds((4, 9, 7)) == 6 * 5 * 4 * 2 * 9
    assert conv.forward_elements((4, 9, 7)) == 4 * 9 * 7 + 6 * 5 * 4


def test_a_linear_layer_counts_its_bias_only_when_it_has_one() -> None:
    assert Linear(10, 3).num_parameters == 33
    assert Linear(10, 3, bias=False).num_parameters == 30


def test_pooling_and_flattening_have_no_parameters_and_change_only_the_shape() -> None:
    layers = Sequence((MaxPool(kernel=3, stride=2), AdaptiveAvgPool(2), Flatten()))
    assert layers.output_shape((5, 7, 7)) == (20,)
    assert num_parameters(layers) == 0


def test_a_residual_counts_both_branches_and_their_sum() -> None:
    body = Sequence((Conv(3, 8, kernel=1, bias=False), BatchNorm(8)))
    block = Residual(body, Conv(3, 8, kernel=1, bias=False))
    done = list(operations(block, (3, 2, 2)))
    assert [type(o.layer).__name__ for o in done] == ["Conv", "BatchNorm", "Conv", "Add"]
    assert done[-1].forward_elements == 3 * 8 * 4
    assert num_parameters(block) == 24 + 16 + 24


def test_backward_moves_the_gradients_and_what_was_saved() -> None:
    (relu,) = operations(ReLU(), (2, 3, 3))
    assert relu.forward_elements == 36
    assert relu.backward_elements == 36 + 18


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
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
        list(operations(layer, shape))  # type: ignore[arg-type]
    assert str(shape) in str(refused.value)
