"""A model taken apart into its primitives: the nouns, their JSON, and where the time goes. No framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

SCHEMA = 1
CATEGORIES = (
    "convolution",
    "matrix product",
    "recurrent layer",
    "attention",
    "normalisation",
    "activation",
    "pooling",
    "reorder or copy",
    "optimiser",
    "other arithmetic",
    "view",
)
BETWEEN = "between operators"  # the framework itself: autograd, modules, Python, memory that is freed


@dataclasses.dataclass(frozen=True)
class Primitive:
    """An operator with its shapes, layout, number format and parameters; times are of a step's calls."""

    operator: str  # as the framework calls it, "convolution"
    category: str
    phase: str  # forward | backward | update
    shapes: str  # of its tensors, "16x64x56x56, 64x64x3x3"
    layout: str  # contiguous | channels_last | strided
    dtype: str
    parameters: str  # "stride 2, padding 1"
    problem: str  # a convolution as benchdnn writes it, else ""
    num_calls: float  # in a step; not whole where steps differ
    in_model_s: float
    alone_s: Optional[float]  # median; None: it does not run alone
    alone_best_s: Optional[float]
    flops: float  # of one call
    traffic_bytes: float  # of one call: every tensor read or written once
    cached_share: float = 0.0  # of the bytes it reads, those that lay in the cache in the model, and alone
    new_pages: float = 0.0  # of memory that a call met in the model
    new_pages_s: float = 0.0  # what they cost, of the time alone
    check_error: Optional[float] = None  # against the model's own call; None: not compared
    why_not_alone: str = ""

    @property
    def counted_s(self) -> float:
        """The time alone; in the model, where it does not run alone."""
        return self.in_model_s if self.alone_s is None else self.alone_s

    @property
    def model_over_alone(self) -> Optional[float]:
        """Above 1: what the model's surroundings cost."""
        return self.in_model_s / self.alone_s if self.alone_s else None

    @property
    def gflop_per_s(self) -> float:
        """In the model; 0 where nothing is multiplied."""
        return self.flops * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0

    @property
    def gbyte_per_s(self) -> float:
        """In the model."""
        return self.traffic_bytes * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """A step and the primitives it is made of."""

    step_s: float  # median of steps that nobody watched
    watched_step_s: float  # median of steps with every operator timed
    primitives: Tuple[Primitive, ...]  # the costliest in the model first
    steps_s: Tuple[float, ...]
    sums_over_steps: Tuple[float, ...]  # sum of the primitives alone over the step, of each round
    call_cost_s: float  # of the watching, taken off every call
    cache_bytes: int  # of the last level
    num_checked: int
    check_error: float  # the largest of those compared
    num_threads: int
    device: str
    minor_faults_per_step: float = 0.0  # pages that were new to the process
    notes: Tuple[str, ...] = ()

    @property
    def in_model_s(self) -> float:
        return sum(each.in_model_s for each in self.primitives)

    @property
    def alone_s(self) -> float:
        return sum(each.counted_s for each in self.primitives)

    @property
    def new_pages_s(self) -> float:
        """What memory costs that is new to the process, in all primitives."""
        return sum(each.new_pages_s for each in self.primitives)

    @property
    def sum_over_step(self) -> float:
        """The sum of the primitives alone over the step."""
        return self.alone_s / self.step_s


@dataclasses.dataclass(frozen=True)
class Share:
    """One kind of work in the step; `alone_s` is None for what lies between operators."""

    category: str
    num_calls: float
    in_model_s: float
    alone_s: Optional[float]
    of_step: float


def shares(found: Breakdown) -> List[Share]:
    """Where the time goes, most of it first; what no operator accounts for comes last.

    Of the step, or of what the operators take together where watched steps happened to be slower.
    """
    whole_s = max(found.step_s, found.in_model_s)
    rolled: List[Share] = []
    for category in CATEGORIES:
        members = [each for each in found.primitives if each.category == category]
        if members:
            in_model_s = sum(each.in_model_s for each in members)
            rolled.append(
                Share(
                    category,
                    sum(each.num_calls for each in members),
                    in_model_s,
                    sum(each.counted_s for each in members),
                    in_model_s / whole_s,
                )
            )
    rolled.sort(key=lambda each: -each.in_model_s)
    left_s = found.step_s - found.in_model_s
    return [*rolled, Share(BETWEEN, 0.0, left_s, None, max(0.0, left_s) / whole_s)]


def to_json(found: Breakdown) -> Dict[str, Any]:
    """The breakdown as plain values."""
    return {"schema": SCHEMA, **dataclasses.asdict(found)}


def from_json(data: Mapping[str, Any]) -> Breakdown:
    """The breakdown of plain values; raises ValueError for another schema."""
    if data.get("schema") != SCHEMA:
        raise ValueError(f"a breakdown of schema {data.get('schema')!r}; this Corewise reads {SCHEMA}")
    values = {f.name: data[f.name] for f in dataclasses.fields(Breakdown)}
    values["primitives"] = tuple(Primitive(**each) for each in values["primitives"])
    for name in ("steps_s", "sums_over_steps", "notes"):
        values[name] = tuple(values[name])
    return Breakdown(**values)


def conv_problem(
    *,
    batch: int,
    in_size: Sequence[int],
    out_size: Sequence[int],
    kernel: Sequence[int],
    channels: Tuple[int, int],
    groups: int = 1,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> str:
    """A convolution of images as benchdnn writes it: without `w` where it equals `h`, without defaults."""
    dilated = [each - 1 for each in dilation]
    roles = (("i", in_size), ("o", out_size), ("k", kernel), ("s", stride), ("p", padding), ("d", dilated))
    is_square = all(sizes[0] == sizes[-1] for _, sizes in roles)

    def entries(role: str, sizes: Sequence[int], default: Optional[int] = None) -> str:
        if all(each == default for each in sizes):
            return ""
        return f"{role}h{sizes[0]}" + ("" if is_square else f"{role}w{sizes[-1]}")

    return "".join(
        (
            f"g{groups}" if groups > 1 else "",
            f"mb{batch}ic{channels[0]}",
            entries("i", in_size),
            f"oc{channels[1]}",
            entries("o", out_size),
            entries("k", kernel),
            entries("s", stride, 1),
            entries("p", padding, 0),
            entries("d", dilated, 0),
        )
    )
