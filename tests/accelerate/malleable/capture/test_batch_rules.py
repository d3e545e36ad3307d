"""Each rule of how operators treat a cut batch, against the operator itself on slices and on the whole."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from corewise.accelerate.malleable.capture import batch_rules
from corewise.accelerate.malleable.capture.batch_rules import find_cut_dim, resize_args

pytestmark = pytest.mark.torch
aten = torch.ops.aten
ROWS = 5
BORDERS = ((0, 2), (2, 3), (3, 5))


def t(*shape: int, values: str = "float") -> Any:
    """Create values of this shape with different rows; several dimensions may have the size of the batch."""
    if values == "index":
        return torch.arange(torch.Size(shape).numel()).reshape(shape) % 7
    if values == "mask":
        return (torch.arange(torch.Size(shape).numel()) % 3 == 0).reshape(shape)
    return torch.randn(*shape, dtype=torch.float64)


def samples() -> dict[str, list[tuple[Any, ...]]]:
    """List arguments for each operator that has a rule."""
    square, deep, images = (ROWS, ROWS), (ROWS, 4, ROWS), (ROWS, 3, 8, 8)
    alone = [(t(*square),), (t(*deep).abs(),)]
    two = [
        (t(*deep), t(*deep)),
        (t(*deep), t(ROWS)),
        (t(*deep), t(1, 4, 1)),
        (t(ROWS), t(ROWS, ROWS)),
        (t(ROWS, 1), t(1, ROWS)),
    ]
    masks = [(t(*one, values="mask"), t(*other, values="mask")) for one, other in [(square, square), (deep, (5,))]]
    scalar = [(t(*square), 0.25)]
    pools = [(t(*images), [2, 2]), (t(3, 8, 8), [2, 2])]
    dims = [(t(*deep), dim) for dim in (0, 1, -1)]
    reduced = [(t(*deep), [dim]) for dim in (0, 1, -1)] + [(t(*deep), [0, 1], True)]
    shapes = [
        (t(ROWS, 6), [ROWS, 2, 3]),
        (t(ROWS, 6), [-1, 3, 2]),
        (t(ROWS, 4, ROWS), [ROWS * 4, ROWS]),
        (t(ROWS, 4, ROWS), [4, ROWS, ROWS]),
        (t(4, ROWS, 6), [4, ROWS, 3, 2]),
    ]
    cases: dict[str, list[tuple[Any, ...]]] = {str(one): alone for one in batch_rules._UNARY}
    cases |= {str(one): scalar for one in batch_rules._UNARY if str(one).endswith((".Scalar", "_Scalar"))}
    cases |= {str(one): two for one in batch_rules._ELEMENTWISE}
    cases |= {str(one): masks for one in (aten.logical_and.default, aten.logical_or.default)}
    cases |= {
        "aten.logical_not.default": [(t(*square, values="mask"),)],
        "aten.bitwise_not.default": [(t(*square, values="mask"),)],
        "aten.clamp.default": [(t(*square), -0.5, 0.5)],
        "aten.clamp_min.default": [(t(*square), 0.0)],
        "aten.to.dtype": [(t(*square), torch.float32)],
        "aten.dropout.default": [(t(*square), 0.5, False), (t(*square), 0.5, True)],
        "aten.pow.Tensor_Tensor": [(t(*square).abs(), t(ROWS).abs())],
        "aten.masked_fill.Scalar": [(t(*deep), t(*deep, values="mask"), 0.5), (t(*square), t(5, values="mask"), 1)],
        "aten.where.self": [(t(*deep, values="mask"), t(ROWS), t(*deep))],
        "aten.where.ScalarOther": [(t(*deep, values="mask"), t(ROWS), 1.0)],
        "aten.where.ScalarSelf": [(t(*deep, values="mask"), 1.0, t(ROWS))],
        "aten.conv1d.default": [(t(ROWS, 3, 9), t(4, 3, 3)), (t(5, 9), t(4, 5, 3))],
        "aten.conv2d.default": [(t(*images), t(4, 3, 3, 3), t(4)), (t(5, 8, 8), t(4, 5, 3, 3))],
        "aten.conv2d.padding": [(t(*images), t(4, 3, 3, 3), None, [1, 1], "same")],
        "aten.conv3d.default": [(t(ROWS, 2, 4, 4, 4), t(3, 2, 2, 2, 2)), (t(5, 4, 4, 4), t(3, 5, 2, 2, 2))],
        "aten.conv_transpose2d.input": [(t(*images), t(3, 4, 2, 2)), (t(5, 8, 8), t(5, 4, 2, 2))],
        "aten.group_norm.default": [(t(ROWS, 4, 3), 2)],
        "aten.max_pool1d.default": [(t(ROWS, 3, 8), [2])],
        "aten.max_pool2d.default": pools,
        "aten.avg_pool2d.default": pools,
        "aten.adaptive_avg_pool1d.default": [(t(ROWS, 3, 8), [2])],
        "aten.adaptive_avg_pool2d.default": pools,
        "aten.upsample_nearest2d.vec": [(t(*images), [16, 16], None)],
        "aten.upsample_bilinear2d.vec": [(t(*images), [16, 16], False, None)],
        "aten.pixel_shuffle.default": [(t(ROWS, 4, 3, 3), 2), (t(20, 3, 3), 2)],
        "aten.softmax.int": dims,
        "aten.log_softmax.int": dims,
        "aten.cumsum.default": dims,
        "aten.sort.default": [(t(*deep),), *dims],
        "aten.max.dim": [*dims, (t(*deep), 1, True)],
        "aten.min.dim": [*dims, (t(*deep), 1, True)],
        "aten.topk.default": [(t(*deep), 2), (t(*deep), 2, 0), (t(*deep), 2, 1)],
        "aten.split.Tensor": [(t(*deep), 2), (t(*deep), 2, 1), (t(*deep), 3, -1)],
        "aten.split_with_sizes.default": [(t(*deep), [1, 3], 1), (t(*deep), [2, 3], 0)],
        "aten.chunk.default": [(t(*deep), 2), (t(*deep), 2, 1)],
        "aten.unbind.int": [(t(*deep),), (t(*deep), 1), (t(*deep), -1)],
        "aten.cat.default": [([t(*deep), t(*deep)], dim) for dim in (0, 1, -1)],
        "aten.stack.default": [([t(*deep), t(*deep)], dim) for dim in (0, 1, -1)],
        "aten.batch_norm.default": [
            (t(ROWS, 3, 4), t(3), t(3), t(3), t(3).abs(), False, 0.1, 1e-5, False),
            (t(ROWS, 3, 4), t(3), t(3), t(3), t(3).abs(), True, 0.1, 1e-5, False),
        ],
        "aten.layer_norm.default": [(t(*deep), [ROWS]), (t(*deep), [4, ROWS]), (t(ROWS, ROWS), [ROWS, ROWS])],
        "aten.linear.default": [(t(*deep), t(3, ROWS), t(3)), (t(ROWS, ROWS), t(ROWS, ROWS))],
        "mkldnn._linear_pointwise.default": [(t(*deep).float(), t(3, ROWS).float(), t(3).float(), "none", [], "")],
        "mkldnn._convolution_pointwise.default": [
            (t(*images).float(), t(4, 3, 3, 3).float(), None, *[[1, 1]] * 3, 1, "none", [], "")
        ],
        "aten.embedding.default": [(t(7, 4), t(ROWS, 3, values="index"))],
        "aten.matmul.default": [
            (t(ROWS, ROWS), t(ROWS, ROWS)),
            (t(ROWS, 4, ROWS), t(ROWS, 3)),
            (t(ROWS, 4, ROWS), t(ROWS, ROWS, 4)),
        ],
        "aten.bmm.default": [(t(ROWS, ROWS, ROWS), t(ROWS, ROWS, ROWS))],
        "aten.scaled_dot_product_attention.default": [
            (t(ROWS, ROWS, ROWS, 4), t(ROWS, ROWS, ROWS, 4), t(ROWS, ROWS, ROWS, 4)),
            (t(ROWS, 2, 3, 4), t(ROWS, 2, 3, 4), t(ROWS, 2, 3, 4), None, 0.0, True),
            (t(ROWS, 2, 3, 4), t(ROWS, 2, 3, 4), t(ROWS, 2, 3, 4), t(3, 3)),
            (t(ROWS, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
        ],
        "aten.flip.default": reduced[:3],
        "aten.transpose.int": [(t(*deep), 0, 1), (t(*deep), -1, 0), (t(*deep), 1, 2)],
        "aten.permute.default": [(t(*deep), [2, 0, 1]), (t(*deep), [0, -1, 1])],
        "aten.slice.Tensor": [(t(*deep),), (t(*deep), 1, 1, 3), (t(*deep), 0, 1, 3), (t(*deep), -1, -1)],
        "aten.select.int": [(t(*deep), dim, 1) for dim in (0, 1, -1)],
        "aten.unsqueeze.default": dims,
        "aten.squeeze.dim": [(t(ROWS, 1, ROWS), dim) for dim in (0, 1, -1)],
        "aten.flatten.using_ints": [(t(ROWS, 2, 3),), (t(ROWS, 2, 3), 1), (t(ROWS, 2, ROWS), 0, 1)],
        "aten.expand.default": [(t(ROWS, 1), [ROWS, 4]), (t(ROWS, 1), [-1, 4]), (t(5, 4), [5, 5, 4])],
        "aten.argmax.default": [(t(*deep),), *dims, (t(*deep), 1, True)],
        "aten.any.dim": [(t(*deep, values="mask"), dim) for dim in (0, 1, -1)],
        "aten.all.dim": [(t(*deep, values="mask"), dim) for dim in (0, 1, -1)],
    }
    cases |= dict.fromkeys(("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"), shapes)
    reducing = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
    return cases | dict.fromkeys(reducing, reduced)


def node_of(target: Any, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Build a node that calls the operator, and the nodes of its tensors in order."""
    graph, tensors = torch.fx.Graph(), []

    def placed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"x{len(tensors)}")
            node.meta["val"] = value
            tensors.append(node)
            return node
        if isinstance(value, list) and any(isinstance(one, torch.Tensor) for one in value):
            return [placed(one) for one in value]
        return value

    node = graph.call_function(target, tuple(placed(one) for one in args))
    node.meta["val"] = target(*args)
    return node, tensors


