"""A two-tower recommender: one network for the features of a user, one for those of an item.

As in Yi et al., "Sampling-bias-corrected neural modeling for large corpus item recommendations" (2019), the
towers share only the length of their outputs, whose scalar product is the score. Users have more fields and
a wider tower than items, so the towers take different times. In training, the score is the log-odds that the
user likes the item.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Mapping, Tuple

from corewise.measured.workloads.models.branch_layers import Branches, Embedding, Part
from corewise.measured.workloads.models.layers import Flatten, Layer, Linear, ReLU, Sequence, Shape
from corewise.measured.workloads.models.sequence_model import SizedModel, Sizes


def _build_tower(sizes: Sizes, side: str, first: int) -> Sequence:
    num_fields, width = sizes[f"{side}_fields"], sizes[f"{side}_width"]
    layers: List[Layer] = [
        Part(first, num_fields), Embedding(sizes[f"{side}_ids"], sizes["embedding"]), Flatten(),
    ]  # fmt: skip
    in_features = num_fields * sizes["embedding"]
    for _ in range(sizes["layers"]):
        layers += [Linear(in_features, width, keeps_scale=True), ReLU()]
        in_features = width
    return Sequence((*layers, Linear(in_features, sizes["output"])))


def _build_two_tower(sizes: Sizes) -> Branches:
    towers = (_build_tower(sizes, "user", 0), _build_tower(sizes, "item", sizes["user_fields"]))
    return Branches(towers, join="dot")


@dataclasses.dataclass(frozen=True)
class TwoTower(SizedModel):
    """A sample holds the indices of a user's fields, then those of an item; the output is one score."""

    name: str
    summary: str
    defaults: Mapping[str, Any]
    layers_for: Callable[[Sizes], Layer] = _build_two_tower
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = True
    takes_images: bool = False

    def compute_input_shape(self, args: Mapping[str, Any]) -> Shape:
        return self.require_fit((len(self.list_id_limits(args)),), args)

    def list_id_limits(self, args: Mapping[str, Any]) -> Tuple[int, ...]:
        sizes = self.read_sizes(args)
        users, items = ((sizes[f"{who}_ids"],) * sizes[f"{who}_fields"] for who in ("user", "item"))
        return (*users, *items)

    def read_num_classes(self, args: Mapping[str, Any]) -> int:
        """Return 2: the user likes the item or not."""
        return 2


TWO_TOWER = TwoTower(
    name="two_tower",
    summary="two-tower recommender: embeddings and linear layers of two widths, joined by a product",
    defaults={
        "user_ids": 100_000,
        "item_ids": 50_000,
        "user_fields": 8,
        "item_fields": 4,
        "embedding": 32,
        "user_width": 1024,
        "item_width": 512,
        "layers": 3,
        "output": 128,
    },
)
