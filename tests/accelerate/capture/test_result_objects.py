"""Results of types that torch does not know are built again around other tensors."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.accelerate.capture.result_objects import ResultTemplate, UnknownResultError


class Layer:
    def __init__(self, key: Any) -> None:
        self.key, self.is_ready, self.dtype = key, True, torch.float32


class Cache:
    def __init__(self, *keys: Any) -> None:
        self.layers, self.names = [Layer(key) for key in keys], {"first": keys[0]}


def test_objects_are_built_again_with_the_given_tensors() -> None:
    one, two = torch.zeros(2), torch.ones(3)
    template = ResultTemplate({"rows": one, "cache": Cache(one, two), "count": 3, "none": None})
    assert len(template.take_tensors()) == 4
    given = [torch.full((1,), float(number)) for number in range(4)]
    made = template.build(given)
    assert (type(made["cache"]), made["count"], made["none"]) == (Cache, 3, None)
    found = [made["rows"], *(layer.key for layer in made["cache"].layers), made["cache"].names["first"]]
    assert sorted(float(each) for each in found) == [0.0, 1.0, 2.0, 3.0]
    assert made["cache"].layers[0].is_ready


def test_each_build_gives_new_objects_and_keeps_shared_ones_shared() -> None:
    cache = Cache(torch.zeros(1))
    template = ResultTemplate([cache, {"again": cache}])
    tensors = template.take_tensors()
    one, two = template.build(tensors), template.build(tensors)
    assert one[0] is one[1]["again"]
    assert one[0] is not two[0]
    assert one[0].layers is not two[0].layers


def test_the_template_keeps_no_tensor_alive() -> None:
    template = ResultTemplate((Cache(torch.zeros(1)), torch.ones(1)))
    template.take_tensors()
    assert not template.tensors


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = torch.zeros(1)


class Circular:
    def __init__(self) -> None:
        self.value, self.me = torch.zeros(1), self


@pytest.mark.parametrize(
    ("result", "reason"), [(Slotted(), "not built from its attributes"), (Circular(), "refers to itself")]
)
def test_objects_that_cannot_be_built_are_refused(result: Any, reason: str) -> None:
    with pytest.raises(UnknownResultError, match=reason):
        ResultTemplate(result)
