"""What is tuning worth? Stock `python`, torch's own `run_cpu` and the tuned command, started in turns.

Each workload is searched first, as `corewise tune` searches. Then every contestant is started from cold again
and again, one after the other: the printed command of the default, that of the winner, and the default under
`python -m torch.backends.xeon.run_cpu` with all cores. Throughput is what each rank's own result says. Goes
on where it stopped: searches and starts are kept in --out as they end.

    python benchmarks/tune_gain.py resnet18:infer:64 resnet50:train:64 --budget 10m --out gain.json

With --also the search goes on from what it has found, with one more class of knobs allowed, and that winner
is started in the same turns:

    python benchmarks/tune_gain.py resnet50:train:64 --budget 60s --also batch-statistics=30s \\
        --also lower-precision=30s --out gain.json
"""

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measuring import machine_line

from corewise.engine.collect import collect_run
from corewise.engine.recording import by_hand
from corewise.engine.warm_parent import read_result
from corewise.launcher.environment import inherited_environment
from corewise.spec.trial import Protocol, Trial, to_json, write_json_aside
from corewise.stats.compare import compare
from corewise.tuner.durations import read_duration
from corewise.tuner.found import Judged
from corewise.tuner.knobs import good_starts, hand_setting
from corewise.tuner.known import is_kin
from corewise.tuner.live import LiveArena, LiveEntrant
from corewise.tuner.question import Tunable, make_question, read_assignments
from corewise.tuner.search import Search
from corewise.tuner.space import Setting, Space
from corewise.tuner.steal import stolen_share

STARTS = 5
LIMIT_S = 600.0
CONTESTANTS = ("stock", "run_cpu", "tuned")
IN_TRAINING = "batch-statistics"  # a class that changes nothing of inference
SHORT = "lower-precision"
KEPT = (
    "samples_per_s",
    "latency_p50_s",
    "peak_memory_bytes",
    "check_error",
    "steal_s",
    "own_cpu_s",
    "window_s",
)
STOLEN = 0.03  # of the CPU time, by the hypervisor: such a start is kept but not counted, and repeated
MOST_STARTS = 3  # times as many as asked for
PROTOCOL = Protocol(
    min_runs=1,
    max_runs=1,
    min_warmup_steps=1,
    max_warmup_s=1.0,
    min_samples=2,
    min_sample_s=1.0,
    timeout_s=LIMIT_S,
)


Before = tuple[dict[str, Any], Judged]  # a setting's parameters, and what became of it


@dataclass(frozen=True)
class Case:
    """One workload as it is asked for: resnet18:infer:64, or lstm_ensemble:infer:400:time_steps=100."""

    workload: str
    mode: str
    batch: int
    args: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Case":
        workload, mode, batch, *args = text.split(":")
        return cls(workload, mode, int(batch), tuple(args))

    def __str__(self) -> str:
        return ":".join((self.workload, self.mode, str(self.batch), *self.args))


@dataclass(frozen=True)
class Stage:
    """A search with its budget: the first by itself, later ones from what it has found."""

    name: str  # of its winner among the contestants
    allow: tuple[str, ...]
    budget_s: float


def stages_of(case: Case, given: argparse.Namespace) -> list[Stage]:
    found = [Stage("tuned", tuple(given.allow), read_duration(given.budget))]
    for text in given.also:
        allowed, _, budget = text.partition("=")
        if allowed != IN_TRAINING or case.mode == "train":
            allow = (*given.allow, allowed)
            found.append(Stage(f"tuned, {allowed}", allow, read_duration(budget or given.budget)))
    return found


class Told:
    """Says on the terminal how a search goes, and keeps it."""

    def __init__(self, tunable: Tunable) -> None:
        self.tunable, self.lines, self.began = tunable, [], time.monotonic()

    def trying(self, setting: Setting) -> None: ...

    def judged(self, found: Judged, incumbent: Setting, score: float) -> None:
        words = self.tunable.space.words(found.setting)
        at_s = time.monotonic() - self.began
        ratio = math.exp(found.score) if found.throughput else 0.0
        line = {"at_s": round(at_s, 1), "words": words, "outcome": found.outcome, "ratio": round(ratio, 4)}
        line |= {"throughput": found.throughput, "latency_s": found.latency_s, "start_s": found.start_s}
        line |= {"reason": found.reason} if found.reason else {}
        self.lines.append(line)
        print(f"  {at_s:5.0f} s {found.outcome:9} {ratio:6.3f}x {words} {found.reason}", file=sys.stderr)


