"""Compare the tuner's search with other methods at equal time.

`record` measures every setting of a grid in turns with a pinned thread, stores raw samplings, and resumes after
an interruption. `remeasure` starts the best settings again. `replay` runs each method on recorded (and
synthetic) grids; the recorded starts and samplings give the time. `oracle` shows how well one can measure if
the best candidates are known. `live` runs our search among a grid's settings on this machine, and judges the
result by the grid.

    python benchmarks/tune_search.py record resnet18 --batch 4 --args image_size=64 --out grid.jsonl
    python benchmarks/tune_search.py remeasure grid.jsonl
    python benchmarks/tune_search.py replay grid.jsonl --synthetic 4 --seeds 10
    python benchmarks/tune_search.py oracle grid.jsonl
    python benchmarks/tune_search.py live grid.jsonl

hypertune (Intel's, archived) tries its settings one after the other with one sample each. Optuna's TPE
sampler needs `pip install optuna`. Every method chooses among the same settings and gets a random start of
each. It is judged by the median of the later starts: otherwise the best of a hundred settings would be the
luckiest one. A grid without later starts is judged by its own values.
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
    measure_best_again,
    read_grid,
    read_tunable,
    record_grid,
)

from corewise.tuning.question import Tunable, build_question, read_assignments
from corewise.tuning.search.arena import Arena, Rejection, Sampling
from corewise.tuning.search.coordinate_search import Search
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.knobs import build_hand_setting, list_good_starts
from corewise.tuning.search.live_arena import LiveArena, LiveEntrant
from corewise.tuning.search.setting_space import Knob, Setting, Space

WITHIN = 0.03
METHODS = ("corewise", "random", "tpe", "hypertune")


# Replay


class ReplayArena:
    """Entrants of a recorded grid; recorded starts and samplings advance the clock."""

    def __init__(self, grid: Grid, seed: int, limit_s: float = math.inf) -> None:
        self.grid, self.random, self.limit_s = grid, random.Random(seed), limit_s
        self.seconds = 0.0
        self.values: dict[Setting, list[float]] = {}

    def read_clock(self) -> float:
        return self.seconds

    def prepare(self, settings: Iterable[Setting]) -> None:
        """Do nothing: starts take their recorded time."""

    def enter(self, setting: Setting, limit_s: float) -> "ReplayEntrant":
        point = self.grid.points.get(setting)
        if point is None:
            raise Rejection("infeasible", "not in the grid")
        self.seconds += point.start_s
        if not point.starts:
            raise Rejection("error", point.reason)
        return ReplayEntrant(self, point)


class ReplayEntrant:
    def __init__(self, arena: ReplayArena, point: Point) -> None:
        self.arena, self.point = arena, point
        self.setting, self.start_s = point.setting, point.start_s
        # Processes differ, so one start is drawn at random.
        self.throughputs = arena.random.choice(point.starts)

    def sample(self) -> Sampling:
        self.arena.seconds += self.point.sample_s
        value = self.arena.random.choice(self.throughputs)
        self.arena.values.setdefault(self.setting, []).append(value)
        return Sampling(value, self.point.latency_s)

    def leave(self) -> None:
        return None


class NoProgress:
    """Ignores the progress of a search."""

    def report_candidate(self, setting: Setting) -> None: ...
    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None: ...


def run_corewise(grid: Grid, seed: int, limit_s: float) -> tuple[Setting, float]:
    """Run our search; return its setting and its seconds."""
    arena = ReplayArena(grid, seed)
    return run_search(grid, arena, limit_s), arena.seconds


def run_search(grid: Grid, arena: Arena, until_s: float) -> Setting:
    """Return the best setting of our search in an arena until its clock shows `until_s`."""
    starts = list_good_starts(grid.space, build_hand_setting(grid.space))
    search = Search(grid.space, arena, NoProgress(), starts=starts, bounded_latency=grid.bounded_latency)
    search.run_default(until_s)
    return search.run(until_s).best


# Live


class GridArena(LiveArena):
    """This machine, limited to the settings of a grid."""

    def __init__(self, grid: Grid, tunable: Tunable, folder: Path) -> None:
        super().__init__(tunable, folder)
        self.grid = grid

    def prepare(self, settings: Iterable[Setting]) -> None:
        super().prepare(setting for setting in settings if setting in self.grid.points)

    def enter(self, setting: Setting, limit_s: float) -> LiveEntrant:
        if setting not in self.grid.points:
            raise Rejection("infeasible", "not in the grid")
        return super().enter(setting, limit_s)


def search_live(path: Path, share: float) -> dict[str, Any]:
    """Run one search on this machine with a share of the grid's time, and judge its setting by the grid."""
    grid = read_grid(path)
    arena = GridArena(grid, read_tunable(path), path.with_suffix(".live").absolute())
    began = time.monotonic()
    try:
        found = run_search(grid, arena, began + share * grid.seconds)
    finally:
        arena.close()
    seconds = time.monotonic() - began
    loss = 1 - grid.points[found].value / grid.best
    return {
        "grid": grid.name,
        "found": grid.space.describe(found),
        "loss": loss,
        "within": loss <= WITHIN,
        "seconds": seconds,
        "of_grid_time": seconds / grid.seconds,
    }


