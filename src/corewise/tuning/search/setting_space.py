"""The search space as pure values: knobs, their choices, and settings with one choice of each knob."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from corewise.study.axes import AXES

# The index of the choice of each knob; all 0 is the stock default.
Setting = tuple[int, ...]


@dataclass(frozen=True)
class Knob:
    """A knob with several choices; the first one is what plain `python` does.

    Attributes:
        choices: Each one maps axes to values.
        why: What may be gained by it.
        costly: Choices that start slowly because they are compiled.
        ladders: Choices in an order along which the search can climb.
        needs: By choice, the values of other knobs that it requires.
    """

    name: str
    choices: tuple[Mapping[str, Any], ...]
    why: str = ""
    costly: frozenset[int] = frozenset()
    ladders: tuple[tuple[int, ...], ...] = ()
    needs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def describe(self, choice: int) -> str:
        """Describe a choice in a few words."""
        params = self.choices[choice]
        if "processes" in params:
            shape = f"{params['processes']}×{params.get('threads', '?')}"
            shape += " over shared memory" if params.get("collectives") == "shared" else ""
            return f"{shape} with SMT" if params.get("smt") else shape
        if not params:
            return f"{self.name} default"
        return ", ".join(format_value(name, value) for name, value in params.items())


@dataclass(frozen=True)
class Space:
    """The search space: parameters that all settings share, and the knobs."""

    base: Mapping[str, Any]
    knobs: tuple[Knob, ...]

    @property
    def default(self) -> Setting:
        return (0,) * len(self.knobs)

    @property
    def num_settings(self) -> int:
        product = 1
        for knob in self.knobs:
            product *= len(knob.choices)
        return product

    def build_params(self, setting: Setting) -> dict[str, Any]:
        """Return the parameters of a setting: axes with their values."""
        params = dict(self.base)
        for knob, choice in zip(self.knobs, setting, strict=True):
            params.update(knob.choices[choice])
        return params

    def replace_choice(self, setting: Setting, knob: int, choice: int) -> Setting:
        """Return the setting with another choice of one knob."""
        return (*setting[:knob], choice, *setting[knob + 1 :])

    def count_changed(self, setting: Setting) -> int:
        """Count the knobs that differ from plain `python`; fewer means simpler."""
        return sum(choice != 0 for choice in setting)

    def find_knob(self, name: str) -> int | None:
        """Return the index of the knob of that name, or None if there is none."""
        return next((i for i, knob in enumerate(self.knobs) if knob.name == name), None)

    def canonicalize(self, setting: Setting) -> Setting:
        """Return the first of all settings that are equivalent to this one.

        With one thread per process, the wait policy has no effect, and binding to cores equals binding ranks.
        """
        if self.build_params(setting).get("threads") != 1:
            return setting
        for name, value, canonical in (("wait_policy", None, "default"), ("bind", "core", "rank")):
            knob = self.find_knob(name)
            if knob is None or value not in (None, self.knobs[knob].choices[setting[knob]].get(name)):
                continue
            plain = [i for i, choice in enumerate(self.knobs[knob].choices) if choice == {name: canonical}]
            setting = self.replace_choice(setting, knob, plain[0]) if plain else setting
        return setting

    def apply_needs(self, setting: Setting, knob: int) -> Setting:
        """Return the setting with other knobs set to what the choice of this knob needs."""
        return self.find_nearest({**self.build_params(setting), **self.knobs[knob].needs.get(setting[knob], {})})

    def find_nearest(self, wanted: Mapping[str, Any]) -> Setting:
        """Return the setting whose choices match these values; knobs without a match keep their default."""
        return tuple(_find_agreeing(knob, wanted) for knob in self.knobs)

    def find_setting(self, params: Mapping[str, Any]) -> Setting | None:
        """Return the setting with exactly these values of all varied axes, or None."""
        setting = self.find_nearest(params)
        built = self.build_params(setting)
        varied = {name for knob in self.knobs for choice in knob.choices for name in choice}
        return setting if all(get_value(built, name) == get_value(params, name) for name in varied) else None

    def describe(self, setting: Setting) -> str:
        """Describe what the setting changes, in a few words."""
        parts = [k.describe(c) for k, c in zip(self.knobs, setting, strict=True) if c]
        return ", ".join(parts) or "default"

    def list_steps(self, setting: Setting) -> Iterator[Setting]:
        """Yield the settings from the default to this one, changing one more knob at a time."""
        so_far = self.default
        for knob, choice in enumerate(setting):
            if choice:
                so_far = self.replace_choice(so_far, knob, choice)
                yield so_far


def _find_agreeing(knob: Knob, wanted: Mapping[str, Any]) -> int:
    """Return the choice that matches in all its axes; among several, the one with the most axes."""
    best, most = 0, -1
    for number, choice in enumerate(knob.choices):
        if choice and len(choice) > most and all(wanted.get(n) == v for n, v in choice.items()):
            best, most = number, len(choice)
    return best


def get_value(params: Mapping[str, Any], name: str) -> Any:
    """Return the value of an axis, or its default if none is given."""
    return params.get(name, AXES[name].default if name in AXES else None)


def format_value(name: str, value: Any) -> str:
    """Format the value of an axis in a few words."""
    if value is True:
        return name
    if name == "memory_format" or (name == "dtype" and value != "default"):
        return str(value)
    return f"{name} {value}"


class Cause(Enum):
    """Why a choice is not tried.

    FIXED: the user or the workload gave an axis another value. NOT_ALLOWED: it changes results, which needs
    --allow. INFEASIBLE: the point does not exist on this machine.
    """

    OTHER = "other"
    FIXED = "fixed"
    NOT_ALLOWED = "not allowed"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Refusal:
    """The reason against a choice, and the axis that was fixed, if any."""

    cause: Cause
    reason: str
    axis: str = ""


@dataclass(frozen=True)
class UntriedChoice:
    """A choice that is not tried, and why; `axes` are those it sets, or the one that was fixed."""

    description: str
    reason: str
    cause: Cause = Cause.OTHER
    axes: frozenset[str] = frozenset()
