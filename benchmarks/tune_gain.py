"""Measure the gain of tuning: stock `python`, torch's own `run_cpu` and the tuned command, started in turns.

Each workload is searched first, as `corewise tune` searches. Then every contestant is started cold several
times, in turns: the printed command of the default, that of the winner, and the default under
`python -m torch.backends.xeon.run_cpu` with all cores. Throughput comes from each rank's result. Searches and
starts are written to --out as they end, so an interrupted run resumes.

    python benchmarks/tune_gain.py resnet18:infer:64 resnet50:train:64 --budget 10m --out gain.json

With --also the search continues from its result with one more class of knobs, and that winner takes part in
the same turns:

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

from measuring import describe_machine

from corewise.launch.environment import strip_controlled_variables
from corewise.measured.trial import Protocol, Trial, to_json, write_json_atomically
from corewise.run.record_builder import format_manual_command
from corewise.run.run_collector import collect_run
from corewise.run.warm_parent import read_result
from corewise.stats.trial_comparison import compare_trials
from corewise.study.durations import parse_duration_s
from corewise.tuning.question import Tunable, build_question, read_assignments
from corewise.tuning.search.coordinate_search import Search
from corewise.tuning.search.cpu_steal import compute_stolen_share
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.knobs import build_hand_setting, list_good_starts
from corewise.tuning.search.live_arena import LiveArena, LiveEntrant
from corewise.tuning.search.prior_results import is_similar
from corewise.tuning.search.setting_space import Setting, Space

STARTS = 5
LIMIT_S = 600.0
CONTESTANTS = ("stock", "run_cpu", "tuned")
# This class of knobs has no effect on inference.
IN_TRAINING = "batch-statistics"
SHORT = "lower-precision"
KEPT = ("samples_per_s", "latency_p50_s", "peak_memory_bytes", "check_error", "steal_s", "own_cpu_s", "window_s")
# A start that loses more CPU time to the hypervisor is stored but not counted, and repeated.
STOLEN = 0.03
# The most starts, as a multiple of those requested.
MOST_STARTS = 3
PROTOCOL = Protocol(
    min_runs=1, max_runs=1, min_warmup_steps=1, max_warmup_s=1.0, min_samples=2, min_sample_s=1.0, timeout_s=LIMIT_S
)


# The parameters of a setting, and its judgement.
EarlierResult = tuple[dict[str, Any], Judgement]


@dataclass(frozen=True)
class Case:
    """One workload as the command line names it: resnet18:infer:64, or lstm_ensemble:infer:400:time_steps=100."""

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
    """A search with its budget; `name` is the name of its winner among the contestants."""

    name: str
    allow: tuple[str, ...]
    budget_s: float


def list_stages(case: Case, given: argparse.Namespace) -> list[Stage]:
    found = [Stage("tuned", tuple(given.allow), parse_duration_s(given.budget, "--budget"))]
    for text in given.also:
        allowed, _, budget = text.partition("=")
        if allowed != IN_TRAINING or case.mode == "train":
            allow = (*given.allow, allowed)
            budget_s = parse_duration_s(budget or given.budget, "--budget")
            found.append(Stage(f"tuned, {allowed}", allow, budget_s))
    return found


class SearchLog:
    """Prints the progress of a search and stores it."""

    def __init__(self, tunable: Tunable) -> None:
        self.tunable, self.lines, self.began = tunable, [], time.monotonic()

    def report_candidate(self, setting: Setting) -> None: ...

    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None:
        description = self.tunable.space.describe(judgement.setting)
        at_s = time.monotonic() - self.began
        ratio = math.exp(judgement.score) if judgement.throughput else 0.0
        line = {"at_s": round(at_s, 1), "words": description, "outcome": judgement.outcome, "ratio": round(ratio, 4)}
        line |= {"throughput": judgement.throughput, "latency_s": judgement.latency_s, "start_s": judgement.start_s}
        line |= {"reason": judgement.reason} if judgement.reason else {}
        self.lines.append(line)
        print(f"  {at_s:5.0f} s {judgement.outcome:9} {ratio:6.3f}x {description} {judgement.reason}", file=sys.stderr)


class SubspaceArena:
    """A view of the arena of all classes for a search among fewer settings; parents stay warm."""

    def __init__(self, arena: LiveArena, space: Space) -> None:
        self.arena, self.space = arena, space

    def read_clock(self) -> float:
        return self.arena.read_clock()

    def prepare(self, settings: Iterable[Setting]) -> None:
        self.arena.prepare(map(self._find_in_full_space, settings))

    def enter(self, setting: Setting, limit_s: float) -> LiveEntrant:
        return self.arena.enter(self._find_in_full_space(setting), limit_s)

    def _find_in_full_space(self, setting: Setting) -> Setting:
        found = self.arena.tunable.space.find_setting(self.space.build_params(setting))
        assert found is not None, "the full space has every setting"
        return found


def run_search(
    case: Case, stage: Stage, arena: LiveArena, starts: Sequence[dict[str, Any]], earlier: Sequence[EarlierResult] = ()
) -> tuple[dict[str, Any], list[EarlierResult]]:
    """Search within the budget; return the result, and the judgements for a search that continues from it.

    The search begins at `starts`, parameters that won elsewhere, and at the hand setting.
    """
    tunable = build_tunable(case, stage.allow)
    space = tunable.space
    log = SearchLog(tunable)
    wanted = [
        *map(space.find_nearest, starts),
        *([] if earlier else list_good_starts(space, build_hand_setting(space))),
    ]
    search = Search(
        space,
        SubspaceArena(arena, space),
        log,
        starts=[start for start in dict.fromkeys(wanted) if start != space.default],
        bounded_latency=case.mode == "infer",
        earlier=_map_judgements(earlier, space),
    )
    search.run_default(LIMIT_S)
    found = search.run(log.began + stage.budget_s)
    kept = {
        "best": space.build_params(found.best),
        "words": space.describe(found.best),
        "finished": found.finished,
        "seconds": round(time.monotonic() - log.began, 1),
        "judged": log.lines,
    }
    return kept, [(space.build_params(each.setting), each) for each in found.judgements.values()]


def _map_judgements(earlier: Sequence[EarlierResult], space: Space) -> list[Judgement]:
    """Map judgements of a search among fewer settings to this space; drop settings that it lacks."""
    found = []
    for params, judged in earlier:
        setting = space.find_setting(params)
        if setting is not None:
            found.append(replace(judged, setting=setting, against=()))
    return found


def find_similar_winners(case: Case, stage: Stage, kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the winner of the last similar workload, as `corewise tune` does with a store."""
    tunable = build_tunable(case, stage.allow)
    found = [
        one["search"]["best"]
        for text, one in kept.items()
        if "search" in one and is_like(tunable, case, Case.read(text))
    ]
    return found[-1:]


