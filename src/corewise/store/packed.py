"""Mappings and runs that take little memory: names are held once for all, numbers in arrays."""

import sys
from array import array
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, overload

_NAN = float("nan")


class Layout:
    """Names in their order, one object for all mappings that have them."""

    __slots__ = ("index", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.index = {name: place for place, name in enumerate(names)}

    @classmethod
    def of(cls, names: Iterable[str]) -> "Layout":
        """The one layout of these names."""
        names = tuple(names)
        known = _layouts.get(names)
        if known is None:
            known = _layouts[names] = cls(tuple(sys.intern(name) for name in names))
        return known

    def __reduce__(self) -> Any:
        return Layout.of, (self.names,)


_layouts: dict[tuple[str, ...], Layout] = {}


class PackedMapping(Mapping[str, Any]):
    """A mapping that cannot be changed; its values are as they were given."""

    __slots__ = ("layout", "values_in_order")

    def __init__(self, layout: Layout, values_in_order: Sequence[Any]) -> None:
        self.layout = layout
        self.values_in_order = values_in_order

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "PackedMapping":
        """The mapping, packed; equal texts become one."""
        values = list(mapping.values())
        if set(map(type, values)) == {float}:
            return cls(Layout.of(mapping), array("d", values))
        return cls(Layout.of(mapping), tuple([sys.intern(v) if type(v) is str else v for v in values]))

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


_statuses: dict[tuple[str, ...], tuple[str, ...]] = {}  # of runs; very many are the same


class PackedRuns(Sequence[Mapping[str, Any]]):
    """Runs with their status, some of their metrics, and what disturbed them; each is made when asked for."""

    __slots__ = ("disturbances", "figures", "statuses")
    METRICS = ("step_s", "samples_per_s", "peak_memory_bytes")

    def __init__(
        self, statuses: tuple[str, ...], figures: "array[float]", disturbances: tuple[tuple[str, ...], ...]
    ) -> None:
        self.statuses = statuses
        self.figures = figures  # those of METRICS of the first run, then of the next; not a number: not there
        self.disturbances = disturbances  # empty where no run has any

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> "Sequence[Mapping[str, Any]]":
        """The runs, packed."""
        if not runs:
            return ()
        statuses = tuple([str(run.get("status", "")) for run in runs])
        measured = [run.get("metrics") or {} for run in runs]
        try:
            figures = array("d", [metrics[name] for metrics in measured for name in cls.METRICS])
        except (KeyError, TypeError):
            figures = array("d", [_number(metrics.get(name)) for metrics in measured for name in cls.METRICS])
        disturbances: tuple[tuple[str, ...], ...] = ()
        if [run for run in runs if run.get("disturbances")]:
            disturbances = tuple(tuple(map(str, run.get("disturbances") or ())) for run in runs)
        return cls(_statuses.setdefault(statuses, statuses), figures, disturbances)

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
        return {
            "status": self.statuses[number],
            "metrics": {n: v for n, v in zip(self.METRICS, figures, strict=True) if v == v},
            "disturbances": list(self.disturbances[number]) if self.disturbances else [],
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return PackedRuns, (self.statuses, self.figures, self.disturbances)

    def __repr__(self) -> str:
        return repr(list(self))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else _NAN
