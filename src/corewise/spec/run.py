"""The run: one execution of a trial in fresh processes, all ranks together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the ranks of one run did together; plain JSON values throughout."""

    status: str  # ok | failed
    reason: str = ""
    kind: str = ""
    samples_s: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    disturbances: Sequence[str] = ()
    ranks: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        """The run as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        """The run described by parsed JSON; unknown keys are passed by."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
