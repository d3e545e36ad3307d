"""The trial run: one execution of a trial in fresh processes, over all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The combined result of all ranks of a run, as JSON values; `status` is ok or failed."""

    status: str
    reason: str = ""
    kind: str = ""
    samples_s: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    disturbances: Sequence[str] = ()
    ranks: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TrialRun":
        """Build a run from parsed JSON; unknown keys are ignored."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
