"""A model taken apart into its primitives: the nouns, their JSON, and where the time goes. No framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

SCHEMA = 2
DOUBTFUL_OVER = 1.05  # operators of a step cannot take longer than the step; beyond noise they do
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
    alone_s: Optional[float]  # None: it does not run alone, or gives other numbers there
    alone_best_s: Optional[float]
    flops: Optional[float]  # of one call; 0: one pass over memory; None: not counted, so not judged
    traffic_bytes: float  # of one call: every tensor read or written once, of tables what is picked
    cached_share: float = 0.0  # of the bytes it reads, those that lay in the cache in the model, and alone
    new_pages: float = 0.0  # of memory that a call met in the model
    new_pages_s: float = 0.0  # what they cost, of the time alone
    check_error: Optional[float] = None  # against the model's own call; None: not compared
    why_not_alone: str = ""
    is_wrong_alone: bool = False  # it was compared with the model's own call and failed

    @property
    def counted_s(self) -> float:
        """The time alone; in the model, where it does not run alone."""
        return self.in_model_s if self.alone_s is None else self.alone_s

    @property
    def model_over_alone(self) -> Optional[float]:
        """Above 1: what the model's surroundings cost."""
        return self.in_model_s / self.alone_s if self.alone_s else None

    @property
    def gflop_per_s(self) -> Optional[float]:
        """In the model; 0 where nothing is multiplied, None where that is not counted."""
        if self.flops is None:
            return None
        return self.flops * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0

    @property
    def gbyte_per_s(self) -> float:
        """In the model."""
        return self.traffic_bytes * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """A step and the primitives it is made of.

    Every time is the median over rounds of the low quartile within a round (`typical`). Disturbances only
    ever add time, so the quartile leaves them out as long as they meet fewer than three samples in four; the
    least time of all would be luck. Rounds differ in clock and in the memory they got, to either side: of
    them the median counts.
    """

    step_s: float  # of steps that nobody watched
    watched_step_s: float  # of steps with every operator timed
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
    num_repeated: int = 0  # rounds that were disturbed, set aside and measured again
    notes: Tuple[str, ...] = ()  # what disturbed the rounds that count

    @property
    def is_disturbed(self) -> bool:
        """True when a round that counts was disturbed."""
        return bool(self.notes)

    @property
    def is_doubtful(self) -> bool:
        """True when the operators together take longer in the model than the step that they are part of."""
        return self.in_model_s > DOUBTFUL_OVER * self.step_s

    @property
    def between_s(self) -> Optional[float]:
        """The step less its operators; None where that is below what can be told."""
        left_s = self.step_s - self.in_model_s
        return left_s if left_s >= 0 else None

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
    """Where the time goes, most of it first, as shares of the step; what no operator accounts for comes last.

    They add up to more than 1 where the operators took longer than the step; `is_doubtful` tells when that
    is more than noise.
    """
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
                    in_model_s / found.step_s,
                )
            )
    rolled.sort(key=lambda each: -each.in_model_s)
    left_s = found.between_s or 0.0
    return [*rolled, Share(BETWEEN, 0.0, left_s, None, left_s / found.step_s)]


def low_quartile(values: Sequence[float]) -> float:
    """The value that a quarter of them do not exceed; the least of up to four."""
    return sorted(values)[(len(values) - 1) // 4]


def typical(rounds: Sequence[Sequence[float]]) -> float:
    """What a quantity measured in rounds counts for: the median over rounds of its low quartile in each."""
    return statistics.median(low_quartile(each) for each in rounds if each)


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