class Among:
    """The arena of all classes as a search among fewer settings sees it; parents stay warm in between."""

    def __init__(self, arena: LiveArena, space: Space) -> None:
        self.arena, self.space = arena, space

    def now(self) -> float:
        return self.arena.now()

    def expect(self, settings: Iterable[Setting]) -> None:
        self.arena.expect(map(self._wider, settings))

    def enter(self, setting: Setting, limit_s: float) -> LiveEntrant:
        return self.arena.enter(self._wider(setting), limit_s)

    def _wider(self, setting: Setting) -> Setting:
        found = self.arena.tunable.space.setting_of(self.space.params(setting))
        assert found is not None, "all classes together have every setting"
        return found


def searched(
    case: Case,
    stage: Stage,
    arena: LiveArena,
    starts: Sequence[dict[str, Any]],
    earlier: Sequence[Before] = (),
) -> tuple[dict[str, Any], list[Before]]:
    """What the search has found within the budget, and its judgements for a search that goes on from there.

    It begins at `starts`, parameters that won elsewhere, and at the setting that one makes by hand.
    """
    tunable = tunable_of(case, stage.allow)
    space = tunable.space
    told = Told(tunable)
    wanted = [*map(space.near, starts), *([] if earlier else good_starts(space, hand_setting(space)))]
    search = Search(
        space,
        Among(arena, space),
        told,
        starts=[start for start in dict.fromkeys(wanted) if start != space.default],
        bounded_latency=case.mode == "infer",
        earlier=_mapped(earlier, space),
    )
    search.run_default(LIMIT_S)
    found = search.run(told.began + stage.budget_s)
    kept = {
        "best": space.params(found.best),
        "words": space.words(found.best),
        "finished": found.finished,
        "seconds": round(time.monotonic() - told.began, 1),
        "judged": told.lines,
    }
    return kept, [(space.params(each.setting), each) for each in found.judged.values()]


def _mapped(earlier: Sequence[Before], space: Space) -> list[Judged]:
    """Judgements of a search among fewer settings, in this space; those that are not in it are left out."""
    found = []
    for params, judged in earlier:
        setting = space.setting_of(params)
        if setting is not None:
            found.append(replace(judged, setting=setting, against=()))
    return found


def kin_of(case: Case, stage: Stage, kept: dict[str, Any]) -> list[dict[str, Any]]:
    """As `corewise tune` does with a store: what won for the last workload like it."""
    tunable = tunable_of(case, stage.allow)
    found = [
        one["search"]["best"]
        for text, one in kept.items()
        if "search" in one and is_like(tunable, case, Case.read(text))
    ]
    return found[-1:]


def is_like(tunable: Tunable, case: Case, other: Case) -> bool:
    arguments = read_assignments(other.args, "--args")
    return case.mode == other.mode and is_kin(tunable.traits, other.workload, arguments)


def tunable_of(case: Case, allow: Sequence[str]) -> Tunable:
    fixed = {f"args.{name}": value for name, value in read_assignments(case.args, "--args").items()}
    return Tunable.of(
        make_question(case.workload, mode=case.mode, batch=case.batch, fixed=fixed, allow=list(allow))
    )


def same_space(case: Case, stage: Stage, other: Stage) -> bool:
    return tunable_of(case, stage.allow).space == tunable_of(case, other.allow).space


