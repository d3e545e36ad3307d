"""Grids of settings: recorded on a machine, measured again, kept as lines of JSON, and read back."""

import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.tuner.arena import Rejected
from corewise.tuner.live import LiveArena
from corewise.tuner.question import Tunable, make_question
from corewise.tuner.space import Knob, Setting, Space

SAMPLINGS = 5  # of each setting when a grid is recorded
SAMPLINGS_AGAIN = 3  # of each start when the best are measured again
PASSES = 1  # over the grid
SLOWEST_S = 300.0
QUIET = {"processes": 1, "threads": 1, "bind": "core"}  # threads that wait for each other make a setting jump


@dataclass(frozen=True)
class Point:
    """One setting of a grid: what starting and sampling it took, and what every sampling gave."""

    setting: Setting
    start_s: float
    sample_s: float
    starts: tuple[tuple[float, ...], ...]  # the samplings of each; none: it did not run
    latency_s: float
    recorded: float  # the median when the grid was recorded
    spent_s: float  # on it then
    reason: str = ""
    again: float = 0.0  # the median of later starts, also of settings that run the same way

    @property
    def value(self) -> float:
        """What it is judged by."""
        return self.again or self.recorded


@dataclass(frozen=True)
class Grid:
    """A whole space, measured."""

    name: str
    space: Space
    points: dict[Setting, Point]
    bounded_latency: bool

    @property
    def best(self) -> float:
        """The value of the best setting whose latency is no worse than the default's."""
        limit_s = self.points[self.space.default].latency_s * 1.02 if self.bounded_latency else math.inf
        allowed = [p for p in self.points.values() if p.latency_s <= limit_s]
        return max(p.value for p in ([p for p in allowed if p.again] or allowed))

    @property
    def seconds(self) -> float:
        """What recording every setting took, the later starts of some left out."""
        return sum(point.spent_s for point in self.points.values())


def record(tunable: Tunable, out: Path, knob_names: Sequence[str], passes: int) -> None:
    """Measure every setting of the named knobs; one line per setting and pass, what is there is kept."""
    done = {(tuple(line["setting"]), line["pass"]) for line in read_lines(out) if "setting" in line}
    space = tunable.space
    free = [i for i, knob in enumerate(space.knobs) if not knob_names or knob.name in knob_names]
    settings = [
        tuple(combination)
        for combination in itertools.product(
            *(range(len(k.choices)) if i in free else (0,) for i, k in enumerate(space.knobs))
        )
    ]
    question = tunable.question
    header = {
        "name": question.name,
        "mode": question.mode,
        "base": dict(space.base),
        "knobs": [asdict(knob) | {"costly": sorted(knob.costly)} for knob in space.knobs],
    }
    if not out.exists():
        out.write_text(json.dumps(header) + "\n")
    elif read_lines(out)[0] != json.loads(json.dumps(header)):
        sys.exit(f"{out} was recorded for another question or other knobs: name another file with --out")
    print(f"{len(settings)} settings", file=sys.stderr)
    beside = Beside(tunable, out.with_suffix(".work").absolute())
    try:
        for number in range(passes):
            order = list(settings)
            random.Random(number).shuffle(order)
            for count, setting in enumerate(order):
                if (setting, number) not in done:
                    line = {"pass": number, **beside.measured(setting, SAMPLINGS)}
                    with open(out, "a") as file:
                        file.write(json.dumps(line) + "\n")
                    told = line["reason"] or f"{statistics.median(line['throughputs']):.4g}"
                    print(
                        f"[{number}: {count + 1}/{len(order)}] {space.words(setting)}: {told}",
                        file=sys.stderr,
                    )
    finally:
        beside.close()


def remeasure(
    tunable: Tunable,
    grid: Grid,
    out: Path,
    near: float,
    most: int,
    rounds: int,
    num_samplings: int,
    also: Sequence[str] = (),
) -> None:
    """Start the best settings of a recorded grid again, all of them in each round; one line per start.

    also: further ones, in words, such as those that a method has answered with.
    """
    limit_s = grid.points[grid.space.default].latency_s * 1.02 if grid.bounded_latency else math.inf
    allowed = [point for point in grid.points.values() if point.latency_s <= limit_s]
    allowed.sort(key=lambda point: -point.recorded)
    chosen = [each.setting for each in allowed[:most] if each.recorded >= (1 - near) * allowed[0].recorded]
    by_words = {grid.space.words(setting): setting for setting in grid.points}
    unknown = [words for words in also if words not in by_words]
    if unknown:
        sys.exit(f"{out} has no setting {unknown[0]!r}; one of its settings is {next(iter(by_words))!r}")
    chosen = list(dict.fromkeys([*chosen, *(by_words[words] for words in also)]))
    done = {(tuple(line["setting"]), line["round"]) for line in read_lines(out) if "round" in line}
    print(f"{out.name}: {len(chosen)} settings, {rounds} rounds", file=sys.stderr)
    beside = Beside(tunable, out.with_suffix(".work").absolute())
    try:
        for number in range(rounds):
            order = list(chosen)
            random.Random(1000 + number).shuffle(order)
            for setting in order:
                if (setting, number) not in done:
                    line = {"round": number, **beside.measured(setting, num_samplings)}
                    with open(out, "a") as file:
                        file.write(json.dumps(line) + "\n")
    finally:
        beside.close()