def called(node: Any, values: dict[Any, Any], dim: int, num_rows: int) -> list[Any]:
    """Run the operator on these values of its tensors."""

    def filled(one: Any) -> Any:
        if isinstance(one, torch.fx.Node):
            return values[one]
        return [filled(item) for item in one] if isinstance(one, list) else one

    args = resize_args(node, tuple(filled(one) for one in node.args), dim, num_rows)
    result = node.target(*args)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def test_every_rule_has_a_sample() -> None:
    assert samples().keys() == {str(target) for target in batch_rules._RULES}


@pytest.mark.parametrize("target", list(batch_rules._RULES), ids=str)
def test_what_a_rule_allows_gives_the_rows_of_the_whole(target: Any) -> None:
    """Whichever of the tensors are cut, along whichever dimension: what is allowed is right."""
    torch.manual_seed(0)
    num_allowed = 0
    for args in samples()[str(target)]:
        node, tensors = node_of(target, args)
        shapes = [one.meta["val"].shape for one in tensors]
        options = [[None, *(dim for dim, size in enumerate(shape) if size == ROWS)] for shape in shapes]
        for dims in itertools.product(*options):
            cut = {one: dim for one, dim in zip(tensors, dims, strict=True) if dim is not None}
            result = find_cut_dim(node, cut) if cut else None
            if result is None:
                continue
            num_allowed += 1
            parts = []
            for first, last in BORDERS:
                values = {one: one.meta["val"] for one in tensors}
                values |= {one: values[one].narrow(dim, first, last - first) for one, dim in cut.items()}
                parts.append(called(node, values, result, last - first))
            whole = node.meta["val"]
            whole = list(whole) if isinstance(whole, (tuple, list)) else [whole]
            for place, expected in enumerate(whole):
                joined = torch.cat([part[place] for part in parts], result)
                exact = {"rtol": 1e-9, "atol": 1e-12} if expected.dtype != torch.float32 else {}
                torch.testing.assert_close(joined, expected, equal_nan=True, **exact)
    assert num_allowed > 0


