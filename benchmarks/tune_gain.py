"""What is tuning worth? Stock `python`, torch's own `run_cpu` and the tuned command, started in turns.

Each workload is tuned first (or an earlier tuning of the same store is used). Then every contestant is
started from cold again and again, one after the other: the printed command of the default, that of the
winner, and the default under `python -m torch.backends.xeon.run_cpu` with all cores. Throughput is what each
rank's own result says. Goes on where it stopped: starts are kept in --out as they end.

    python benchmarks/tune_gain.py resnet18:infer:64 resnet50:train:64 --budget 10m --out gain.json
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import machine_line

from corewise.engine.collect import collect_run
from corewise.engine.recording import by_hand
from corewise.engine.warm_parent import read_result
from corewise.launcher.environment import inherited_environment
from corewise.spec.study import PRESETS
from corewise.spec.trial import Trial, to_json, write_json_aside
from corewise.stats.compare import compare
from corewise.tuner.api import tune
from corewise.tuner.question import Tunable, make_question, read_assignments

STARTS = 5
LIMIT_S = 600.0
CONTESTANTS = ("stock", "run_cpu", "tuned")


@dataclass(frozen=True)
class Case:
    """One workload as it is asked for: resnet18:infer:64."""

    workload: str
    mode: str
    batch: int

    @classmethod
    def read(cls, text: str) -> "Case":
        workload, mode, batch = text.rsplit(":", 2)
        return cls(workload, mode, int(batch))

    def __str__(self) -> str:
        return f"{self.workload}:{self.mode}:{self.batch}"


def contestants(case: Case, given: argparse.Namespace) -> dict[str, tuple[Trial, str]]:
    """The trial and the shell line of each contestant; tunes first."""
    args = read_assignments(given.args, "--args")
    result = tune(
        case.workload,
        mode=case.mode,
        batch=case.batch,
        budget=given.budget,
        allow=given.allow,
        args=args,
        store=given.store,
    )
    print(result, file=sys.stderr)
    fixed = {f"args.{name}": value for name, value in args.items()}
    question = make_question(case.workload, mode=case.mode, batch=case.batch, fixed=fixed, allow=given.allow)
    tunable = Tunable.of(question)
    best = tunable.space.setting_of(result.best.params)
    assert best is not None
    folder = Path(given.store).absolute() / "gain"
    folder.mkdir(parents=True, exist_ok=True)
    lines = {}
    for name, setting in (("stock", tunable.space.default), ("tuned", best)):
        plan = tunable.plan(setting, PRESETS["quick"])
        [trial] = plan.trials
        write_json_aside(folder / f"{trial.trial_id}.json", to_json(trial))
        lines[name] = (trial, by_hand(plan, trial, str(folder)))
    trial, line = lines["stock"]
    return {"stock": lines["stock"], "run_cpu": (trial, under_run_cpu(trial, line)), "tuned": lines["tuned"]}


def under_run_cpu(trial: Trial, line: str) -> str:
    """The stock command started by torch's launcher with one instance on all cores."""
    python, _, words = line[line.index(trial.python[-1]) :].partition(" ")
    num_cores = trial.params["threads"]
    cores = f"--ninstances 1 --ncores-per-instance {num_cores}"
    launcher = f"-m torch.backends.xeon.run_cpu --no-python {cores}"
    # The launcher's threads are its own choice; the trial checks for them.
    threads = f"env OMP_NUM_THREADS={num_cores} MKL_NUM_THREADS={num_cores} OPENBLAS_NUM_THREADS={num_cores}"
    return f"{threads} {python} {launcher} {python} {words}"


def throughput(trial: Trial, line: str, folder: Path) -> float:
    """Samples per second of one start from cold, 0 when it failed."""
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
        return 0.0
    return run.metrics["samples_per_s"]


def measure(case: Case, given: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Start every contestant in turns until each has its starts; what is there is kept."""
    found: dict[str, list[float]] = kept.setdefault(str(case), {name: [] for name in CONTESTANTS})
    if all(len(values) >= given.starts for values in found.values()):
        return
    ready = contestants(case, given)
    folder = Path(given.store).absolute() / "gain"
    while any(len(values) < given.starts for values in found.values()):
        for name, (trial, line) in ready.items():
            found[name].append(throughput(trial, line, folder))
            print(f"{case} {name}: {found[name][-1]:.4g}", file=sys.stderr)
        save(given.out, kept)


def save(out: Path | None, kept: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps({"machine": machine_line(), "starts": kept}, indent=1) + "\n")


def show(kept: dict[str, dict[str, list[float]]]) -> None:
    """A row for each workload, and geometric means."""
    header = " ".join(f"{name:>10}" for name in CONTESTANTS)
    print(f"{'workload':32} {header} {'run_cpu/stock':>14} {'tuned/stock':>24}")
    gains, others = [], []
    for case, found in kept.items():
        stock, other, tuned = ([value for value in found[name] if value] for name in CONTESTANTS)
        medians = [statistics.median(each) if each else 0.0 for each in (stock, other, tuned)]
        gain = gain_of(stock, tuned)
        others.append(medians[1] / medians[0] if medians[0] else 0.0)
        gains.append(medians[2] / medians[0] if medians[0] else 0.0)
        rates = " ".join(f"{value:10.4g}" for value in medians)
        print(f"{case:32} {rates} {others[-1]:14.2f} {gain:>24}")
    means = (math.exp(statistics.fmean(map(math.log, each))) for each in (others, gains) if all(each))
    print("geometric means:", " ".join(f"{value:.2f}" for value in means))


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
    parser.add_argument("cases", nargs="+", help="WORKLOAD:MODE:BATCH")
    parser.add_argument("--budget", default="10m", help="of each tuning")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--args", action="append", default=[], help="NAME=VALUE, for all of them")
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--store", default="gain-store")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kept: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        kept = json.loads(given.out.read_text())["starts"]
    for text in given.cases:
        measure(Case.read(text), given, kept)
    show(kept)


if __name__ == "__main__":
    main()
