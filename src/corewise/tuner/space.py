"""What may be varied: knobs, their choices, and settings made of one choice each. Pure values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.spec.axes import AXES

Setting = tuple[int, ...]  # the number of the choice of each knob; all 0: the stock default


@dataclass(frozen=True)
class Knob:
    """Something that may be set in several ways; the first choice is what plain `python` does."""

    name: str
    choices: tuple[Mapping[str, Any], ...]  # each a mapping of axes to values
    why: str = ""  # what may be gained by it
    costly: frozenset[int] = frozenset()  # choices that take long to start: they are compiled
    ladders: tuple[tuple[int, ...], ...] = ()  # choices in an order along which a best one can be climbed to
    needs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of other knobs, by choice

    def words(self, choice: int) -> str:
        """A choice in a few words."""
        params = self.choices[choice]
        if "processes" in params:
            shape = f"{params['processes']}×{params.get('threads', '?')}"
            return f"{shape} with SMT" if params.get("smt") else shape
        if not params:
            return f"{self.name} default"
        return ", ".join(_said(name, value) for name, value in params.items())


@dataclass(frozen=True)
class Space:
    """All settings: what holds for each of them, and the knobs."""

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

    def params(self, setting: Setting) -> dict[str, Any]:
        """The axes of a setting with their values."""
        found = dict(self.base)
        for knob, choice in zip(self.knobs, setting, strict=True):
            found.update(knob.choices[choice])
        return found

    def changed(self, setting: Setting, knob: int, choice: int) -> Setting:
        """The setting with another choice of one knob."""
        return (*setting[:knob], choice, *setting[knob + 1 :])

    def num_changed(self, setting: Setting) -> int:
        """How many knobs are not what plain `python` does: the fewer, the simpler."""
        return sum(choice != 0 for choice in setting)

    def index(self, name: str) -> int | None:
        """The place of the knob of that name, or None where there is none."""
        return next((i for i, knob in enumerate(self.knobs) if knob.name == name), None)

    def alike(self, setting: Setting) -> Setting:
        """The first of the settings that run the same way as this one.

        A process of one thread has nobody to wait for, and once pinned has but one core to stay on.
        """
        if self.params(setting).get("threads") != 1:
            return setting
        for name, value, same in (("wait_policy", None, "default"), ("bind", "core", "rank")):
            knob = self.index(name)
            if knob is None or value not in (None, self.knobs[knob].choices[setting[knob]].get(name)):
                continue
            plain = [i for i, choice in enumerate(self.knobs[knob].choices) if choice == {name: same}]
            setting = self.changed(setting, knob, plain[0]) if plain else setting
        return setting

    def as_needed(self, setting: Setting, knob: int) -> Setting:
        """The setting with other knobs set to what the choice of this one cannot do without."""
        return self.near({**self.params(setting), **self.knobs[knob].needs.get(setting[knob], {})})

    def near(self, wanted: Mapping[str, Any]) -> Setting:
        """The setting whose choices agree with these values where a choice does; the default elsewhere."""
        return tuple(_agreeing(knob, wanted) for knob in self.knobs)

    def setting_of(self, params: Mapping[str, Any]) -> Setting | None:
        """The setting with exactly these values of all axes that knobs vary, or None."""
        found = self.near(params)
        made = self.params(found)
        varied = {name for knob in self.knobs for choice in knob.choices for name in choice}
        return found if all(_value(made, name) == _value(params, name) for name in varied) else None

    def words(self, setting: Setting) -> str:
        """What the setting changes, in a few words."""
        parts = [k.words(c) for k, c in zip(self.knobs, setting, strict=True) if c]
        return ", ".join(parts) or "default"

    def steps(self, setting: Setting) -> Iterator[Setting]:
        """From the default to the setting, one more knob at a time, in the order of the knobs."""
        so_far = self.default
        for knob, choice in enumerate(setting):
            if choice:
                so_far = self.changed(so_far, knob, choice)
                yield so_far


def _agreeing(knob: Knob, wanted: Mapping[str, Any]) -> int:
    """The choice that agrees in every axis it has; among several the one with most axes."""
    best, most = 0, -1
    for number, choice in enumerate(knob.choices):
        if choice and len(choice) > most and all(wanted.get(n) == v for n, v in choice.items()):
            best, most = number, len(choice)
    return best


def _value(params: Mapping[str, Any], name: str) -> Any:
    """The value of an axis, its own default where none is given."""
    return params.get(name, AXES[name].default if name in AXES else None)


def _said(name: str, value: Any) -> str:
    if value is True:
        return name
    if name == "memory_format" or (name == "dtype" and value != "default"):
        return str(value)
    return f"{name} {value}"


@dataclass(frozen=True)
class LeftOut:
    """A choice that is not tried, and why."""

    what: str
    reason: str
    params: Mapping[str, Any] = field(default_factory=dict)