def test_what_mixes_rows_or_draws_is_not_allowed() -> None:
    images, weights = t(ROWS, 3, 4), [t(3), t(3), t(3), t(3).abs()]
    cases = [
        (aten.batch_norm.default, (images, *weights, True, 0.1, 1e-5, False)),
        (aten.dropout.default, (images, 0.5, True)),
        (aten.softmax.int, (images, 0)),
        (aten.flip.default, (images, [0])),
        (aten.cumsum.default, (images, 0)),
        (aten.conv2d.default, (t(5, 8, 8), t(4, 5, 3, 3))),
        # Only one of the tensors is cut.
        (aten.add.Tensor, (t(ROWS, 3), t(ROWS, 3))),
        (aten.relu_.default, (images,)),
    ]
    for target, args in cases:
        node, tensors = node_of(target, args)
        assert find_cut_dim(node, {tensors[0]: 0}) is None, target


@pytest.mark.parametrize(
    ("target", "shape"), [(aten.linear.default, (ROWS, ROWS)), (aten.conv1d.default, (ROWS, ROWS, ROWS))]
)
def test_a_batch_that_is_also_the_weight_is_not_cut(target: Any, shape: tuple[int, ...]) -> None:
    node, [x, _] = node_of(target, (t(*shape), t(*shape)))
    assert find_cut_dim(node, {x: 0}) == 0
    node.args = (x, x)
    assert find_cut_dim(node, {x: 0}) is None
