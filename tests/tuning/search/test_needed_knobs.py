"""Choices that need values of other knobs."""

from collections.abc import Mapping
from typing import Any

from corewise.measured.workloads.base import Traits
from corewise.study.planning.feasibility import MachineView
from corewise.tuning.search.knobs import KnobRequest, Offer, select_knobs

IMAGES = Traits(takes_images=True, has_batch_norm=False, has_dropout=False, has_fast_kernels=True)
LAYOUT = "needs channels_last"


def build_offer(**fixed: Any) -> Offer:
    def explain_infeasible(params: Mapping[str, Any]) -> str:
        is_off = params.get("execution") == "fast-kernels" and params.get("memory_format") != "channels_last"
        return LAYOUT if is_off else ""

    request = KnobRequest("train", "torch", IMAGES, fixed, 64, (), MachineView(16, 16))
    return select_knobs(request, explain_infeasible)


def list_executions(offer: Offer) -> list[Any]:
    [knob] = [each for each in offer.space.knobs if each.name == "execution"]
    return [choice["execution"] for choice in knob.choices]


def test_a_choice_that_needs_another_layout_than_the_default_is_offered() -> None:
    assert "fast-kernels" in list_executions(build_offer())


def test_a_choice_that_needs_another_layout_than_the_fixed_one_is_left_out_with_its_reason() -> None:
    offer = build_offer(memory_format="contiguous")
    assert "fast-kernels" not in list_executions(offer)
    assert LAYOUT in [each.reason for each in offer.left_out if "fast-kernels" in each.description]