def contestants(
    case: Case, stages: Sequence[Stage], found: dict[str, Any], folder: Path
) -> dict[str, tuple[Trial, str]]:
    """The trial and the shell line of each contestant."""
    lines = {}
    for stage in stages:
        tunable = tunable_of(case, stage.allow)
        tuned = tunable.space.setting_of(found[searched_as(stage)]["best"])
        assert tuned is not None, "the search was made on another machine or with other knobs"
        sides = [("stock", tunable.space.default), (stage.name, tuned)]
        for name, setting in sides if not lines else sides[1:]:
            plan = tunable.plan(setting, PROTOCOL)
            [trial] = plan.trials
            write_json_aside(folder / f"{trial.trial_id}.json", to_json(trial))
            lines[name] = (trial, by_hand(plan, trial, str(folder)))
    trial, line = lines.pop("stock")
    return {"stock": (trial, line), "run_cpu": (trial, under_run_cpu(trial, line)), **lines}


def searched_as(stage: Stage) -> str:
    """Where a stage's search is kept."""
    return "search" if stage.name == "tuned" else f"search{stage.name.removeprefix('tuned')}"


def under_run_cpu(trial: Trial, line: str) -> str:
    """The stock command started by torch's launcher with one instance on all cores."""
    python, _, words = line[line.index(trial.python[-1]) :].partition(" ")
    num_cores = trial.params["threads"]
    cores = f"--ninstances 1 --ncores-per-instance {num_cores}"
    launcher = f"-m torch.backends.xeon.run_cpu --no-python {cores}"
    # The launcher's threads are its own choice; the trial checks for them.
    threads = f"env OMP_NUM_THREADS={num_cores} MKL_NUM_THREADS={num_cores} OPENBLAS_NUM_THREADS={num_cores}"
    return f"{threads} {python} {launcher} {python} {words}"


