"""How well does the tuner search, side by side with other methods at equal time?

`record` measures every setting of a grid in turns with a pinned thread, raw samplings kept, and goes on where
it stopped; `remeasure` starts the best of them again; `replay` runs each method on recorded (and made-up)
grids, where time is what the recorded starts and samplings took; `oracle` tells what measuring gives someone
who knows where to look; `live` runs our search among a grid's settings on this machine itself, and judges
what it found by the grid.

    python benchmarks/tune_search.py record resnet18 --batch 4 --args image_size=64 --out grid.jsonl
    python benchmarks/tune_search.py remeasure grid.jsonl
    python benchmarks/tune_search.py replay grid.jsonl --synthetic 4 --seeds 10
    python benchmarks/tune_search.py oracle grid.jsonl
    python benchmarks/tune_search.py live grid.jsonl

hypertune (Intel's, archived) tries its settings one after the other with one sample each; Optuna's TPE
sampler needs `pip install optuna`. Every method may choose among the same settings and is given one of the
starts of each, at random; it is judged by the median of the later starts: the best of a hundred settings is
otherwise the luckiest of them. A grid without later starts is judged by itself.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recorded_grids import (
    PASSES,
    SAMPLINGS,
    SAMPLINGS_AGAIN,
    Grid,
    Point,
    read_grid,
    record,
    remeasure,
    tunable_of,
)

from corewise.tuner.arena import Arena, Rejected, Sampling
from corewise.tuner.found import Judged
from corewise.tuner.knobs import good_starts, hand_setting
from corewise.tuner.live import LiveArena, LiveEntrant
from corewise.tuner.question import Tunable, make_question, read_assignments
from corewise.tuner.search import Search
from corewise.tuner.space import Knob, Setting, Space

WITHIN = 0.03
METHODS = ("corewise", "random", "tpe", "hypertune")


# Replay


class ReplayArena:
    """Entrants of a recorded grid; the clock is what the recorded starts and samplings took."""

    def __init__(self, grid: Grid, seed: int, limit_s: float = math.inf) -> None:
        self.grid, self.random, self.limit_s = grid, random.Random(seed), limit_s
        self.seconds = 0.0
        self.values: dict[Setting, list[float]] = {}

    def now(self) -> float:
        return self.seconds

    def expect(self, settings: Iterable[Setting]) -> None:
        """Nothing: what the recorded starts took is what they take here."""

    def enter(self, setting: Setting, limit_s: float) -> "ReplayEntrant":
        point = self.grid.points.get(setting)
        if point is None:
            raise Rejected("infeasible", "not in the grid")
        self.seconds += point.start_s
        if not point.starts:
            raise Rejected("error", point.reason)
        return ReplayEntrant(self, point)


class ReplayEntrant:
    def __init__(self, arena: ReplayArena, point: Point) -> None:
        self.arena, self.point = arena, point
        self.setting, self.start_s = point.setting, point.start_s
        self.throughputs = arena.random.choice(point.starts)  # processes differ: one is drawn

    def sample(self) -> Sampling:
        self.arena.seconds += self.point.sample_s
        value = self.arena.random.choice(self.throughputs)
        self.arena.values.setdefault(self.setting, []).append(value)
        return Sampling(value, self.point.latency_s)

    def leave(self) -> None:
        return None


class Nobody:
    """Watches nothing."""

    def trying(self, setting: Setting) -> None: ...
    def judged(self, found: Judged, incumbent: Setting, score: float) -> None: ...


def by_corewise(grid: Grid, seed: int, limit_s: float) -> tuple[Setting, float]:
    """Our search; the setting found and the seconds it took."""
    arena = ReplayArena(grid, seed)
    return searched(grid, arena, limit_s), arena.seconds


def searched(grid: Grid, arena: Arena, until_s: float) -> Setting:
    """What our search finds in an arena before its clock shows `until_s`."""
    starts = good_starts(grid.space, hand_setting(grid.space))
    search = Search(grid.space, arena, Nobody(), starts=starts, bounded_latency=grid.bounded_latency)
    search.run_default(until_s)
    return search.run(until_s).best


# Live


class GridsArena(LiveArena):
    """This machine, open to the settings of a grid only."""

    def __init__(self, grid: Grid, tunable: Tunable, folder: Path) -> None:
        super().__init__(tunable, folder)
        self.grid = grid

    def expect(self, settings: Iterable[Setting]) -> None:
        super().expect(setting for setting in settings if setting in self.grid.points)

    def enter(self, setting: Setting, limit_s: float) -> LiveEntrant:
        if setting not in self.grid.points:
            raise Rejected("infeasible", "not in the grid")
        return super().enter(setting, limit_s)


def live(path: Path, share: float) -> dict[str, Any]:
    """One search on this machine with a share of the grid's time; its setting is judged by the grid."""
    grid = read_grid(path)
    arena = GridsArena(grid, tunable_of(path), path.with_suffix(".live").absolute())
    began = time.monotonic()
    try:
        found = searched(grid, arena, began + share * grid.seconds)
    finally:
        arena.close()
    seconds = time.monotonic() - began
    loss = 1 - grid.points[found].value / grid.best
    return {
        "grid": grid.name,
        "found": grid.space.words(found),
        "loss": loss,
        "within": loss <= WITHIN,
        "seconds": seconds,
        "of_grid_time": seconds / grid.seconds,
    }


