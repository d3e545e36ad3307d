"""What a rejected setting teaches about others: which value caused it, so that no other setting starts with it.

A refusal of the measured process names its values, as in "freezing full: …". A crash names nothing. It only
rejects its own setting, until a second crash shares exactly one value with it that has never run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corewise.measured.trial import INFEASIBLE, NO_EFFECT, NOT_NOW
from corewise.study.axes import AXES
from corewise.tuning.search.setting_space import Setting, Space, format_value, get_value

# Failures that say nothing about a value: it may run with more time or memory.
_TRANSIENT = frozenset({NOT_NOW, "timeout", "stopped"})
_SUFFIX_WITHOUT_EFFECT = " has no effect"
# A refusal of one rank is that of all ranks.
_RANK_PREFIX = re.compile(r"^rank \d+: ")


@dataclass
class RejectionCause:
    """Values that cannot be used together here, and why.

    Attributes:
        values: By axis; usually one.
        num_avoided: Settings with these values that were not started.
    """

    values: Mapping[str, Any]
    reason: str
    num_avoided: int = 0

    @property
    def description(self) -> str:
        """The values in a few words."""
        return ", ".join(format_value(name, value) for name, value in self.values.items())

    def applies_to(self, params: Mapping[str, Any]) -> bool:
        """Return whether a setting with these parameters contains all values of the cause."""
        return all(get_value(params, name) == value for name, value in self.values.items())


@dataclass(frozen=True)
class RejectedChoice:
    """What was rejected, in a few words, why, and how many other settings were not started because of it."""

    description: str
    reason: str
    num_avoided: int = 0


@dataclass
class RejectionCauses:
    """The causes that a search has learnt so far."""

    space: Space
    found: list[RejectionCause] = field(default_factory=list)
    # Choices that have run, by knob and choice.
    _innocent: set[tuple[int, int]] = field(default_factory=set)
    # The choices of each crash that have never run.
    _suspects: list[frozenset[tuple[int, int]]] = field(default_factory=list)
    _avoided: set[Setting] = field(default_factory=set)

    def learn_success(self, setting: Setting) -> None:
        """Learn from a setting that ran: none of its choices is a cause on its own."""
        self._innocent.update(enumerate(setting))

    def learn_rejection(self, setting: Setting, category: str, reason: str) -> None:
        """Learn the cause of a rejection, if it names one or if crashes leave only one."""
        params = self.space.build_params(setting)
        if category in _TRANSIENT or self.find(params) is not None:
            return
        if category in (INFEASIBLE, NO_EFFECT):
            values, why = parse_refusal(reason, params)
            self._add(values, why)
            return
        suspects = frozenset((knob, choice) for knob, choice in enumerate(setting) if choice) - self._innocent
        for earlier in self._suspects:
            common = (suspects & earlier) - self._innocent
            if len(common) == 1:
                [(knob, choice)] = common
                self._add(self.space.knobs[knob].choices[choice], f"two settings with it failed: {reason}")
                return
        self._suspects.append(suspects)

    def find(self, params: Mapping[str, Any]) -> RejectionCause | None:
        """Return the cause that rejects a setting with these parameters, or None."""
        return next((each for each in self.found if each.applies_to(params)), None)

    def avoid(self, setting: Setting) -> bool:
        """Return whether a known cause rejects the setting; count each such setting once."""
        cause = self.find(self.space.build_params(setting))
        if cause is not None and setting not in self._avoided:
            self._avoided.add(setting)
            cause.num_avoided += 1
        return cause is not None

    def _add(self, values: Mapping[str, Any], reason: str) -> None:
        default = self.space.build_params(self.space.default)
        # A cause that the default contains cannot be one.
        if values and not RejectionCause(values, reason).applies_to(default):
            self.found.append(RejectionCause(dict(values), reason))


def parse_refusal(reason: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Parse a refusal like "freezing full: why" into the values of `params` that it names, and the rest.

    Several values are separated by commas. The values are empty if the text starts with anything else.
    """
    text = strip_rank(reason)
    head, colon, why = text.partition(": ")
    named: dict[str, Any] = {}
    for part in head.removesuffix(_SUFFIX_WITHOUT_EFFECT).split(", "):
        name, _, value = part.partition(" ")
        if not colon or name not in AXES or str(get_value(params, name)) != value:
            return {}, text
        named[name] = get_value(params, name)
    return named, f"no effect: {why}" if head.endswith(_SUFFIX_WITHOUT_EFFECT) else why


def strip_rank(reason: str) -> str:
    """Return a reason without the number of the rank that reported it."""
    return _RANK_PREFIX.sub("", reason)


def group_rejections(
    rejections: Iterable[tuple[str, Mapping[str, Any], str]], causes: Sequence[RejectionCause]
) -> tuple[RejectedChoice, ...]:
    """Group rejected settings, each with label, parameters and reason, by their cause or else by their reason."""
    by_reason: dict[str, list[str]] = {}
    for label, params, reason in rejections:
        if not any(each.applies_to(params) for each in causes):
            by_reason.setdefault(strip_rank(reason), []).append(label)
    return (
        *(RejectedChoice(each.description, each.reason, each.num_avoided) for each in causes),
        *(RejectedChoice("; ".join(labels), reason) for reason, labels in by_reason.items()),
    )
