"""What a choice needs of other knobs, where those are fixed."""

from collections.abc import Mapping
from typing import Any

from corewise.spec.feasibility import MachineView
from corewise.tuner.knobs import Asked, Offer, knobs_for
from corewise.workloads.base import Traits

IMAGES = Traits(takes_images=True, has_batch_norm=False, has_dropout=False, can_be_quickened=True)
LAYOUT = "images lie as channels_last"


def offer(**fixed: Any) -> Offer:
    def reason_against(params: Mapping[str, Any]) -> str:
        is_off = params.get("execution") == "quickened" and params.get("memory_format") != "channels_last"
        return LAYOUT if is_off else ""

    asked = Asked("train", "torch", IMAGES, fixed, 64, (), MachineView(16, 16))
    return knobs_for(asked, reason_against)


def executions(found: Offer) -> list[Any]:
    [knob] = [each for each in found.space.knobs if each.name == "execution"]
    return [choice["execution"] for choice in knob.choices]


def test_a_choice_that_needs_another_layout_than_the_default_is_offered() -> None:
    assert "quickened" in executions(offer())


def test_a_choice_that_needs_another_layout_than_the_fixed_one_is_left_out_with_its_reason() -> None:
    found = offer(memory_format="contiguous")
    assert "quickened" not in executions(found)
    assert LAYOUT in [each.reason for each in found.left_out if "quickened" in each.what]
