"""Record grids of settings on a machine as lines of JSON, measure them again, and read them."""

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

from corewise.tuning.question import Tunable, build_question
from corewise.tuning.search.arena import Rejection
from corewise.tuning.search.live_arena import LiveArena
from corewise.tuning.search.setting_space import Knob, Setting, Space

# Samplings of each setting when a grid is recorded.
SAMPLINGS = 5
# Samplings of each start when the best settings are measured again.
SAMPLINGS_AGAIN = 3
# Passes over the grid.
PASSES = 1
SLOWEST_S = 300.0
# The reference setting has one pinned thread: threads that wait for each other add noise.
QUIET = {"processes": 1, "threads": 1, "bind": "core"}


@dataclass(frozen=True)
class Point:
    """One setting of a grid: the time of its start and samplings, and the results.

    Attributes:
        starts: the samplings of each start; empty if the setting did not run.
        recorded: the median when the grid was recorded.
        spent_s: the time spent on the setting when the grid was recorded.
        again: the median of later starts, including settings that are equivalent.
    """

    setting: Setting
    start_s: float
    sample_s: float
    starts: tuple[tuple[float, ...], ...]
    latency_s: float
    recorded: float
    spent_s: float
    reason: str = ""
    again: float = 0.0

    @property
    def value(self) -> float:
        """The throughput by which the setting is judged."""
        return self.again or self.recorded


@dataclass(frozen=True)
class Grid:
    """A completely measured space."""

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
        """The time to record every setting, without later starts."""
        return sum(point.spent_s for point in self.points.values())


def record_grid(tunable: Tunable, out: Path, knob_names: Sequence[str], passes: int) -> None:
    """Measure every setting of the named knobs that is missing; append one line per setting and pass."""
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
        sys.exit(f"{out} was recorded for another question or other knobs: choose another file with --out")
    print(f"{len(settings)} settings", file=sys.stderr)
    arena = PairedArena(tunable, out.with_suffix(".work").absolute())
    try:
        for number in range(passes):
            order = list(settings)
            random.Random(number).shuffle(order)
            for count, setting in enumerate(order):
                if (setting, number) not in done:
                    line = {"pass": number, **arena.measure_start(setting, SAMPLINGS)}
                    with open(out, "a") as file:
                        file.write(json.dumps(line) + "\n")
                    outcome = line["reason"] or f"{statistics.median(line['throughputs']):.4g}"
                    print(f"[{number}: {count + 1}/{len(order)}] {space.describe(setting)}: {outcome}", file=sys.stderr)
    finally:
        arena.close()


def measure_best_again(
    tunable: Tunable,
    grid: Grid,
    out: Path,
    near: float,
    most: int,
    rounds: int,
    num_samplings: int,
    also: Sequence[str] = (),
) -> None:
    """Start the best settings of a recorded grid again, all of them in each round; append one line per start.

    `also` describes further settings, for example the answers of a method.
    """
    limit_s = grid.points[grid.space.default].latency_s * 1.02 if grid.bounded_latency else math.inf
    allowed = [point for point in grid.points.values() if point.latency_s <= limit_s]
    allowed.sort(key=lambda point: -point.recorded)
    chosen = [each.setting for each in allowed[:most] if each.recorded >= (1 - near) * allowed[0].recorded]
    by_description = {grid.space.describe(setting): setting for setting in grid.points}
    unknown = [description for description in also if description not in by_description]
    if unknown:
        sys.exit(f"{out} has no setting {unknown[0]!r}; one of its settings is {next(iter(by_description))!r}")
    chosen = list(dict.fromkeys([*chosen, *(by_description[description] for description in also)]))
    done = {(tuple(line["setting"]), line["round"]) for line in read_lines(out) if "round" in line}
    print(f"{out.name}: {len(chosen)} settings, {rounds} rounds", file=sys.stderr)
    arena = PairedArena(tunable, out.with_suffix(".work").absolute())
    try:
        for number in range(rounds):
            order = list(chosen)
            random.Random(1000 + number).shuffle(order)
            for setting in order:
                if (setting, number) not in done:
                    line = {"round": number, **arena.measure_start(setting, num_samplings)}
                    with open(out, "a") as file:
                        file.write(json.dumps(line) + "\n")
    finally:
        arena.close()