def started(trial: Trial, line: str, folder: Path) -> dict[str, float]:
    """The metrics of one start from cold, none when it failed."""
    out = folder / f"{trial.trial_id}-results"
    shutil.rmtree(out, ignore_errors=True)
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        env=inherited_environment(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        _, told = process.communicate(timeout=LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    results = [read_result(out / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]
    run = collect_run(trial, results)
    if run.status != "ok":
        print(f"failed: {run.reason} {told.strip()[-300:]}", file=sys.stderr)
        return {}
    return {name: run.metrics[name] for name in KEPT if name in run.metrics}


def search_all(
    case: Case, stages: Sequence[Stage], given: argparse.Namespace, kept: dict[str, Any], folder: Path
) -> None:
    """Search one class after the other, as far as it is not yet done; each goes on from the first."""
    found, before = kept[str(case)], []
    everything = sorted({word for stage in stages for word in stage.allow})
    arena = LiveArena(tunable_of(case, everything), folder / "searching")
    try:
        for stage in stages:
            if searched_as(stage) in found:
                continue
            if stage.name != "tuned" and same_space(case, stage, stages[0]):
                found[searched_as(stage)] = found["search"]  # the class changes nothing of this workload
                continue
            if stage.name == "tuned":
                starts = kin_of(case, stage, kept)
            else:
                print(f" {stage.name}", file=sys.stderr)
                starts = [found["search"]["best"]]
                if stage.name.endswith(SHORT):
                    starts.insert(0, shortened(starts[0]))
            found[searched_as(stage)], judged = searched(case, stage, arena, starts, before)
            before = before or judged
            save(given.out, kept)
    finally:
        arena.close()


def shortened(params: dict[str, Any]) -> dict[str, Any]:
    """The setting in bfloat16, which our own kernels for training do not know."""
    execution = {"execution": "eager"} if params.get("execution") == "quickened" else {}
    return {**params, **execution, "dtype": "bfloat16"}


def measure(case: Case, given: argparse.Namespace, kept: dict[str, Any], deadline: float) -> None:
    """Search, then start every contestant in turns until each has its starts; what is there is kept."""
    found = kept.setdefault(str(case), {})
    folder = given.store.absolute() / "gain"
    folder.mkdir(parents=True, exist_ok=True)
    print(case, file=sys.stderr)
    stages = stages_of(case, given)
    if any(searched_as(stage) not in found for stage in stages):
        search_all(case, stages, given, kept, folder)
    all_starts: dict[str, list[dict[str, float]]] = found.setdefault("starts", {})
    ready = contestants(case, stages, found, folder)
    starts_of = {name: all_starts.setdefault(name, []) for name in ready}
    wanting = [name for name in ready if not has_enough(starts_of[name], given.starts)]
    while wanting and time.monotonic() < deadline:
        for name, (trial, line) in ready.items():
            if name not in wanting:
                continue
            metrics = started(trial, line, folder)
            starts_of[name].append(metrics)
            stolen = (
                f" ({stolen_share(metrics):.0%} of the CPU time was stolen)" if stolen_share(metrics) else ""
            )
            print(f"  {name}: {metrics.get('samples_per_s', 0.0):.4g}{stolen}", file=sys.stderr)
        wanting = [name for name in ready if not has_enough(starts_of[name], given.starts)]
        save(given.out, kept)


def has_enough(starts: list[dict[str, float]], num: int) -> bool:
    undisturbed = sum(stolen_share(each) <= STOLEN for each in starts)
    return undisturbed >= num or len(starts) >= MOST_STARTS * num


def save(out: Path | None, kept: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps({"machine": machine_line(), "cases": kept}, indent=1) + "\n")


def show(kept: dict[str, dict[str, Any]]) -> None:
    """A row for each workload and winner, and geometric means."""
    header = " ".join(f"{name:>10}" for name in CONTESTANTS)
    print(f"{'workload':26} {header} {'run_cpu':>8} {'gain':>20} {'latency':>8}  setting")
    ratios: dict[str, list[float]] = {}
    for case, found in kept.items():
        tuned = [name for name in found.get("starts", {}) if name.startswith("tuned")]
        for name in tuned:
            sides = ("stock", "run_cpu", name)
            if not all(found["starts"].get(side) for side in sides):
                continue
            rates = {side: values_of(found, side, "samples_per_s") for side in sides}
            medians = {side: statistics.median(each) if each else 0.0 for side, each in rates.items()}
            run_cpu = medians["run_cpu"] / medians["stock"]
            stock_s, tuned_s = (
                statistics.median(values_of(found, n, "latency_p50_s")) for n in ("stock", name)
            )
            if name == "tuned":
                ratios.setdefault("run_cpu", []).append(run_cpu)
            kind = f"{case.split(':')[1]}{name.removeprefix('tuned')}"
            ratios.setdefault(f"tuned {kind}", []).append(medians[name] / medians["stock"])
            figures = " ".join(f"{medians[side]:10.4g}" for side in sides)
            gain = gain_of(rates["stock"], rates[name])
            words = found[f"search{name.removeprefix('tuned')}"]["words"]
            print(f"{case:26} {figures} {run_cpu:8.2f} {gain:>20} {tuned_s / stock_s:8.2f}  {words}")
    for name, values in ratios.items():
        if all(values):
            mean = math.exp(statistics.fmean(map(math.log, values)))
            print(f"geometric mean of {len(values)}, {name}: {mean:.2f}")


def values_of(found: dict[str, Any], name: str, metric: str) -> list[float]:
    """The metric of every start that was not disturbed; of all where each one was."""
    good = [each for each in found["starts"][name] if each.get(metric)]
    return [each[metric] for each in good if stolen_share(each) <= STOLEN] or [each[metric] for each in good]


def gain_of(stock: Sequence[float], tuned: Sequence[float]) -> str:
    if not stock or not tuned:
        return "-"
    found = compare([1 / value for value in stock], [1 / value for value in tuned])
    assert found.ratio is not None
    interval = found.interval
    if interval is None or interval.low is None or interval.high is None:
        return f"{1 / found.ratio:.2f}"
    return f"{1 / found.ratio:.2f} ({1 / interval.high:.2f} to {1 / interval.low:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", help="WORKLOAD:MODE:BATCH[:NAME=VALUE...]; none: show what --out holds"
    )
    parser.add_argument("--budget", default="10m", help="of each search")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after so many")
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="CLASS=BUDGET",
        help="then search on with this class allowed",
    )
    parser.add_argument("--store", type=Path, default=Path("gain-store"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    deadline = time.monotonic() + given.seconds
    kept: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        kept = json.loads(given.out.read_text())["cases"]
    for text in given.cases:
        if time.monotonic() < deadline:
            measure(Case.read(text), given, kept, deadline)
    show(kept)


if __name__ == "__main__":
    main()
