"""Mappings and runs that take little memory: names are stored once, numbers in arrays."""

import sys
from array import array
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, overload

_NAN = float("nan")


class MappingLayout:
    """The ordered names of mappings; mappings with equal names share one layout."""

    __slots__ = ("index", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.index = {name: place for place, name in enumerate(names)}

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "MappingLayout":
        """Return the shared layout of these names."""
        names = tuple(names)
        known = _layouts.get(names)
        if known is None:
            known = _layouts[names] = cls(tuple(sys.intern(name) for name in names))
        return known

    def __reduce__(self) -> Any:
        return MappingLayout.from_names, (self.names,)


_layouts: dict[tuple[str, ...], MappingLayout] = {}


class PackedMapping(Mapping[str, Any]):
    """An immutable mapping that stores its names in a shared layout."""

    __slots__ = ("layout", "values_in_order")

    def __init__(self, layout: MappingLayout, values_in_order: Sequence[Any]) -> None:
        self.layout = layout
        self.values_in_order = values_in_order

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "PackedMapping":
        """Pack a mapping; equal texts are stored once."""
        values = list(mapping.values())
        if set(map(type, values)) == {float}:
            return cls(MappingLayout.from_names(mapping), array("d", values))
        return cls(MappingLayout.from_names(mapping), tuple([sys.intern(v) if type(v) is str else v for v in values]))

    def __getitem__(self, name: str) -> Any:
        return self.values_in_order[self.layout.index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.index

    def get(self, name: str, default: Any = None) -> Any:
        place = self.layout.index.get(name)
        return default if place is None else self.values_in_order[place]

    def keys(self) -> KeysView[str]:
        return self.layout.index.keys()

    def items(self) -> ItemsView[str, Any]:
        return dict(zip(self.layout.names, self.values_in_order, strict=True)).items()

    def values(self) -> ValuesView[Any]:
        return dict(zip(self.layout.names, self.values_in_order, strict=True)).values()

    def __reduce__(self) -> Any:
        return PackedMapping, (self.layout, self.values_in_order)

    def __repr__(self) -> str:
        return repr(dict(self.items()))


# The reason for the end of a warm-up whose steps became steady, as ranks record it.
STEADY = "steady"
# Tuples of texts that very many records share.
_shared_texts: dict[tuple[str, ...], tuple[str, ...]] = {}


class PackedRuns(Sequence[Mapping[str, Any]]):
    """Runs with status, some metrics, disturbances and the end of the warm-up; each is built on access.

    Attributes:
        figures: the METRICS of the first run, then of the next; NaN if unknown.
        disturbances: of each run; empty if no run has any.
        warm_up_ends: why the warm-up of each run ended; empty if no run says so.
    """

    __slots__ = ("disturbances", "figures", "statuses", "warm_up_ends")
    METRICS = ("step_s", "samples_per_s", "peak_memory_bytes")

    def __init__(
        self,
        statuses: tuple[str, ...],
        figures: "array[float]",
        disturbances: tuple[tuple[str, ...], ...],
        warm_up_ends: tuple[str, ...],
    ) -> None:
        self.statuses = statuses
        self.figures = figures
        self.disturbances = disturbances
        self.warm_up_ends = warm_up_ends

    @classmethod
    def from_runs(cls, runs: Sequence[Mapping[str, Any]]) -> "Sequence[Mapping[str, Any]]":
        """Pack runs."""
        if not runs:
            return ()
        statuses = tuple([str(run.get("status", "")) for run in runs])
        measured = [run.get("metrics") or {} for run in runs]
        try:
            figures = array("d", [metrics[name] for metrics in measured for name in cls.METRICS])
        except (KeyError, TypeError):
            figures = array("d", [_to_float(metrics.get(name)) for metrics in measured for name in cls.METRICS])
        disturbances: tuple[tuple[str, ...], ...] = ()
        if [run for run in runs if run.get("disturbances")]:
            disturbances = tuple(tuple(map(str, run.get("disturbances") or ())) for run in runs)
        ends = tuple(map(get_warm_up_end, runs))
        return cls(_share(statuses), figures, disturbances, _share(ends) if any(ends) else ())

    def __len__(self) -> int:
        return len(self.statuses)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = range(len(self.statuses))[place]
        width = len(self.METRICS)
        figures = self.figures[number * width : (number + 1) * width]
        run: dict[str, Any] = {
            "status": self.statuses[number],
            "metrics": {n: v for n, v in zip(self.METRICS, figures, strict=True) if v == v},
            "disturbances": list(self.disturbances[number]) if self.disturbances else [],
        }
        if self.warm_up_ends:
            run["warm_up_ended"] = self.warm_up_ends[number]
        return run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return PackedRuns, (self.statuses, self.figures, self.disturbances, self.warm_up_ends)

    def __repr__(self) -> str:
        return repr(list(self))


def get_warm_up_end(run: Mapping[str, Any]) -> str:
    """Return why the warm-up of a run ended: STEADY if it did so on every rank; empty if no rank says so."""
    if "warm_up_ended" in run:
        return str(run["warm_up_ended"])
    ranks = [rank for rank in run.get("ranks") or () if isinstance(rank, Mapping)]
    ends = [str(rank["warm_up_ended"]) for rank in ranks if rank.get("warm_up_ended")]
    return next((end for end in ends if end != STEADY), STEADY if ends else "")


def _share(texts: tuple[str, ...]) -> tuple[str, ...]:
    return _shared_texts.setdefault(texts, texts)


def _to_float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else _NAN
