"""Results that hold tensors in objects of unknown classes are captured, and built again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.expanded_results import expand_objects, rebuild_objects
from corewise.accelerate.malleable.module_wrapper import Malleable

Make = Callable[..., Malleable]


class Layer:
    def __init__(self, keys: torch.Tensor, number: int) -> None:
        self.keys, self.number, self.dtype, self.sizes = keys, number, keys.dtype, [1, 2]


class Cache:
    """As models return it: objects within a list within an object."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers, self.layer_class, self.empty = layers, Layer, None


class NamedList(list[Any]):
    """More than its attributes."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        left, right = self.left(x), self.right(x)
        return {"y": left + right, "cache": Cache([Layer(left, 0), Layer(right, 1)]), "plain": 3}


def test_objects_become_trees_of_their_tensors_and_back() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    result = {"y": one, "cache": Cache([Layer(one, 0), Layer(two, 1)])}
    tree = expand_objects(result)
    assert [id(leaf) for leaf in pytree.tree_leaves(tree)] == [id(one), id(one), id(two)]
    built = rebuild_objects(tree)
    assert type(built["cache"]) is Cache
    assert built["cache"] is not result["cache"]
    assert [type(layer) for layer in built["cache"].layers] == [Layer, Layer]
    assert vars(built["cache"].layers[1]) == vars(result["cache"].layers[1])
    assert built["cache"].layers[0].sizes is not result["cache"].layers[0].sizes
    assert list(vars(built["cache"])) == list(vars(result["cache"]))


def test_equal_objects_have_equal_structures_and_others_do_not() -> None:
    def describe(number: int) -> Any:
        return pytree.tree_flatten(expand_objects([Cache([Layer(torch.ones(2), number)])]))[1]

    assert describe(1) == describe(1)
    assert describe(1) != describe(2)


@pytest.mark.parametrize("build", [lambda t: NamedList([t]), lambda t: nn.Linear(1, 1), lambda t: {t}, lambda t: 5])
def test_other_objects_stay_as_they_are(build: Callable[[torch.Tensor], Any]) -> None:
    result = build(torch.ones(1))
    assert expand_objects([result])[0] is result


def test_an_object_that_occurs_twice_is_not_taken_apart_twice() -> None:
    layer = Layer(torch.ones(1), 0)
    leaves = pytree.tree_leaves(expand_objects([layer, layer]))
    assert layer in leaves


def test_a_plan_returns_objects_of_the_same_class_with_the_module_s_tensors(planned: Make) -> None:
    model = Model().eval()
    with torch.no_grad():
        fast = planned(model, torch.randn(8, 16))
        assert fast.timeline() == []
        for _ in range(2):
            x = torch.randn(8, 16)
            got, wanted = fast(x), model(x)
            assert fast.timeline()
            assert type(got["cache"]) is Cache
            assert got["plain"] == 3
            assert got["cache"].layer_class is Layer
            assert [layer.number for layer in got["cache"].layers] == [0, 1]
            torch.testing.assert_close(got["y"], wanted["y"])
            for one, two in zip(got["cache"].layers, wanted["cache"].layers, strict=True):
                torch.testing.assert_close(one.keys, two.keys)
    assert "forward" not in vars(model)