def is_like(tunable: Tunable, case: Case, other: Case) -> bool:
    arguments = read_assignments(other.args, "--args")
    return case.mode == other.mode and is_similar(tunable.traits, other.workload, arguments)


def build_tunable(case: Case, allow: Sequence[str]) -> Tunable:
    fixed = {f"args.{name}": value for name, value in read_assignments(case.args, "--args").items()}
    return Tunable.from_question(
        build_question(case.workload, mode=case.mode, batch=case.batch, fixed=fixed, allow=list(allow))
    )


def has_same_space(case: Case, stage: Stage, other: Stage) -> bool:
    return build_tunable(case, stage.allow).space == build_tunable(case, other.allow).space


def build_contestants(
    case: Case, stages: Sequence[Stage], found: dict[str, Any], folder: Path
) -> dict[str, tuple[Trial, str]]:
    """Return the trial and the shell line of each contestant."""
    lines = {}
    for stage in stages:
        tunable = build_tunable(case, stage.allow)
        tuned = tunable.space.find_setting(found[name_search(stage)]["best"])
        assert tuned is not None, "the search was made on another machine or with other knobs"
        sides = [("stock", tunable.space.default), (stage.name, tuned)]
        for name, setting in sides if not lines else sides[1:]:
            plan = tunable.plan(setting, PROTOCOL)
            [trial] = plan.trials
            write_json_atomically(folder / f"{trial.trial_id}.json", to_json(trial))
            lines[name] = (trial, format_manual_command(plan, trial, str(folder)))
    trial, line = lines.pop("stock")
    return {"stock": (trial, line), "run_cpu": (trial, build_run_cpu_line(trial, line)), **lines}


