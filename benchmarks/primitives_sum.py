"""Check whether a model's primitives, each run alone, add up to its step; step and primitives take turns.

Runs from a source folder with torch and numpy alone: python benchmarks/primitives_sum.py --out FILE
Times are medians over rounds of the lower quartile in each, as in `corewise primitives`. A case is doubtful if
its operators take longer in the model than the step; it then counts as neither inside nor outside the limits.
Every case runs in a fresh process and reports its progress on standard error. It starts no round after
`--case-s` seconds and is aborted after three times as long. Cases in FILE are not measured again. On a shared
machine, `--threads 1 --cpu-time` counts the CPU time of the process, which others disturb less than wall time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
IMAGES = ("alexnet", "resnet18", "resnet50")
# Batches in inference and in training.
BATCHES = {
    "alexnet": (32, 32),
    "resnet18": (16, 8),
    "resnet50": (8, 4),
    "lstm_ensemble": (64, 64),
    "transformer": (16, 8),
}
MODES = ("infer", "train")
LAYOUTS = ("contiguous", "channels_last")
WITHIN = (0.9, 1.1)
NUM_WARM_UP = 3
# A case is aborted after this multiple of its seconds.
MAX_OVERTIME = 3


def list_cases(models: list[str]) -> list[tuple[str, str, str]]:
    """List all cases: model, mode and layout."""
    return [
        (model, mode, layout)
        for model in models
        for mode in MODES
        for layout in (LAYOUTS if model in IMAGES else LAYOUTS[:1])
    ]


def measure(model: str, mode: str, layout: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process."""
    started = time.monotonic()

    def report_phase(phase: str) -> None:
        line = f"{time.monotonic() - started:6.1f} s  {model} {mode} {layout}: {phase}"
        print(line, file=sys.stderr, flush=True)

    report_phase("importing torch")
    cpus = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, cpus)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    sys.path.insert(0, str(SOURCE))
    from corewise.measured.parameters import TrialParameters
    from corewise.measured.runtimes.base import RankContext
    from corewise.measured.runtimes.torch.breakdown.step_breakdown import measure_breakdown
    from corewise.measured.runtimes.torch.breakdown.timing_rounds import BreakdownEffort
    from corewise.measured.runtimes.torch.runtime import TorchRuntime
    from corewise.measured.workloads.model_breakdown import compute_shares

    batch = max(1, int(BATCHES[model][MODES.index(mode)] * args.batch_factor))
    point = {"workload": model, "mode": mode, "device": args.device, "threads": len(cpus), "batch": batch}
    params = TrialParameters.from_mapping({**point, "dtype": args.dtype, "memory_format": layout})
    runtime = TorchRuntime()
    runtime.warm()
    report_phase(f"building the model and its data, batch {batch}")
    job = runtime.prepare(params, RankContext(0, 1, "", len(cpus)))
    report_phase("checking its numbers")
    check = job.check()
    if not check.passed:
        raise SystemExit(f"{model} {mode} {layout}: wrong numbers, {check.error:.3g} against {check.reference}")
    report_phase("warming up")
    for _ in range(NUM_WARM_UP):
        job.step()
    clock = time.process_time_ns if args.cpu_time else time.perf_counter_ns
    began = time.monotonic()
    effort = BreakdownEffort(num_rounds=args.rounds, last_begin_s=args.case_s)
    found = measure_breakdown(job, params, effort, report_phase, clock)
    return {
        "model": model, "mode": mode, "layout": layout, "batch": batch, "dtype": args.dtype,
        "device": args.device, "threads": len(cpus), "cpu_time": args.cpu_time,
        "torch": runtime.read_versions()["torch"],
        "step_s": found.step_s, "in_model_s": found.in_model_s, "alone_s": found.alone_s,
        "sum_over_step": found.sum_over_step, "sum_over_step_by_round": list(found.sums_over_steps),
        "watched_step_s": found.watched_step_s, "num_primitives": len(found.primitives),
        "num_checked": found.num_checked, "check_error": found.check_error,
        "within": None if found.is_doubtful else WITHIN[0] <= found.sum_over_step <= WITHIN[1],
        "disturbed": found.is_disturbed, "num_repeated": found.num_repeated, "notes": list(found.notes),
        "shares": {each.category: each.of_step for each in compute_shares(found)},
        "took_s": time.monotonic() - began,
    }  # fmt: skip


def describe_machine() -> str:
    """Return the machine and the date in one line."""
    name = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), name)
    load = os.getloadavg()[0]
    num = len(os.sched_getaffinity(0))
    return f"{num} CPUs of {name}; load average {load:.1f}; {datetime.date.today().isoformat()}"


def show(found: list[dict[str, Any]]) -> None:
    """Print a line for each case, and how many lie within the limits."""
    print(f"{'model':14} {'mode':6} {'layout':14} {'batch':>5} {'step':>10} {'in model':>9} {'alone':>7}  turns")
    for each in found:
        rounds = " ".join(f"{one:.2f}" for one in each["sum_over_step_by_round"])
        rounds += "  doubtful" if each["within"] is None else ""
        rounds += "  disturbed" if each["disturbed"] else ""
        in_model = each["in_model_s"] / each["step_s"]
        print(
            f"{each['model']:14} {each['mode']:6} {each['layout']:14} {each['batch']:5} "
            f"{each['step_s'] * 1e3:7.2f} ms {in_model:9.1%} {each['sum_over_step']:7.1%}  {rounds}"
        )
    sure = [each for each in found if each["within"] is not None]
    num = sum(each["within"] for each in sure)
    print(
        f"{num} of {len(sure)} sums of primitives alone lie within {WITHIN[0]:.0%} to {WITHIN[1]:.0%} "
        f"of the step; {len(found) - len(sure)} are doubtful, "
        f"{sum(each['disturbed'] for each in found)} were disturbed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-factor", type=float, default=1.0, help="times the usual batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case-s", type=float, default=60.0, help="no round of a case begins later")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time; for one thread")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cpu_time and (args.threads > 1 or args.device != "cpu"):
        parser.error("--cpu-time adds up the threads' time: it needs --threads 1 and --device cpu")
    if args.one:
        print(json.dumps(measure(*args.one, args)))
        return
    kept: list[dict[str, Any]] = []
    if args.out is not None and args.out.exists():
        kept = [each for each in json.loads(args.out.read_text())["cases"] if "within" in each]
    done = {(each["model"], each["mode"], each["layout"]) for each in kept}
    for case in list_cases(args.models):
        if case in done:
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--one", *case]
        limit_s = MAX_OVERTIME * args.case_s
        try:
            finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired:
            print(f"{' '.join(case)} aborted after {limit_s:.0f} s", file=sys.stderr)
            continue
        if finished.returncode:
            print(f"{' '.join(case)} failed", file=sys.stderr)
            continue
        kept.append(json.loads(finished.stdout.splitlines()[-1]))
        show(kept[-1:])
        sys.stdout.flush()
        if args.out is not None:
            figures = {"machine": describe_machine(), "cases": kept}
            aside = args.out.with_suffix(".part")
            aside.write_text(json.dumps(figures, indent=1) + "\n")
            os.replace(aside, args.out)
    print(describe_machine())
    show(kept)


if __name__ == "__main__":
    main()
