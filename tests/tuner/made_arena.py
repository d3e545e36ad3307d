"""An arena without processes: throughputs by a rule, a clock that only moves when something is done."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.tuner.arena import Rejected, Sampling
from corewise.tuner.found import Judged
from corewise.tuner.space import Knob, Setting, Space

Rule = Callable[[Mapping[str, Any]], float]  # params -> log of throughput; raises Rejected


def space(**choices: tuple[Any, ...]) -> Space:
    """A space whose knobs each set one axis of their own name."""
    return Space({}, tuple(Knob(name, tuple({name: v} for v in values)) for name, values in choices.items()))


@dataclass
class MadeArena:
    """Starts take a second or what `start` says, samplings a tenth or what is given."""

    space: Space
    rule: Rule
    noise: float = 0.0
    latency: Rule | None = None
    seed: int = 0
    sampling_s: float = 0.1
    start: Callable[[Mapping[str, Any]], float] = lambda params: 1.0  # seconds
    luck: Callable[[Setting, int], float] = lambda setting, number: 0.0  # of which start, as a logarithm
    seconds: float = 0.0
    entered: list[Setting] = field(default_factory=list)
    expected: list[Setting] = field(default_factory=list)
    num_alive: int = 0
    most_alive: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def now(self) -> float:
        return self.seconds

    def expect(self, settings: Iterable[Setting]) -> None:
        self.expected.extend(settings)

    def enter(self, setting: Setting, limit_s: float) -> "MadeEntrant":
        start_s = self.start(self.space.params(setting))
        self.seconds += min(start_s, limit_s)
        self.entered.append(setting)
        if start_s > limit_s:
            raise Rejected("timeout", f"no result within {limit_s:g} s")
        self.rule(self.space.params(setting))
        self.num_alive += 1
        self.most_alive = max(self.most_alive, self.num_alive)
        luck = self.luck(setting, self.entered.count(setting))
        return MadeEntrant(self, setting, start_s, luck)


@dataclass
class MadeEntrant:
    arena: MadeArena
    setting: Setting
    start_s: float
    luck: float = 0.0
    num_samplings: int = 0

    def sample(self) -> Sampling:
        self.arena.seconds += self.arena.sampling_s
        self.num_samplings += 1
        params = self.arena.space.params(self.setting)
        log = self.arena.rule(params) + self.luck + self.arena.random.gauss(0, self.arena.noise)
        latency = self.arena.latency(params) if self.arena.latency else 1 / math.exp(log)
        return Sampling(math.exp(log), latency)

    def leave(self) -> None:
        self.arena.num_alive -= 1


@dataclass
class Heard:
    """A watcher that remembers."""

    tried: list[Setting] = field(default_factory=list)
    found: list[Judged] = field(default_factory=list)

    def trying(self, setting: Setting) -> None:
        self.tried.append(setting)

    def judged(self, found: Judged, incumbent: Setting, score: float) -> None:
        self.found.append(found)


def refuse(kind: str, reason: str) -> float:
    raise Rejected(kind, reason)
