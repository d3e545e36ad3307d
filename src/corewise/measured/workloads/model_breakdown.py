"""The breakdown of a model's step into primitives: data classes, their JSON, and shares of the time.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

SCHEMA = 2
# The operators of a step cannot take longer than the step. More than 5 % is not noise.
DOUBTFUL_OVER = 1.05
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
# The time of the framework itself: autograd, modules, Python and freeing memory.
BETWEEN = "between operators"


@dataclasses.dataclass(frozen=True)
class Primitive:
    """An operator with its shapes, layout, dtype and parameters; times are sums over the calls of a step.

    Attributes:
        operator: The framework's name, for example "convolution".
        phase: forward, backward or update.
        shapes: Shapes of its tensors, for example "16x64x56x56, 64x64x3x3".
        layout: contiguous, channels_last or strided.
        parameters: For example "stride 2, padding 1".
        problem: A convolution in benchdnn's notation, else "".
        num_calls: Calls per step; fractional if steps differ.
        alone_s: Seconds in isolation; None if it does not run alone, or computes other numbers there.
        flops: Flops of one call; 0 for one pass over memory; None if not counted and not judged.
        traffic_bytes: Bytes of one call: every tensor once, and only the selected rows of tables.
        cached_share: Fraction of the bytes read that were in the cache, in the model and alone.
        new_pages: New memory pages that a call touched in the model.
        new_pages_s: Seconds of the isolated time that these pages cost.
        check_error: Error relative to the model's call; None if not compared.
        is_wrong_alone: True if the comparison with the model's call failed.
    """

    operator: str
    category: str
    phase: str
    shapes: str
    layout: str
    dtype: str
    parameters: str
    problem: str
    num_calls: float
    in_model_s: float
    alone_s: Optional[float]
    alone_best_s: Optional[float]
    flops: Optional[float]
    traffic_bytes: float
    cached_share: float = 0.0
    new_pages: float = 0.0
    new_pages_s: float = 0.0
    check_error: Optional[float] = None
    why_not_alone: str = ""
    is_wrong_alone: bool = False

    @property
    def counted_s(self) -> float:
        """The isolated time, or the time in the model if it does not run alone."""
        return self.in_model_s if self.alone_s is None else self.alone_s

    @property
    def model_over_alone(self) -> Optional[float]:
        """The time in the model relative to the isolated time; above 1, the model adds cost."""
        return self.in_model_s / self.alone_s if self.alone_s else None

    @property
    def gflop_per_s(self) -> Optional[float]:
        """The flop rate in the model; 0 without multiplications, None if flops are not counted."""
        if self.flops is None:
            return None
        return self.flops * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0

    @property
    def gbyte_per_s(self) -> float:
        """The bandwidth in the model."""
        return self.traffic_bytes * self.num_calls / self.in_model_s / 1e9 if self.in_model_s > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """A step and its primitives.

    Every time is the median over rounds of the low quartile within a round (`compute_typical`). Disturbances
    only add time, so the low quartile excludes them unless they hit three of four samples; the minimum would
    depend on luck. Rounds differ in clock speed and memory in both directions, so their median counts.

    Attributes:
        step_s: Seconds of a step without instrumentation.
        watched_step_s: Seconds of a step with every operator timed.
        primitives: Sorted by their time in the model, the longest first.
        sums_over_steps: The sum of isolated primitives relative to the step, for each round.
        call_cost_s: Instrumentation cost, subtracted from every call.
        check_error: The largest error of those compared.
        minor_faults_per_step: Pages that were new to the process.
        num_repeated: Rounds that were disturbed, discarded and measured again.
        notes: Disturbances in the rounds that count.
    """

    step_s: float
    watched_step_s: float
    primitives: Tuple[Primitive, ...]
    steps_s: Tuple[float, ...]
    sums_over_steps: Tuple[float, ...]
    call_cost_s: float
    cache_bytes: int
    num_checked: int
    check_error: float
    num_threads: int
    device: str
    minor_faults_per_step: float = 0.0
    num_repeated: int = 0
    notes: Tuple[str, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """True if a round that counts was disturbed."""
        return bool(self.notes)

    @property
    def is_doubtful(self) -> bool:
        """True if the operators together take longer than the step that contains them."""
        return self.in_model_s > DOUBTFUL_OVER * self.step_s

    @property
    def between_s(self) -> Optional[float]:
        """The step without its operators; None if the difference is negative."""
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
        """Seconds that new memory pages cost in all primitives."""
        return sum(each.new_pages_s for each in self.primitives)

    @property
    def sum_over_step(self) -> float:
        """The sum of isolated primitives relative to the step."""
        return self.alone_s / self.step_s


@dataclasses.dataclass(frozen=True)
class Share:
    """One category of work in the step; `alone_s` is None for the time between operators."""

    category: str
    num_calls: float
    in_model_s: float
    alone_s: Optional[float]
    of_step: float


def compute_shares(breakdown: Breakdown) -> List[Share]:
    """Return the shares of the step by category, largest first, then the time outside operators.

    They add up to more than 1 if the operators took longer than the step; `is_doubtful` is true if that is
    more than noise.
    """
    shares_by_category: List[Share] = []
    for category in CATEGORIES:
        members = [each for each in breakdown.primitives if each.category == category]
        if members:
            in_model_s = sum(each.in_model_s for each in members)
            shares_by_category.append(
                Share(
                    category,
                    sum(each.num_calls for each in members),
                    in_model_s,
                    sum(each.counted_s for each in members),
                    in_model_s / breakdown.step_s,
                )
            )
    shares_by_category.sort(key=lambda each: -each.in_model_s)
    left_s = breakdown.between_s or 0.0
    return [*shares_by_category, Share(BETWEEN, 0.0, left_s, None, left_s / breakdown.step_s)]


def compute_low_quartile(values: Sequence[float]) -> float:
    """Return the lower quartile; the minimum of up to four values."""
    return sorted(values)[(len(values) - 1) // 4]


def compute_typical(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median over rounds of the low quartile in each round."""
    return statistics.median(compute_low_quartile(each) for each in rounds if each)