class Beside:
    """Measures settings in turns with one that is quiet, and stays alive."""

    def __init__(self, tunable: Tunable, folder: Path) -> None:
        self.arena, space = LiveArena(tunable, folder), tunable.space
        self.reference = self.arena.enter(space.near({**space.base, **QUIET}), SLOWEST_S)
        self.reference.sample()

    def measured(self, setting: Setting, num_samplings: int) -> dict[str, Any]:
        """A line for one start of the setting; without samplings where it does not run."""
        began = time.monotonic()
        line: dict[str, Any] = {"setting": setting, "throughputs": [], "references": [], "reason": ""}
        try:
            entrant = self.arena.enter(setting, SLOWEST_S)
            started = time.monotonic()
            samplings = []
            for _ in range(num_samplings):
                line["references"].append(self.reference.sample().throughput)
                samplings.append(entrant.sample())
            sampled = time.monotonic()
            entrant.leave()
        except Rejected as problem:
            spent = {"start_s": time.monotonic() - began, "sample_s": 0.0, "latency_s": 0.0}
            return {**line, **spent, "references": [], "reason": problem.reason}
        return {
            **line,
            "start_s": started - began,
            "sample_s": (sampled - started) / num_samplings / 2,
            "throughputs": [each.throughput for each in samplings],
            "latency_s": statistics.median(each.latency_s for each in samplings),
        }

    def close(self) -> None:
        self.reference.leave()
        self.arena.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    except FileNotFoundError:
        return []


def tunable_of(path: Path) -> Tunable:
    """The question that a grid was recorded for."""
    header = read_lines(path)[0]
    base = header["base"]
    fixed = {name: value for name, value in base.items() if name.startswith("args.")}
    workload = header["name"].split()[0]
    return Tunable.of(make_question(workload, mode=header["mode"], batch=base["batch"], fixed=fixed))


def measured_again(lines: Iterable[dict[str, Any]], space: Space, level: float) -> dict[Setting, float]:
    """What each setting gave when measured again, in the median of its starts.

    Settings that run the same way, as one thread does however threads are to wait, are one and the same.
    """
    found: dict[Setting, list[float]] = {}
    settings = []
    for line in lines:
        settings.append(tuple(line["setting"]))
        if line["throughputs"] and "round" in line:
            alike = space.alike(settings[-1])
            found.setdefault(alike, []).append(statistics.median(steadied(line, level)))
    medians = {setting: statistics.median(values) for setting, values in found.items()}
    return {each: medians[space.alike(each)] for each in settings if space.alike(each) in medians}


def steadied(line: dict[str, Any], level: float) -> tuple[float, ...]:
    """The samplings of a start over the median of the setting beside it: drift falls on both.

    Not one by one: what disturbs two samplings in turns is not the same, and would count twice. Older
    recordings have none beside them.
    """
    references = line.get("references") or [level]
    return tuple(value / statistics.median(references) * level for value in line["throughputs"])


def spent_on(line: dict[str, Any]) -> float:
    """The seconds a start took, with its samplings and those beside them."""
    num_samplings = len(line["throughputs"]) + len(line.get("references", ()))
    return float(line["start_s"] + line["sample_s"] * num_samplings)


def read_grid(path: Path) -> Grid:
    """A recorded grid, the passes of each setting together."""
    header, *lines = read_lines(path)
    knobs = tuple(
        Knob(
            knob["name"],
            tuple(knob["choices"]),
            costly=frozenset(knob["costly"]),
            ladders=tuple(map(tuple, knob["ladders"])),
        )
        for knob in header["knobs"]
    )
    beside = [value for line in lines for value in line.get("references", ())]
    level = statistics.median(beside) if beside else 1.0
    space = Space(header["base"], knobs)
    again = measured_again(lines, space, level)
    together: dict[Setting, list[dict[str, Any]]] = {}
    for line in lines:
        together.setdefault(tuple(line["setting"]), []).append(line)
    points = {}
    for setting, found in together.items():
        recorded = [each for each in found if "pass" in each]
        good = [each for each in found if each["throughputs"]] or recorded
        values = [value for each in recorded for value in steadied(each, level)]
        points[setting] = Point(
            setting=setting,
            start_s=statistics.median(each["start_s"] for each in good),
            sample_s=statistics.median(each["sample_s"] for each in good),
            starts=tuple(steadied(each, level) for each in good if each["throughputs"]),
            latency_s=statistics.median(each["latency_s"] for each in good),
            recorded=statistics.median(values) if values else 0.0,
            spent_s=sum(map(spent_on, recorded)),
            reason=good[0]["reason"],
            again=again.get(setting, 0.0),
        )
    return Grid(header["name"], space, points, header["mode"] == "infer")
