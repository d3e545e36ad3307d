"""Knobs of a workload on a GPU, from views of machines that have one."""

from collections.abc import Mapping
from typing import Any

import pytest

from corewise.spec.axes import AXES
from corewise.spec.expressions import Expression
from corewise.spec.feasibility import Circumstances, MachineView, reasons_against
from corewise.tuner.knobs import OF_THE_CPU, Asked, Offer, hand_setting, knobs_for
from corewise.workloads.base import Traits

TWO_NODES = MachineView(32, 64, num_numa_nodes=2, has_cuda=True, num_gpus=1, cores_near_gpu=16)
ONE_NODE = MachineView(16, 16, has_cuda=True, num_gpus=1, cores_near_gpu=16)
IMAGES = Traits(takes_images=True, has_batch_norm=True, has_dropout=False)


def offer(mode: str = "infer", machine: MachineView = TWO_NODES, **more: Any) -> Offer:
    defaults = {n: a.default for n, a in AXES.items() if not isinstance(a.default, Expression)}

    def reason_against(params: Mapping[str, Any]) -> str:
        point = {**defaults, "workload": "own", "mode": mode, "runtime": "torch", **params}
        return "; ".join(reasons_against(point, Circumstances(machine)))

    fixed = {"device": "cuda", **more.get("fixed", {})}
    asked = Asked(mode, "torch", IMAGES, fixed, 64, more.get("allow", ()), machine)
    return knobs_for(asked, reason_against)


def choices(found: Offer, knob: str) -> list[Mapping[str, Any]]:
    place = found.space.index(knob)
    return [] if place is None else list(found.space.knobs[place].choices)


def reasons(found: Offer, word: str) -> list[str]:
    return [each.reason for each in found.left_out if word in each.what]


def test_knobs_of_the_cpu_are_left_out_and_listed() -> None:
    found = offer(allow=("lower-precision",))
    assert not {knob.name for knob in found.space.knobs} & set(OF_THE_CPU)
    assert reasons(found, "shape") == ["a knob of the CPU; the work is done on the GPU"]
    assert found.space.params(found.space.default)["processes"] == 1


def test_cores_near_the_gpu_are_a_choice_where_others_are_farther() -> None:
    assert {"bind": "rank", "placement": "gpu", "threads": 16} in choices(offer(), "bind")
    assert choices(offer(machine=ONE_NODE), "bind") == [{"bind": "none"}, {"bind": "rank"}]


def test_memory_is_pinned_only_where_batches_come_from_the_host() -> None:
    assert choices(offer(), "pinned_memory") == []
    assert "synthetic data lie on the GPU already" in reasons(offer(), "pinned_memory")[0]
    assert {"pinned_memory": True} in choices(offer(fixed={"data": "/images"}), "pinned_memory")


def test_layout_and_compilation_are_tried_and_precision_is_asked_for() -> None:
    found = offer()
    assert choices(found, "memory_format") == [
        {"memory_format": "contiguous"},
        {"memory_format": "channels_last"},
    ]
    assert {"execution": "compile"} in choices(found, "execution")
    assert choices(found, "precision") == []
    allowed = choices(offer(allow=("lower-precision",)), "precision")
    assert allowed[1:] == [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"float32_precision": "tf32"}]


def test_whole_numbers_are_tried_on_the_cpu_alone_and_never_trained() -> None:
    on_cpu = {"fixed": {"device": "cpu"}, "allow": ("lower-precision",)}
    assert {"dtype": "int8"} in choices(offer(**on_cpu), "precision")
    assert {"dtype": "int8"} not in choices(offer("train", **on_cpu), "precision")
    assert any("cannot be trained" in reason for reason in reasons(offer("train", **on_cpu), "int8"))


@pytest.mark.parametrize("machine", [TWO_NODES, ONE_NODE])
def test_the_hand_setting_exists_on_a_gpu(machine: MachineView) -> None:
    space = offer(machine=machine).space
    params = space.params(hand_setting(space))
    assert (params["bind"], params["memory_format"]) == ("rank", "channels_last")
    assert "placement" not in params