def by_trials(
    propose: Callable[[Grid, int, Callable[[Setting], float]], Iterator[None]],
) -> Callable[[Grid, int, float], tuple[Setting, float]]:
    """A method that measures one setting after the other, one sampling each, until time is up."""

    def run(grid: Grid, seed: int, limit_s: float) -> tuple[Setting, float]:
        arena = ReplayArena(grid, seed)
        limit_latency_s = grid.points[grid.space.default].latency_s * 1.02
        found: dict[Setting, float] = {grid.space.default: 0.0}

        def measure(setting: Setting) -> float:
            if setting not in found or setting == grid.space.default:
                try:
                    sampling = arena.enter(setting, math.inf).sample()
                    slow = grid.bounded_latency and sampling.latency_s > limit_latency_s
                    found[setting] = 0.0 if slow else sampling.throughput
                except Rejected:
                    found[setting] = 0.0
            return found[setting]

        measure(grid.space.default)
        for _ in propose(grid, seed, measure):
            if arena.seconds >= limit_s:
                break
        return max(found, key=lambda setting: found[setting]), arena.seconds

    return run


def at_random(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
    settings = list(grid.points)
    random.Random(seed).shuffle(settings)
    for setting in settings:
        measure(setting)
        yield


def in_order(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
    """hypertune's grid: nested loops, the last knob fastest; which knob is outermost is the user's luck."""
    order = list(range(len(grid.space.knobs)))
    random.Random(seed).shuffle(order)
    choices = [range(len(grid.space.knobs[knob].choices)) for knob in order]
    for combination in itertools.product(*choices):
        setting = [0] * len(order)
        for knob, choice in zip(order, combination, strict=True):
            setting[knob] = choice
        measure(tuple(setting))
        yield


def by_tpe(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({knob.name: 0 for knob in grid.space.knobs})
    for _ in range(4 * len(grid.points)):
        trial = study.ask()
        setting = tuple(
            trial.suggest_categorical(knob.name, list(range(len(knob.choices)))) for knob in grid.space.knobs
        )
        study.tell(trial, measure(setting))
        yield


RUN: dict[str, Callable[[Grid, int, float], tuple[Setting, float]]] = {
    "corewise": by_corewise,
    "random": by_trials(at_random),
    "tpe": by_trials(by_tpe),
    "hypertune": by_trials(in_order),
}


def replay(
    grids: Sequence[Grid], num_seeds: int, share: float, methods: Sequence[str], equal_time: bool
) -> list[dict[str, Any]]:
    """One row for each grid and method: how often it came within 3 % of the best, and in what time.

    Our search stops by itself; the others use the whole share of the grid's time, or what ours took.
    """
    rows = []
    for grid in grids:
        limits_s = dict.fromkeys(range(num_seeds), share * grid.seconds)
        if equal_time:
            limits_s = {seed: by_corewise(grid, seed, limit_s)[1] for seed, limit_s in limits_s.items()}
        for method in methods:
            found = [RUN[method](grid, seed, limit_s) for seed, limit_s in limits_s.items()]
            losses = [1 - grid.points[setting].value / grid.best for setting, _ in found]
            rows.append(
                {
                    "grid": grid.name,
                    "method": method,
                    "num_settings": len(grid.points),
                    "within": sum(loss <= WITHIN for loss in losses) / num_seeds,
                    "median_loss": statistics.median(losses),
                    "worst_loss": max(losses),
                    "share_of_grid": statistics.median(took_s for _, took_s in found) / grid.seconds,
                    "losses": losses,
                }
            )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"{'grid':28} {'method':10} {'within 3 %':>10} {'median loss':>12} {'worst':>8} {'of grid time':>13}"
    )
    for row in rows:
        print(
            f"{row['grid']:28} {row['method']:10} {row['within']:10.0%} {row['median_loss']:12.1%} "
            f"{row['worst_loss']:8.1%} {row['share_of_grid']:13.1%}"
        )


# What measuring gives someone who knows where to look


def oracle(grid: Grid, num_starts: int, num_samplings: int, near: float, num_seeds: int) -> dict[str, Any]:
    """How often someone comes within 3 % who is told which settings lie so near the grid's best.

    Each of these is started so many times and sampled by itself; the largest mean logarithm is taken.
    """
    limit_s = grid.points[grid.space.default].latency_s * 1.02 if grid.bounded_latency else math.inf
    allowed = [point for point in grid.points.values() if point.starts and point.latency_s <= limit_s]
    told = [point for point in allowed if point.value >= (1 - near) * grid.best]
    losses, seconds = [], []
    for seed in range(num_seeds):
        arena = ReplayArena(grid, seed)
        means = {
            point: statistics.fmean(
                math.log(entrant.sample().throughput)
                for entrant in (arena.enter(point.setting, math.inf) for _ in range(num_starts))
                for _ in range(num_samplings)
            )
            for point in told
        }
        losses.append(1 - max(told, key=lambda point: means[point]).value / grid.best)
        seconds.append(arena.seconds)
    return {
        "grid": grid.name,
        "num_told": len(told),
        "starts": num_starts,
        "samplings": num_samplings,
        "within": sum(loss <= WITHIN for loss in losses) / num_seeds,
        "share_of_grid": statistics.median(seconds) / grid.seconds,
    }


def show_oracles(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"{'grid':28} {'settings':>8} {'starts':>6} {'samplings':>9} {'within 3 %':>10} {'of grid time':>13}"
    )
    for row in rows:
        print(
            f"{row['grid']:28} {row['num_told']:8} {row['starts']:6} {row['samplings']:9} "
            f"{row['within']:10.0%} {row['share_of_grid']:13.1%}"
        )


# Made-up grids with a known optimum


def synthetic(seed: int, num_cores: int = 16, clash_sd: float = 0.05) -> Grid:
    """A grid like those of a 16-core machine: factors of each knob, interactions, noise, process luck."""
    dice = random.Random(1000 + seed)
    shapes = [1, 2, 4, 8, 16]
    knobs = (
        Knob(
            "shape",
            tuple({"processes": p, "threads": num_cores // p} for p in shapes),
            ladders=(tuple(range(len(shapes))),),
        ),
        Knob(
            "memory_format", tuple({"memory_format": v} for v in ("contiguous", "channels_last", "blocked"))
        ),
        Knob("allocator", tuple({"allocator": v} for v in ("default", "retain", "tcmalloc", "jemalloc"))),
        Knob("bind", tuple({"bind": v} for v in ("none", "rank", "core"))),
        Knob(
            "execution",
            tuple({"execution": v} for v in ("eager", "script", "compile")),
            costly=frozenset({2}),
        ),
    )
    space = Space({"bind": "none"}, knobs)
    peak = dice.choice(range(len(shapes)))
    slope = dice.uniform(0.05, 0.3)
    factors = [
        [-slope * abs(i - peak) + dice.gauss(0, 0.02) for i in range(len(shapes))],
        [0.0, dice.uniform(-0.05, 0.9), dice.uniform(-0.6, 0.4)],
        [0.0, dice.uniform(0.0, 0.4), dice.uniform(-0.1, 0.4), dice.uniform(-0.1, 0.4)],
        [0.0, dice.uniform(-0.05, 0.3), dice.uniform(-0.1, 0.3)],
        [0.0, dice.uniform(-0.2, 0.15), dice.uniform(-0.3, 0.5)],
    ]
    clash = {pair: dice.gauss(0, clash_sd) for pair in itertools.product(range(5), range(3), range(3))}
    points = {}
    for setting in itertools.product(*(range(len(knob.choices)) for knob in knobs)):
        log = sum(factor[choice] for factor, choice in zip(factors, space.alike(setting), strict=True))
        log += clash[setting[0], setting[1], setting[4]] + dice.gauss(0, 0.01)
        samplings = tuple(100 * math.exp(log + dice.gauss(0, 0.015)) for _ in range(SAMPLINGS))
        step_s = 1.0 / math.exp(log)
        start_s = 4.0 + 3 * step_s + (25.0 if setting[4] == 2 else 0.0)
        sample_s, median = max(0.4, step_s), statistics.median(samplings)
        spent_s = start_s + 2 * SAMPLINGS * sample_s
        points[setting] = Point(setting, start_s, sample_s, (samplings,), step_s, median, spent_s)
    return Grid(f"synthetic {seed}", space, points, bounded_latency=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("subject")
    recording.add_argument("--mode", default="infer")
    recording.add_argument("--batch", type=int)
    recording.add_argument("--args", action="append", default=[])
    recording.add_argument("--allow", action="append", default=[])
    recording.add_argument("--knobs", default="", help="only these, by comma")
    recording.add_argument("--passes", type=int, default=PASSES)
    recording.add_argument("--out", type=Path, required=True)
    again = verbs.add_parser("remeasure")
    again.add_argument("grids", nargs="+", type=Path)
    again.add_argument("--near", type=float, default=0.12, help="those so near the recorded best")
    again.add_argument("--most", type=int, default=16, help="at most so many of them")
    again.add_argument("--rounds", type=int, default=6)
    again.add_argument("--samplings", type=int, default=SAMPLINGS_AGAIN, help="of each start")
    again.add_argument("--also", action="append", default=[], help="this setting too, in a replay's words")
    replaying = verbs.add_parser("replay")
    replaying.add_argument("grids", nargs="*", type=Path)
    replaying.add_argument("--synthetic", type=int, default=0, help="so many made-up grids too")
    replaying.add_argument("--clash", type=float, default=0.05, help="how much knobs of those interact")
    replaying.add_argument("--seeds", type=int, default=10)
    replaying.add_argument("--share", type=float, default=0.1, help="of the grid's time, for every method")
    replaying.add_argument(
        "--equal-time", action="store_true", help="others get what ours took, not the share"
    )
    replaying.add_argument("--methods", default=",".join(METHODS))
    replaying.add_argument("--out", type=Path)
    bounds = verbs.add_parser("oracle")
    bounds.add_argument("grids", nargs="+", type=Path)
    bounds.add_argument("--starts", default="1,2,4,8", help="of each setting, by comma")
    bounds.add_argument("--samplings", type=int, default=2, help="of each start")
    bounds.add_argument(
        "--near", type=float, default=0.12, help="only settings so near the best are measured"
    )
    bounds.add_argument("--seeds", type=int, default=500)
    alive = verbs.add_parser("live")
    alive.add_argument("grids", nargs="+", type=Path)
    alive.add_argument("--share", type=float, default=0.1, help="of the grid's time")
    alive.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.verb == "record":
        fixed = read_assignments(given.args, "--args", "args.")
        question = make_question(
            given.subject, mode=given.mode, batch=given.batch, fixed=fixed, allow=given.allow
        )
        names = [name for name in given.knobs.split(",") if name]
        record(Tunable.of(question), given.out, names, given.passes)
        return
    if given.verb == "remeasure":
        for path in given.grids:
            grid, tunable = read_grid(path), tunable_of(path)
            if [knob.choices for knob in tunable.space.knobs] != [knob.choices for knob in grid.space.knobs]:
                sys.exit(f"{path} was recorded with other knobs than this machine and version have")
            remeasure(tunable, grid, path, given.near, given.most, given.rounds, given.samplings, given.also)
        return
    if given.verb == "oracle":
        show_oracles(
            [
                oracle(read_grid(path), int(num), given.samplings, given.near, given.seeds)
                for path in given.grids
                for num in given.starts.split(",")
            ]
        )
        return
    if given.verb == "live":
        told = []
        for path in given.grids:
            told.append(live(path, given.share))
            print(
                "{grid}: {found}, {loss:.1%} below the best, {of_grid_time:.1%} of its time".format(
                    **told[-1]
                )
            )
        if given.out:
            given.out.write_text(json.dumps(told, indent=1) + "\n")
        return
    grids = [read_grid(path) for path in given.grids] + [
        synthetic(seed, clash_sd=given.clash) for seed in range(given.synthetic)
    ]
    rows = replay(grids, given.seeds, given.share, given.methods.split(","), given.equal_time)
    show(rows)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
