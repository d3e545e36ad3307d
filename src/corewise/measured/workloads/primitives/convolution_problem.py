"""Convolution problems in benchdnn's notation: parsing, deduced values and work.

The rules are those of oneDNN's tests/benchdnn/doc/driver_conv.md and knobs_desc.md. Measured side: standard
library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import List, Mapping, Optional, Tuple

from corewise.measured.workloads.primitives.problem_notation import Descriptor, ProblemError, parse_descriptor

AXES = "dhw"
ENTRIES = (
    *("g", "mb"),
    *(f"{role}{axis}" for role in "io" for axis in ("c", *AXES)),
    *(f"{role}{axis}" for role in "kspd" for axis in AXES),
)
DEFAULT_MB = 2


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One spatial dimension.

    `padding` counts elements before the first one. `dilation` follows benchdnn: 0 is dense.
    """

    source: int
    destination: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 0

    @property
    def reach(self) -> int:
        """The extent of the dilated kernel."""
        return (self.kernel - 1) * (self.dilation + 1) + 1

    @property
    def pads_evenly(self) -> bool:
        """True if the same padding on both sides gives this destination."""
        return self.destination == compute_even_destination(self)

    @property
    def padding_after(self) -> int:
        """The padding after the last element."""
        needed = (self.destination - 1) * self.stride + self.reach - self.source - self.padding
        return self.padding if self.pads_evenly else max(0, needed)

    def find_source_index(self, destination: int, tap: int) -> int:
        """Return the source index that a tap reads for a destination element; it may be in the padding."""
        return destination * self.stride - self.padding + tap * (self.dilation + 1)

    @property
    def num_products(self) -> int:
        """Pairs of a destination and a tap that read the source and not its padding."""
        return self._count_reads_up_to(self.source - 1) - self._count_reads_up_to(-1)

    def _count_reads_up_to(self, index: int) -> int:
        """Count pairs of a destination and a tap that read up to a source element."""
        # The condition is destination · stride + tap · step ≤ last.
        step, last = self.dilation + 1, index + self.padding
        # Taps with at least one such destination, then taps for which all destinations qualify.
        num_any = min(self.kernel, max(0, last // step + 1))
        num_all = min(num_any, max(0, (last - (self.destination - 1) * self.stride) // step + 1))
        between = num_any - num_all
        nearest = last - (num_any - 1) * step
        return num_all * self.destination + between + _sum_floors(between, self.stride, step, nearest)

    def find_destinations(self, tap: int) -> range:
        """Return the destinations for which a tap reads the source."""
        offset = tap * (self.dilation + 1) - self.padding
        first = max(0, -(offset // self.stride))
        last = min(self.destination - 1, (self.source - 1 - offset) // self.stride)
        return range(first, max(first, last + 1))


@dataclasses.dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution with all sizes known; `dimensions` are 1 to 3 of depth, height and width."""

    mb: int
    ic: int
    oc: int
    dimensions: Tuple[Dimension, ...]
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
        """Two flops per product outside the padding, as benchdnn counts; the same in every direction."""
        taps = math.prod(d.num_products for d in self.dimensions)
        return 2.0 * self.mb * self.oc * (self.ic // self.g) * taps

    def replace_mb(self, mb: int) -> ConvolutionProblem:
        """Return the problem with another minibatch; 0 keeps it."""
        return dataclasses.replace(self, mb=mb) if mb else self

    def __str__(self) -> str:
        """Return the canonical form: every entry, in benchdnn's order."""
        axes, dims = AXES[-len(self.dimensions) :], self.dimensions

        def format_entries(role: str, values: List[int]) -> str:
            return "".join(f"{role}{axis}{value}" for axis, value in zip(axes, values))

        parts = [
            f"g{self.g}mb{self.mb}",
            f"ic{self.ic}" + format_entries("i", [d.source for d in dims]),
            f"oc{self.oc}" + format_entries("o", [d.destination for d in dims]),
            format_entries("k", [d.kernel for d in dims]),
            format_entries("s", [d.stride for d in dims]),
            # Asymmetric padding has no notation: it is left out, so that it is deduced.
            "".join(f"p{axis}{d.padding}" for axis, d in zip(axes, dims) if d.pads_evenly),
            format_entries("d", [d.dilation for d in dims]),
            f'n"{self.name}"' if self.name else "",
        ]
        return "_".join(part for part in parts if part)


def parse_convolution(text: str) -> ConvolutionProblem:
    """Parse a problem and deduce missing values; raise ProblemError if it is invalid.

    Input, kernel and channels are required. Missing values of a lower dimension are copied from the higher
    one (ih to iw), a missing output is computed, and missing padding is chosen to fit the output, or 0.
    """
    descriptor = parse_descriptor(text, ENTRIES, "convolution")
    mb, ic, oc, g = (_read_positive(descriptor, name, default) for name, default in _COUNTS)
    for name, channels in (("ic", ic), ("oc", oc)):
        if channels % g:
            raise descriptor.build_error(name, f"{name}{channels} is not a multiple of g{g}")
    return ConvolutionProblem(mb, ic, oc, _parse_dimensions(descriptor), g, descriptor.name)


_COUNTS: Tuple[Tuple[str, Optional[int]], ...] = (("mb", DEFAULT_MB), ("ic", None), ("oc", None), ("g", 1))


def compute_even_destination(d: Dimension) -> int:
    """Return the output size with the same padding on both sides."""
    return (d.source - d.reach + 2 * d.padding) // d.stride + 1


def _sum_floors(num: int, divisor: int, slope: int, start: int) -> int:
    """Sum (slope · i + start) // divisor for i below num, in as few steps as Euclid's algorithm.

    Integer parts are summed in closed form. The rest counts points below a line along the other axis.
    """
    total = 0
    while num > 0:
        whole, slope = divmod(slope, divisor)
        constant, start = divmod(start, divisor)
        total += whole * (num * (num - 1) // 2) + constant * num
        highest = slope * num + start
        num, start = divmod(highest, divisor)
        slope, divisor = divisor, slope
        if not divisor:
            break
    return total


def _parse_dimensions(descriptor: Descriptor) -> Tuple[Dimension, ...]:
    given = [axis for axis in AXES if _is_given(descriptor.values, axis)]
    if not given:
        raise descriptor.build_error("", "the problem has no spatial dimension; give at least ih and kh")
    if given == ["d", "h"] or given == ["d", "w"]:
        raise descriptor.build_error(f"k{given[1]}", "a problem with depth gives both h and w, or neither")
    dimensions = [_parse_dimension(descriptor, axis) for axis in given]
    num_wanted = len(AXES) - AXES.index(given[0])
    return tuple(dimensions) if len(dimensions) == num_wanted else tuple(dimensions[:1] * num_wanted)


def _is_given(values: Mapping[str, int], axis: str) -> bool:
    """Return True if an axis has an entry other than its default, which is benchdnn's rule."""
    defaults = {"s": 1}
    return any(values.get(role + axis, 0) not in (0, defaults.get(role, 0)) for role in "ikodsp")


def _parse_dimension(descriptor: Descriptor, axis: str) -> Dimension:
    source = _read_positive(descriptor, f"i{axis}", None)
    kernel = _read_positive(descriptor, f"k{axis}", None)
    stride = _read_positive(descriptor, f"s{axis}", 1)
    padding = descriptor.values.get(f"p{axis}")
    destination = descriptor.values.get(f"o{axis}", 0)
    dimension = Dimension(source, destination, kernel, stride, padding or 0, descriptor.values.get(f"d{axis}", 0))
    if not destination:
        return _add_destination(descriptor, axis, dimension)
    if padding is None:
        return _add_padding(descriptor, axis, dimension)
    if not dimension.pads_evenly:
        raise descriptor.build_error(
            f"o{axis}",
            f"o{axis}{destination} does not fit i{axis}{source}: a kernel of {_describe_reach(dimension)}, "
            f"stride {stride} and padding {padding} on both sides give "
            f"o{axis}{compute_even_destination(dimension)}; leave p{axis} out to have the padding computed",
        )
    return dimension


def _add_destination(descriptor: Descriptor, axis: str, dimension: Dimension) -> Dimension:
    destination = compute_even_destination(dimension)
    if destination < 1:
        raise descriptor.build_error(
            f"k{axis}",
            f"a kernel of {_describe_reach(dimension)} does not fit i{axis}{dimension.source} "
            f"with padding {dimension.padding}",
        )
    return dataclasses.replace(dimension, destination=destination)


def _add_padding(descriptor: Descriptor, axis: str, dimension: Dimension) -> Dimension:
    """Deduce padding as benchdnn does: half of the missing elements before, the rest after."""
    missing = (dimension.destination - 1) * dimension.stride + dimension.reach - dimension.source
    # Otherwise whole strides of the source would be unused.
    if missing <= -dimension.stride:
        raise descriptor.build_error(
            f"o{axis}",
            f"o{axis}{dimension.destination} does not fit i{axis}{dimension.source}: without padding it is "
            f"o{axis}{compute_even_destination(dimension)}",
        )
    return dataclasses.replace(dimension, padding=max(0, missing) // 2)


def _describe_reach(dimension: Dimension) -> str:
    return (
        str(dimension.kernel)
        if dimension.reach == dimension.kernel
        else f"{dimension.kernel} dilated to {dimension.reach}"
    )


def _read_positive(descriptor: Descriptor, name: str, default: Optional[int]) -> int:
    value = descriptor.values.get(name, default)
    if value is None:
        raise descriptor.build_error(name, f"{name} is missing")
    if value < 1:
        raise descriptor.build_error(name, f"{name} must be at least 1, not {value}")
    return value


__all__ = ["ConvolutionProblem", "Dimension", "ProblemError", "parse_convolution"]