class PairedArena:
    """Measures settings in turns with a quiet reference setting that stays alive."""

    def __init__(self, tunable: Tunable, folder: Path) -> None:
        self.arena, space = LiveArena(tunable, folder), tunable.space
        self.reference = self.arena.enter(space.find_nearest({**space.base, **QUIET}), SLOWEST_S)
        self.reference.sample()

    def measure_start(self, setting: Setting, num_samplings: int) -> dict[str, Any]:
        """Return a line for one start of the setting; without samplings if it does not run."""
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
        except Rejection as problem:
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
        # Older grids call this value "quickened".
        text = path.read_text().replace('"quickened"', '"fast-kernels"')
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    except FileNotFoundError:
        return []


def read_tunable(path: Path) -> Tunable:
    """Return the question for which a grid was recorded."""
    header = read_lines(path)[0]
    base = header["base"]
    fixed = {name: value for name, value in base.items() if name.startswith("args.")}
    workload = header["name"].split()[0]
    return Tunable.from_question(build_question(workload, mode=header["mode"], batch=base["batch"], fixed=fixed))


def compute_later_medians(lines: Iterable[dict[str, Any]], space: Space, level: float) -> dict[Setting, float]:
    """Return the median over later starts of each setting.

    Equivalent settings count as one: with one thread, the wait policy has no effect.
    """
    found: dict[Setting, list[float]] = {}
    settings = []
    for line in lines:
        settings.append(tuple(line["setting"]))
        if line["throughputs"] and "round" in line:
            canonical = space.canonicalize(settings[-1])
            found.setdefault(canonical, []).append(statistics.median(correct_drift(line, level)))
    medians = {setting: statistics.median(values) for setting, values in found.items()}
    return {each: medians[space.canonicalize(each)] for each in settings if space.canonicalize(each) in medians}


def correct_drift(line: dict[str, Any], level: float) -> tuple[float, ...]:
    """Divide the samplings of a start by the median of the reference setting, since drift affects both.

    They are not divided one by one: disturbances of single samplings differ and would count twice. Older
    recordings have no reference.
    """
    references = line.get("references") or [level]
    return tuple(value / statistics.median(references) * level for value in line["throughputs"])


def compute_spent_s(line: dict[str, Any]) -> float:
    """Return the seconds of a start, its samplings and those of the reference."""
    num_samplings = len(line["throughputs"]) + len(line.get("references", ()))
    return float(line["start_s"] + line["sample_s"] * num_samplings)


def read_grid(path: Path) -> Grid:
    """Read a recorded grid; the passes of each setting are combined."""
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
    references = [value for line in lines for value in line.get("references", ())]
    level = statistics.median(references) if references else 1.0
    space = Space(header["base"], knobs)
    again = compute_later_medians(lines, space, level)
    lines_of: dict[Setting, list[dict[str, Any]]] = {}
    for line in lines:
        lines_of.setdefault(tuple(line["setting"]), []).append(line)
    points = {}
    for setting, found in lines_of.items():
        recorded = [each for each in found if "pass" in each]
        good = [each for each in found if each["throughputs"]] or recorded
        values = [value for each in recorded for value in correct_drift(each, level)]
        points[setting] = Point(
            setting=setting,
            start_s=statistics.median(each["start_s"] for each in good),
            sample_s=statistics.median(each["sample_s"] for each in good),
            starts=tuple(correct_drift(each, level) for each in good if each["throughputs"]),
            latency_s=statistics.median(each["latency_s"] for each in good),
            recorded=statistics.median(values) if values else 0.0,
            spent_s=sum(map(compute_spent_s, recorded)),
            reason=good[0]["reason"],
            again=again.get(setting, 0.0),
        )
    return Grid(header["name"], space, points, header["mode"] == "infer")
