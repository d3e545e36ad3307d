"""Knobs of workloads on a GPU."""

from collections.abc import Mapping
from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import FeasibilityContext, MachineView, explain_infeasibility
from corewise.study.syntax.expressions import Expression
from corewise.tuning.search.knobs import CPU_KNOBS, KnobRequest, Offer, build_hand_setting, select_knobs

TWO_NODES = MachineView(32, 64, num_numa_nodes=2, has_cuda=True, num_gpus=1, cores_near_gpu=16)
ONE_NODE = MachineView(16, 16, has_cuda=True, num_gpus=1, cores_near_gpu=16)
IMAGES = Traits(takes_images=True, has_batch_norm=True, has_dropout=False)


def build_offer(mode: str = "infer", machine: MachineView = TWO_NODES, **more: Any) -> Offer:
    defaults = {n: a.default for n, a in AXES.items() if not isinstance(a.default, Expression)}

    def explain_infeasible(params: Mapping[str, Any]) -> str:
        point = {**defaults, "workload": "own", "mode": mode, "runtime": "torch", **params}
        return "; ".join(explain_infeasibility(TrialParameters.from_mapping(point), FeasibilityContext(machine)))

    fixed = {"device": "cuda", **more.get("fixed", {})}
    request = KnobRequest(mode, "torch", IMAGES, fixed, 64, more.get("allow", ()), machine)
    return select_knobs(request, explain_infeasible)


def list_choices(offer: Offer, knob: str) -> list[Mapping[str, Any]]:
    place = offer.space.find_knob(knob)
    return [] if place is None else list(offer.space.knobs[place].choices)


def list_reasons(offer: Offer, name: str) -> list[str]:
    return [each.reason for each in offer.left_out if name in each.description]


def test_knobs_of_the_cpu_are_left_out_and_listed() -> None:
    offer = build_offer(allow=("lower-precision",))
    assert not {knob.name for knob in offer.space.knobs} & set(CPU_KNOBS)
    assert list_reasons(offer, "shape") == ["affects the CPU only; the work runs on the GPU"]
    assert offer.space.build_params(offer.space.default)["processes"] == 1


def test_cores_near_the_gpu_are_a_choice_if_others_are_farther_away() -> None:
    assert {"bind": "rank", "placement": "gpu", "threads": 16} in list_choices(build_offer(), "bind")
    assert list_choices(build_offer(machine=ONE_NODE), "bind") == [{"bind": "none"}, {"bind": "rank"}]


def test_memory_is_pinned_only_if_batches_come_from_the_host() -> None:
    assert list_choices(build_offer(), "pinned_memory") == []
    assert "synthetic data are already on the GPU" in list_reasons(build_offer(), "pinned_memory")[0]
    assert {"pinned_memory": True} in list_choices(build_offer(fixed={"data": "/images"}), "pinned_memory")


def test_layout_and_compilation_are_tried_and_precision_needs_permission() -> None:
    offer = build_offer()
    assert list_choices(offer, "memory_format") == [{"memory_format": "contiguous"}, {"memory_format": "channels_last"}]
    assert {"execution": "compile"} in list_choices(offer, "execution")
    assert list_choices(offer, "precision") == []
    allowed = list_choices(build_offer(allow=("lower-precision",)), "precision")
    assert allowed[1:] == [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"float32_precision": "tf32"}]


def test_int8_is_tried_on_the_cpu_only_and_never_in_training() -> None:
    on_cpu = {"fixed": {"device": "cpu"}, "allow": ("lower-precision",)}
    assert {"dtype": "int8"} in list_choices(build_offer(**on_cpu), "precision")
    assert {"dtype": "int8"} not in list_choices(build_offer("train", **on_cpu), "precision")
    assert any("cannot be trained" in reason for reason in list_reasons(build_offer("train", **on_cpu), "int8"))


@pytest.mark.parametrize("machine", [TWO_NODES, ONE_NODE])
def test_the_hand_setting_exists_on_a_gpu(machine: MachineView) -> None:
    space = build_offer(machine=machine).space
    params = space.build_params(build_hand_setting(space))
    assert (params["bind"], params["memory_format"]) == ("rank", "channels_last")
    assert "placement" not in params
