"""A convolution as benchdnn's problem language writes it: parsed, completed, counted.

The rules are those of oneDNN's tests/benchdnn/doc/driver_conv.md and knobs_desc.md. Measured side: standard
library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import List, Mapping, Optional, Tuple

from corewise.workloads.primitives.descriptor import Descriptor, ProblemError, read_descriptor

AXES = "dhw"
ENTRIES = (
    *("g", "mb"),
    *(f"{role}{axis}" for role in "io" for axis in ("c", *AXES)),
    *(f"{role}{axis}" for role in "kspd" for axis in AXES),
)
DEFAULT_MB = 2


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One spatial dimension."""

    source: int
    destination: int
    kernel: int
    stride: int = 1
    padding: int = 0  # before the first element
    dilation: int = 0  # as benchdnn counts: 0 is dense

    @property
    def reach(self) -> int:
        """The elements from a kernel's first tap to its last."""
        return (self.kernel - 1) * (self.dilation + 1) + 1

    @property
    def pads_evenly(self) -> bool:
        """True when the same padding on both sides gives this destination."""
        return self.destination == even_destination(self)

    @property
    def padding_after(self) -> int:
        """What must be added behind the last element."""
        needed = (self.destination - 1) * self.stride + self.reach - self.source - self.padding
        return self.padding if self.pads_evenly else max(0, needed)

    def source_index(self, destination: int, tap: int) -> int:
        """Where in the source a tap reads for an element of the destination; may lie in the padding."""
        return destination * self.stride - self.padding + tap * (self.dilation + 1)

    @property
    def num_products(self) -> int:
        """Pairs of a destination and a tap that meet the source and not its padding."""
        return self._num_reading_up_to(self.source - 1) - self._num_reading_up_to(-1)

    def _num_reading_up_to(self, index: int) -> int:
        """Pairs of a destination and a tap that read no further than an element of the source."""
        step, last = self.dilation + 1, index + self.padding  # destination · stride + tap · step ≤ last
        num_any = min(self.kernel, max(0, last // step + 1))  # taps for which some destination does
        num_all = min(num_any, max(0, (last - (self.destination - 1) * self.stride) // step + 1))
        between = num_any - num_all
        nearest = last - (num_any - 1) * step  # what is left over by the last of these taps
        return num_all * self.destination + between + _floor_sum(between, self.stride, step, nearest)

    def destinations_of(self, tap: int) -> range:
        """The destinations for which a tap meets the source."""
        offset = tap * (self.dilation + 1) - self.padding
        first = max(0, -(offset // self.stride))
        last = min(self.destination - 1, (self.source - 1 - offset) // self.stride)
        return range(first, max(first, last + 1))


@dataclasses.dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution with every size known."""

    mb: int
    ic: int
    oc: int
    dimensions: Tuple[Dimension, ...]  # 1 to 3: depth, height, width
    g: int = 1
    name: str = ""

    @property
    def source_shape(self) -> Tuple[int, ...]:
        return (self.mb, self.ic, *(d.source for d in self.dimensions))

    @property
    def weights_shape(self) -> Tuple[int, ...]:
        return (self.oc, self.ic // self.g, *(d.kernel for d in self.dimensions))

    @property
    def destination_shape(self) -> Tuple[int, ...]:
        return (self.mb, self.oc, *(d.destination for d in self.dimensions))

    @property
    def flops(self) -> float:
        """Two for each product that meets the source, as benchdnn counts; the same in every direction."""
        taps = math.prod(d.num_products for d in self.dimensions)
        return 2.0 * self.mb * self.oc * (self.ic // self.g) * taps

    def with_mb(self, mb: int) -> ConvolutionProblem:
        """The same problem for another minibatch; 0: as it is."""
        return dataclasses.replace(self, mb=mb) if mb else self

    def __str__(self) -> str:
        """The canonical form: every entry, in benchdnn's order."""
        axes, dims = AXES[-len(self.dimensions) :], self.dimensions

        def entries(role: str, values: List[int]) -> str:
            return "".join(f"{role}{axis}{value}" for axis, value in zip(axes, values))

        parts = [
            f"g{self.g}mb{self.mb}",
            f"ic{self.ic}" + entries("i", [d.source for d in dims]),
            f"oc{self.oc}" + entries("o", [d.destination for d in dims]),
            entries("k", [d.kernel for d in dims]),
            entries("s", [d.stride for d in dims]),
            # Padding that is larger behind than before is told by leaving it to be deduced.
            "".join(f"p{axis}{d.padding}" for axis, d in zip(axes, dims) if d.pads_evenly),
            entries("d", [d.dilation for d in dims]),
            f'n"{self.name}"' if self.name else "",
        ]
        return "_".join(part for part in parts if part)


def parse_convolution(text: str) -> ConvolutionProblem:
    """The problem a string describes, what it leaves out deduced; raises ProblemError.

    Input, kernel and channels must be given. What is missing of a lower dimension is copied from the higher
    (ih to iw), a missing output is computed, and padding is what makes the output fit, or 0.
    """
    said = read_descriptor(text, ENTRIES, "convolution")
    mb, ic, oc, g = (_at_least_one(said, name, default) for name, default in _COUNTS)
    for name, channels in (("ic", ic), ("oc", oc)):
        if channels % g:
            raise said.mistake(name, f"{name}{channels} is no multiple of g{g}")
    return ConvolutionProblem(mb, ic, oc, _dimensions(said), g, said.name)


_COUNTS: Tuple[Tuple[str, Optional[int]], ...] = (("mb", DEFAULT_MB), ("ic", None), ("oc", None), ("g", 1))


def even_destination(d: Dimension) -> int:
    """The elements that come out when both sides are padded alike."""
    return (d.source - d.reach + 2 * d.padding) // d.stride + 1


def _floor_sum(num: int, divisor: int, slope: int, start: int) -> int:
    """The sum of (slope · i + start) // divisor for i below num, in as few steps as Euclid's algorithm.

    Whole parts are summed at once; for the rest, points below a line are counted along its other axis.
    """
    total = 0
    while num > 0:
        whole, slope = divmod(slope, divisor)
        own, start = divmod(start, divisor)
        total += whole * (num * (num - 1) // 2) + own * num
        highest = slope * num + start
        num, start = divmod(highest, divisor)
        slope, divisor = divisor, slope
        if not divisor:
            break
    return total


def _dimensions(said: Descriptor) -> Tuple[Dimension, ...]:
    given = [axis for axis in AXES if _is_given(said.values, axis)]
    if not given:
        raise said.mistake("", "the problem has no spatial dimension; give at least ih and kh")
    if given == ["d", "h"] or given == ["d", "w"]:
        raise said.mistake(f"k{given[1]}", "a problem with depth gives both h and w, or neither")
    made = [_dimension(said, axis) for axis in given]
    num_wanted = len(AXES) - AXES.index(given[0])
    return tuple(made) if len(made) == num_wanted else tuple(made[:1] * num_wanted)


def _is_given(values: Mapping[str, int], axis: str) -> bool:
    """As benchdnn asks: an entry that says only its default does not make a dimension."""
    defaults = {"s": 1}
    return any(values.get(role + axis, 0) not in (0, defaults.get(role, 0)) for role in "ikodsp")


def _dimension(said: Descriptor, axis: str) -> Dimension:
    source = _at_least_one(said, f"i{axis}", None)
    kernel = _at_least_one(said, f"k{axis}", None)
    stride = _at_least_one(said, f"s{axis}", 1)
    padding = said.values.get(f"p{axis}")
    destination = said.values.get(f"o{axis}", 0)
    made = Dimension(source, destination, kernel, stride, padding or 0, said.values.get(f"d{axis}", 0))
    if not destination:
        return _with_destination(said, axis, made)
    if padding is None:
        return _with_padding(said, axis, made)
    if not made.pads_evenly:
        raise said.mistake(
            f"o{axis}",
            f"o{axis}{destination} does not fit i{axis}{source}: a kernel of {_reach_words(made)}, stride "
            f"{stride} and padding {padding} on both sides give o{axis}{even_destination(made)}; "
            f"leave p{axis} out to have the padding computed",
        )
    return made


def _with_destination(said: Descriptor, axis: str, made: Dimension) -> Dimension:
    destination = even_destination(made)
    if destination < 1:
        raise said.mistake(
            f"k{axis}",
            f"a kernel of {_reach_words(made)} does not fit i{axis}{made.source} with padding {made.padding}",
        )
    return dataclasses.replace(made, destination=destination)


def _with_padding(said: Descriptor, axis: str, made: Dimension) -> Dimension:
    """Padding as benchdnn deduces it: half of what is missing before, the rest behind."""
    missing = (made.destination - 1) * made.stride + made.reach - made.source
    if missing <= -made.stride:  # whole steps of the source would be left over
        raise said.mistake(
            f"o{axis}",
            f"o{axis}{made.destination} does not fit i{axis}{made.source}: without padding it is "
            f"o{axis}{even_destination(made)}",
        )
    return dataclasses.replace(made, padding=max(0, missing) // 2)


def _reach_words(made: Dimension) -> str:
    return str(made.kernel) if made.reach == made.kernel else f"{made.kernel} dilated to {made.reach}"


def _at_least_one(said: Descriptor, name: str, default: Optional[int]) -> int:
    value = said.values.get(name, default)
    if value is None:
        raise said.mistake(name, f"{name} is missing")
    if value < 1:
        raise said.mistake(name, f"{name} must be at least 1, not {value}")
    return value


__all__ = ["ConvolutionProblem", "Dimension", "ProblemError", "parse_convolution"]
