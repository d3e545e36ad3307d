"""An arena without processes: a rule gives the throughput, and the clock moves only with simulated work."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.tuning.search.arena import Rejection, Sampling
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.setting_space import Knob, Setting, Space

# Maps parameters to the log of the throughput; may raise Rejection.
Rule = Callable[[Mapping[str, Any]], float]


def build_space(**choices: tuple[Any, ...]) -> Space:
    """Build a space whose knobs set one axis each, of the same name."""
    return Space({}, tuple(Knob(name, tuple({name: v} for v in values)) for name, values in choices.items()))


@dataclass
class SimulatedArena:
    """An arena with a simulated clock.

    `start` gives the seconds of a start; `luck` the log of the deviation of the n-th start of a setting.
    """

    space: Space
    rule: Rule
    noise: float = 0.0
    latency: Rule | None = None
    seed: int = 0
    sampling_s: float = 0.1
    start: Callable[[Mapping[str, Any]], float] = lambda params: 1.0
    luck: Callable[[Setting, int], float] = lambda setting, number: 0.0
    seconds: float = 0.0
    entered: list[Setting] = field(default_factory=list)
    expected: list[Setting] = field(default_factory=list)
    num_alive: int = 0
    max_alive: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def read_clock(self) -> float:
        return self.seconds

    def prepare(self, settings: Iterable[Setting]) -> None:
        self.expected.extend(settings)

    def enter(self, setting: Setting, limit_s: float) -> "SimulatedEntrant":
        start_s = self.start(self.space.build_params(setting))
        self.seconds += min(start_s, limit_s)
        self.entered.append(setting)
        if start_s > limit_s:
            raise Rejection("timeout", f"no result within {limit_s:g} s")
        self.rule(self.space.build_params(setting))
        self.num_alive += 1
        self.max_alive = max(self.max_alive, self.num_alive)
        luck = self.luck(setting, self.entered.count(setting))
        return SimulatedEntrant(self, setting, start_s, luck)


@dataclass
class SimulatedEntrant:
    arena: SimulatedArena
    setting: Setting
    start_s: float
    luck: float = 0.0
    num_samplings: int = 0

    def sample(self) -> Sampling:
        self.arena.seconds += self.arena.sampling_s
        self.num_samplings += 1
        params = self.arena.space.build_params(self.setting)
        log = self.arena.rule(params) + self.luck + self.arena.random.gauss(0, self.arena.noise)
        latency = self.arena.latency(params) if self.arena.latency else 1 / math.exp(log)
        return Sampling(math.exp(log), latency)

    def leave(self) -> None:
        self.arena.num_alive -= 1


@dataclass
class RecordingWatcher:
    """A watcher that records all events."""

    tried: list[Setting] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)

    def report_candidate(self, setting: Setting) -> None:
        self.tried.append(setting)

    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None:
        self.judgements.append(judgement)


def refuse(category: str, reason: str) -> float:
    raise Rejection(category, reason)
