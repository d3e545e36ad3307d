"""The result of a tuning as values; other modules render it as text or HTML."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corewise.analysis.tuning_results import NOT_MEASURED, UNCONFIRMED, TuningAnswer
from corewise.tuning.search.rejection_causes import RejectedChoice
from corewise.tuning.search.setting_space import UntriedChoice


@dataclass(frozen=True, kw_only=True)
class TuneResult(TuningAnswer):
    """The result of a tuning; prints as text, and as HTML in a notebook.

    Attributes:
        rejected: What cannot be used here, once for each cause.
        is_cut: The budget ended it before the fresh runs could decide.
        least_budget_s: A budget that is enough to compare two settings; 0 if it is unknown.
        is_undecided: No difference was shown because the runs are too noisy.
        is_disturbed: Other load disturbed at least half of the fresh runs that decide.
        has_worse_latency: A setting was faster, but with a worse latency.
        disagreement: How race and fresh runs of the best setting of the search disagree, if they do.
        code: The line of code that applies a setting, by setting.
        command: The command of a script, as it was given.
        environment: Variables that were set for every start.
        throughput_source: What the throughput of a script was read from.
        failure_lines: The last lines that a script printed, by the reason of its failure.
        output: Path of the tuned file, if one was written.
        report: Path of the HTML report, if one was written.
    """

    batch: int
    machine: str
    left_out: tuple[UntriedChoice, ...] = ()
    rejected: tuple[RejectedChoice, ...] = ()
    finished: bool = True
    is_cut: bool = False
    least_budget_s: float = 0.0
    is_undecided: bool = False
    is_disturbed: bool = False
    has_worse_latency: bool = False
    disagreement: str = ""
    seconds: float = 0.0
    code: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    throughput_source: str = ""
    failure_lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    output: str = ""
    report: str = ""
    store: str = ""

    @property
    def trials(self) -> int:
        """Number of settings that were started."""
        return len(self.tried)

    @property
    def title(self) -> str:
        """Its name with the options that distinguish it from other tunings of that name."""
        return ", ".join((self.name, *self.asked))

    @property
    def is_script(self) -> bool:
        """True if a command was tuned, whose batch and latency are unknown."""
        return self.mode == "script"

    @property
    def found_nothing(self) -> bool:
        """True if the tuning ended before anything better than the default was found, or could be confirmed."""
        if self.verdict == UNCONFIRMED and self.is_cut:
            return True
        return self.verdict in (UNCONFIRMED, NOT_MEASURED) and self.best.label == self.default.label

    @property
    def study(self) -> str:
        """The name of its fresh runs in the store."""
        return f"tune {self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return all values as plain JSON; numbers that are not finite become null."""
        values: dict[str, Any] = _replace_nonfinite(self._collect_values())
        return values

    def _collect_values(self) -> dict[str, Any]:
        return {
            "subject": self.name,
            "mode": self.mode,
            "asked": list(self.asked),
            "batch": self.batch,
            "machine": self.machine,
            "unit": self.unit,
            "throughput_source": self.throughput_source,
            "verdict": self.verdict,
            "default": self.default.to_json(),
            "best": self.best.to_json(),
            "by_hand": self.hand.to_json() if self.hand else None,
            "speedup": self.speedup,
            "speedup_interval": list(self.speedup_interval) if self.speedup_interval else None,
            "speedup_over_hand": self.speedup_over_hand,
            "speedup_over_hand_interval": (
                list(self.speedup_over_hand_interval) if self.speedup_over_hand_interval else None
            ),
            "ladder": [step.to_json() for step in self.ladder],
            "measured": [side.to_json() for side in self.measured],
            "tied": [each.to_json() for each in self.tied],
            "tried": [each.to_json() for each in self.tried],
            "not_tried": [{"what": each.description, "reason": each.reason} for each in self.left_out],
            "failure_lines": {reason: list(lines) for reason, lines in self.failure_lines.items()},
            "rejected": [
                {"what": each.description, "reason": each.reason, "num_not_started": each.num_avoided}
                for each in self.rejected
            ],
            "finished": self.finished,
            "is_cut": self.is_cut,
            "disagreement": self.disagreement,
            "trials": self.trials,
            "seconds": self.seconds,
            "code": dict(self.code),
            "environment": dict(self.environment),
            "output": self.output,
            "report": self.report,
            "store": self.store,
            "notes": list(self.notes),
            "cautions": list(self.cautions),
        }

    def __str__(self) -> str:
        from corewise.tuning.result.result_text import render_text

        return render_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from corewise.tuning.result.notebook_page import render_html

        return render_html(self)


def _replace_nonfinite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON cannot represent, by None."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nonfinite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