def build_method(
    propose: Callable[[Grid, int, Callable[[Setting], float]], Iterator[None]],
) -> Callable[[Grid, int, float], tuple[Setting, float]]:
    """Return a method that measures one setting after the other, one sampling each, until time is up."""

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
                except Rejection:
                    found[setting] = 0.0
            return found[setting]

        measure(grid.space.default)
        for _ in propose(grid, seed, measure):
            if arena.seconds >= limit_s:
                break
        return max(found, key=lambda setting: found[setting]), arena.seconds

    return run


def propose_randomly(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
    settings = list(grid.points)
    random.Random(seed).shuffle(settings)
    for setting in settings:
        measure(setting)
        yield


def propose_in_order(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
    """Propose settings as hypertune does: nested loops over knobs in a random order, the last one fastest."""
    order = list(range(len(grid.space.knobs)))
    random.Random(seed).shuffle(order)
    choices = [range(len(grid.space.knobs[knob].choices)) for knob in order]
    for combination in itertools.product(*choices):
        setting = [0] * len(order)
        for knob, choice in zip(order, combination, strict=True):
            setting[knob] = choice
        measure(tuple(setting))
        yield


def propose_by_tpe(grid: Grid, seed: int, measure: Callable[[Setting], float]) -> Iterator[None]:
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


METHOD_RUNNERS: dict[str, Callable[[Grid, int, float], tuple[Setting, float]]] = {
    "corewise": run_corewise,
    "random": build_method(propose_randomly),
    "tpe": build_method(propose_by_tpe),
    "hypertune": build_method(propose_in_order),
}


def replay(
    grids: Sequence[Grid], num_seeds: int, share: float, methods: Sequence[str], equal_time: bool
) -> list[dict[str, Any]]:
    """Return a row for each grid and method: how often it came within 3 % of the best, and in which time.

    Our search stops when it is done. The others use the whole share of the grid's time, or our search's time.
    """
    rows = []
    for grid in grids:
        limits_s = dict.fromkeys(range(num_seeds), share * grid.seconds)
        if equal_time:
            limits_s = {seed: run_corewise(grid, seed, limit_s)[1] for seed, limit_s in limits_s.items()}
        for method in methods:
            found = [METHOD_RUNNERS[method](grid, seed, limit_s) for seed, limit_s in limits_s.items()]
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
    print(f"{'grid':28} {'method':10} {'within 3 %':>10} {'median loss':>12} {'worst':>8} {'of grid time':>13}")
    for row in rows:
        print(
            f"{row['grid']:28} {row['method']:10} {row['within']:10.0%} {row['median_loss']:12.1%} "
            f"{row['worst_loss']:8.1%} {row['share_of_grid']:13.1%}"
        )


# Oracle


def evaluate_oracle(grid: Grid, num_starts: int, num_samplings: int, near: float, num_seeds: int) -> dict[str, Any]:
    """Return how often plain measuring comes within 3 % if the settings near the grid's best are known.

    Each of them is started `num_starts` times; the largest mean logarithm wins.
    """
    limit_s = grid.points[grid.space.default].latency_s * 1.02 if grid.bounded_latency else math.inf
    allowed = [point for point in grid.points.values() if point.starts and point.latency_s <= limit_s]
    candidates = [point for point in allowed if point.value >= (1 - near) * grid.best]
    losses, seconds = [], []
    for seed in range(num_seeds):
        arena = ReplayArena(grid, seed)
        means = {
            point: statistics.fmean(
                math.log(entrant.sample().throughput)
                for entrant in (arena.enter(point.setting, math.inf) for _ in range(num_starts))
                for _ in range(num_samplings)
            )
            for point in candidates
        }
        losses.append(1 - max(candidates, key=lambda point: means[point]).value / grid.best)
        seconds.append(arena.seconds)
    return {
        "grid": grid.name,
        "num_candidates": len(candidates),
        "starts": num_starts,
        "samplings": num_samplings,
        "within": sum(loss <= WITHIN for loss in losses) / num_seeds,
        "share_of_grid": statistics.median(seconds) / grid.seconds,
    }


def show_oracles(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'grid':28} {'settings':>8} {'starts':>6} {'samplings':>9} {'within 3 %':>10} {'of grid time':>13}")
    for row in rows:
        print(
            f"{row['grid']:28} {row['num_candidates']:8} {row['starts']:6} {row['samplings']:9} "
            f"{row['within']:10.0%} {row['share_of_grid']:13.1%}"
        )


# Synthetic grids with a known optimum


def build_synthetic_grid(seed: int, num_cores: int = 16, clash_sd: float = 0.05) -> Grid:
    """Build a grid like those of a 16-core machine: factors of each knob, interactions, noise between processes."""
    dice = random.Random(1000 + seed)
    shapes = [1, 2, 4, 8, 16]
    knobs = (
        Knob(
            "shape",
            tuple({"processes": p, "threads": num_cores // p} for p in shapes),
            ladders=(tuple(range(len(shapes))),),
        ),
        Knob("memory_format", tuple({"memory_format": v} for v in ("contiguous", "channels_last", "blocked"))),
        Knob("allocator", tuple({"allocator": v} for v in ("default", "retain", "tcmalloc", "jemalloc"))),
        Knob("bind", tuple({"bind": v} for v in ("none", "rank", "core"))),
        Knob("execution", tuple({"execution": v} for v in ("eager", "script", "compile")), costly=frozenset({2})),
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
        log = sum(factor[choice] for factor, choice in zip(factors, space.canonicalize(setting), strict=True))
        log += clash[setting[0], setting[1], setting[4]] + dice.gauss(0, 0.01)
        samplings = tuple(100 * math.exp(log + dice.gauss(0, 0.015)) for _ in range(SAMPLINGS))
        step_s = 1.0 / math.exp(log)
        start_s = 4.0 + 3 * step_s + (25.0 if setting[4] == 2 else 0.0)
        sample_s, median = max(0.4, step_s), statistics.median(samplings)
        spent_s = start_s + 2 * SAMPLINGS * sample_s
        points[setting] = Point(setting, start_s, sample_s, (samplings,), step_s, median, spent_s)
    return Grid(f"synthetic {seed}", space, points, bounded_latency=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    again.add_argument("--near", type=float, default=0.12, help="settings within this fraction of the recorded best")
    again.add_argument("--most", type=int, default=16, help="the most settings to start")
    again.add_argument("--rounds", type=int, default=6)
    again.add_argument("--samplings", type=int, default=SAMPLINGS_AGAIN, help="of each start")
    again.add_argument("--also", action="append", default=[], help="a further setting, as a replay describes it")
    replaying = verbs.add_parser("replay")
    replaying.add_argument("grids", nargs="*", type=Path)
    replaying.add_argument("--synthetic", type=int, default=0, help="number of synthetic grids")
    replaying.add_argument("--clash", type=float, default=0.05, help="strength of their interactions")
    replaying.add_argument("--seeds", type=int, default=10)
    replaying.add_argument("--share", type=float, default=0.1, help="of the grid's time, for every method")
    replaying.add_argument("--equal-time", action="store_true", help="others get the time of our search, not the share")
    replaying.add_argument("--methods", default=",".join(METHODS))
    replaying.add_argument("--out", type=Path)
    bounds = verbs.add_parser("oracle")
    bounds.add_argument("grids", nargs="+", type=Path)
    bounds.add_argument("--starts", default="1,2,4,8", help="of each setting, by comma")
    bounds.add_argument("--samplings", type=int, default=2, help="of each start")
    bounds.add_argument(
        "--near", type=float, default=0.12, help="measure only settings within this fraction of the best"
    )
    bounds.add_argument("--seeds", type=int, default=500)
    alive = verbs.add_parser("live")
    alive.add_argument("grids", nargs="+", type=Path)
    alive.add_argument("--share", type=float, default=0.1, help="of the grid's time")
    alive.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.verb == "record":
        fixed = read_assignments(given.args, "--args", "args.")
        question = build_question(given.subject, mode=given.mode, batch=given.batch, fixed=fixed, allow=given.allow)
        names = [name for name in given.knobs.split(",") if name]
        record_grid(Tunable.from_question(question), given.out, names, given.passes)
        return
    if given.verb == "remeasure":
        for path in given.grids:
            grid, tunable = read_grid(path), read_tunable(path)
            if [knob.choices for knob in tunable.space.knobs] != [knob.choices for knob in grid.space.knobs]:
                sys.exit(f"{path} was recorded with other knobs than this machine and version have")
            measure_best_again(tunable, grid, path, given.near, given.most, given.rounds, given.samplings, given.also)
        return
    if given.verb == "oracle":
        show_oracles(
            [
                evaluate_oracle(read_grid(path), int(num), given.samplings, given.near, given.seeds)
                for path in given.grids
                for num in given.starts.split(",")
            ]
        )
        return
    if given.verb == "live":
        results = []
        for path in given.grids:
            results.append(search_live(path, given.share))
            print("{grid}: {found}, {loss:.1%} below the best, {of_grid_time:.1%} of its time".format(**results[-1]))
        if given.out:
            given.out.write_text(json.dumps(results, indent=1) + "\n")
        return
    grids = [read_grid(path) for path in given.grids] + [
        build_synthetic_grid(seed, clash_sd=given.clash) for seed in range(given.synthetic)
    ]
    rows = replay(grids, given.seeds, given.share, given.methods.split(","), given.equal_time)
    show(rows)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