def name_search(stage: Stage) -> str:
    """Return the key under which a stage's search is stored."""
    return "search" if stage.name == "tuned" else f"search{stage.name.removeprefix('tuned')}"


def build_run_cpu_line(trial: Trial, line: str) -> str:
    """Return the stock command under torch's launcher with one instance on all cores."""
    python, _, description = line[line.index(trial.python[-1]) :].partition(" ")
    num_cores = trial.params.threads
    cores = f"--ninstances 1 --ncores-per-instance {num_cores}"
    launcher = f"-m torch.backends.xeon.run_cpu --no-python {cores}"
    # The launcher chooses the number of threads; the trial checks it.
    threads = f"env OMP_NUM_THREADS={num_cores} MKL_NUM_THREADS={num_cores} OPENBLAS_NUM_THREADS={num_cores}"
    return f"{threads} {python} {launcher} {python} {description}"


def start_cold(trial: Trial, line: str, folder: Path) -> dict[str, float]:
    """Return the metrics of one cold start; empty if it failed."""
    out = folder / f"{trial.trial_id}-results"
    shutil.rmtree(out, ignore_errors=True)
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        env=strip_controlled_variables(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        _, log = process.communicate(timeout=LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    results = [read_result(out / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]
    run = collect_run(trial, results)
    if run.status != "ok":
        print(f"failed: {run.reason} {log.strip()[-300:]}", file=sys.stderr)
        return {}
    return {name: run.metrics[name] for name in KEPT if name in run.metrics}


def search_all(
    case: Case, stages: Sequence[Stage], given: argparse.Namespace, kept: dict[str, Any], folder: Path
) -> None:
    """Run the searches that are missing, one class after the other; each continues from the first."""
    found, before = kept[str(case)], []
    everything = sorted({word for stage in stages for word in stage.allow})
    arena = LiveArena(build_tunable(case, everything), folder / "searching")
    try:
        for stage in stages:
            if name_search(stage) in found:
                continue
            if stage.name != "tuned" and has_same_space(case, stage, stages[0]):
                # The class has no effect on this workload.
                found[name_search(stage)] = found["search"]
                continue
            if stage.name == "tuned":
                starts = find_similar_winners(case, stage, kept)
            else:
                print(f" {stage.name}", file=sys.stderr)
                starts = [found["search"]["best"]]
                if stage.name.endswith(SHORT):
                    starts.insert(0, switch_to_bfloat16(starts[0]))
            found[name_search(stage)], judged = run_search(case, stage, arena, starts, before)
            before = before or judged
            save(given.out, kept)
    finally:
        arena.close()


def switch_to_bfloat16(params: dict[str, Any]) -> dict[str, Any]:
    """Return the setting in bfloat16, which our training kernels do not support."""
    execution = {"execution": "eager"} if params.get("execution") == "fast-kernels" else {}
    return {**params, **execution, "dtype": "bfloat16"}


def measure(case: Case, given: argparse.Namespace, kept: dict[str, Any], deadline: float) -> None:
    """Search, then start every contestant in turns until each has its starts; reuse stored results."""
    found = kept.setdefault(str(case), {})
    folder = given.store.absolute() / "gain"
    folder.mkdir(parents=True, exist_ok=True)
    print(case, file=sys.stderr)
    stages = list_stages(case, given)
    if any(name_search(stage) not in found for stage in stages):
        search_all(case, stages, given, kept, folder)
    all_starts: dict[str, list[dict[str, float]]] = found.setdefault("starts", {})
    ready = build_contestants(case, stages, found, folder)
    starts_of = {name: all_starts.setdefault(name, []) for name in ready}
    wanting = [name for name in ready if not has_enough(starts_of[name], given.starts)]
    while wanting and time.monotonic() < deadline:
        for name, (trial, line) in ready.items():
            if name not in wanting:
                continue
            metrics = start_cold(trial, line, folder)
            starts_of[name].append(metrics)
            stolen = (
                f" ({compute_stolen_share(metrics):.0%} of the CPU time was stolen)"
                if compute_stolen_share(metrics)
                else ""
            )
            print(f"  {name}: {metrics.get('samples_per_s', 0.0):.4g}{stolen}", file=sys.stderr)
        wanting = [name for name in ready if not has_enough(starts_of[name], given.starts)]
        save(given.out, kept)


def has_enough(starts: list[dict[str, float]], num: int) -> bool:
    undisturbed = sum(compute_stolen_share(each) <= STOLEN for each in starts)
    return undisturbed >= num or len(starts) >= MOST_STARTS * num


def save(out: Path | None, kept: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps({"machine": describe_machine(), "cases": kept}, indent=1) + "\n")


def show(kept: dict[str, dict[str, Any]]) -> None:
    """Print a row for each workload and winner, and geometric means."""
    header = " ".join(f"{name:>10}" for name in CONTESTANTS)
    print(f"{'workload':26} {header} {'run_cpu':>8} {'gain':>20} {'latency':>8}  setting")
    ratios: dict[str, list[float]] = {}
    for case, found in kept.items():
        tuned = [name for name in found.get("starts", {}) if name.startswith("tuned")]
        for name in tuned:
            sides = ("stock", "run_cpu", name)
            if not all(found["starts"].get(side) for side in sides):
                continue
            rates = {side: select_values(found, side, "samples_per_s") for side in sides}
            medians = {side: statistics.median(each) if each else 0.0 for side, each in rates.items()}
            run_cpu = medians["run_cpu"] / medians["stock"]
            stock_s, tuned_s = (statistics.median(select_values(found, n, "latency_p50_s")) for n in ("stock", name))
            if name == "tuned":
                ratios.setdefault("run_cpu", []).append(run_cpu)
            label = f"{case.split(':')[1]}{name.removeprefix('tuned')}"
            ratios.setdefault(f"tuned {label}", []).append(medians[name] / medians["stock"])
            figures = " ".join(f"{medians[side]:10.4g}" for side in sides)
            gain = format_gain(rates["stock"], rates[name])
            description = found[f"search{name.removeprefix('tuned')}"]["words"]
            print(f"{case:26} {figures} {run_cpu:8.2f} {gain:>20} {tuned_s / stock_s:8.2f}  {description}")
    for name, values in ratios.items():
        if all(values):
            mean = math.exp(statistics.fmean(map(math.log, values)))
            print(f"geometric mean of {len(values)}, {name}: {mean:.2f}")


def select_values(found: dict[str, Any], name: str, metric: str) -> list[float]:
    """Return the metric of every undisturbed start, or of all if each was disturbed."""
    good = [each for each in found["starts"][name] if each.get(metric)]
    return [each[metric] for each in good if compute_stolen_share(each) <= STOLEN] or [each[metric] for each in good]


def format_gain(stock: Sequence[float], tuned: Sequence[float]) -> str:
    if not stock or not tuned:
        return "-"
    found = compare_trials([1 / value for value in stock], [1 / value for value in tuned])
    assert found.ratio is not None
    interval = found.interval
    if interval is None or interval.low is None or interval.high is None:
        return f"{1 / found.ratio:.2f}"
    return f"{1 / found.ratio:.2f} ({1 / interval.high:.2f} to {1 / interval.low:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases", nargs="*", help="WORKLOAD:MODE:BATCH[:NAME=VALUE...]; without any, show the results in --out"
    )
    parser.add_argument("--budget", default="10m", help="of each search")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing new after this time")
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="CLASS=BUDGET",
        help="continue the search with this class allowed",
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