def to_json(breakdown: Breakdown) -> Dict[str, Any]:
    """Convert a breakdown to plain values."""
    return {"schema": SCHEMA, **dataclasses.asdict(breakdown)}


def from_json(data: Mapping[str, Any]) -> Breakdown:
    """Convert plain values to a breakdown; raise ValueError for another schema."""
    if data.get("schema") != SCHEMA:
        raise ValueError(
            f"the breakdown has schema {data.get('schema')!r}, but this version of Corewise reads {SCHEMA}"
        )
    values = {f.name: data[f.name] for f in dataclasses.fields(Breakdown)}
    values["primitives"] = tuple(Primitive(**each) for each in values["primitives"])
    for name in ("steps_s", "sums_over_steps", "notes"):
        values[name] = tuple(values[name])
    return Breakdown(**values)


def format_conv_problem(
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
    """Return a convolution in benchdnn's notation, without `w` if it equals `h` and without defaults."""
    dilated = [each - 1 for each in dilation]
    roles = (("i", in_size), ("o", out_size), ("k", kernel), ("s", stride), ("p", padding), ("d", dilated))
    is_square = all(sizes[0] == sizes[-1] for _, sizes in roles)

    def format_entries(role: str, sizes: Sequence[int], default: Optional[int] = None) -> str:
        if all(each == default for each in sizes):
            return ""
        return f"{role}h{sizes[0]}" + ("" if is_square else f"{role}w{sizes[-1]}")

    return "".join(
        (
            f"g{groups}" if groups > 1 else "",
            f"mb{batch}ic{channels[0]}",
            format_entries("i", in_size),
            f"oc{channels[1]}",
            format_entries("o", out_size),
            format_entries("k", kernel),
            format_entries("s", stride, 1),
            format_entries("p", padding, 0),
            format_entries("d", dilated, 0),
        )
    )
