"""Compare the timed loop around a convolution with the bare operator, the kernel alone, and benchdnn.

For each of the 20 published convolutions of ResNet-50, in one process and by turns:
  bare      torch.nn.functional.conv2d, or its backward operator, in a three-line loop on separate tensors
  ours      a step of the workload `convolution` (plain tensors, reorders included) in the worker's timed loop
  alone     the workload with reorders excluded: channels last, weights prepared; the rest is the tax
  benchdnn  oneDNN's own program on the same problem, if it is named

  python benchmarks/convolutions.py --out convolutions.json
  python benchmarks/convolutions.py --threads 1 --mb 4 --benchdnn ~/oneDNN/build/tests/benchdnn/benchdnn
  python benchmarks/convolutions.py --device cuda --mb 256 --dtype bfloat16

Needs torch and numpy alone. A figure of a round is its mean step; a ratio is the median over pairs of rounds.
With other load on the machine use --threads 1 and the ratio of CPU times: wall time includes others' turns.
"""

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from corewise.measured.parameters import Device, DType, MemoryFormat, Mode, TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.primitives.convolution import OUTPUT_MASKS, build_arguments, prepare_convolution
from corewise.measured.worker.sampling import SamplingPlan, take_samples
from corewise.measured.workloads.primitives.benchdnn import BenchdnnError, build_benchdnn_command, run_first_known
from corewise.measured.workloads.primitives.convolution import (
    DIRECTIONS,
    format_benchdnn_types,
    is_forward,
    separate_types,
)
from corewise.measured.workloads.primitives.convolution_problem import ConvolutionProblem, parse_convolution
from corewise.measured.workloads.primitives.shipped_problems import load_shipped_problems

PROBLEMS = "pytorch-cpus"
WARM_UP_ROUNDS = 1


def make_parameters(options: argparse.Namespace, problem: str, memory_format: str, reorders: str) -> TrialParameters:
    """Return a trial's parameters as the worker would receive them."""
    return TrialParameters(
        workload="convolution",
        mode=Mode.INFER,
        device=Device(options.device),
        threads=options.threads,
        batch=1,
        dtype=DType(options.dtype),
        memory_format=MemoryFormat(memory_format),
        arguments={
            "problem": problem, "direction": options.direction, "reorders": reorders, "mb": options.mb,
        },
    )  # fmt: skip


def build_bare_operator(problem: ConvolutionProblem, options: argparse.Namespace, seed: int = 1) -> Callable[[], Any]:
    """Return the plain operator on separate tensors."""
    dtype, device = getattr(torch, options.dtype), options.device
    generator = torch.Generator().manual_seed(seed)

    def draw_normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    source, weights = draw_normal(problem.source_shape), draw_normal(problem.weights_shape)
    arguments = build_arguments(problem)
    stride, padding, dilation, groups = arguments.values()
    if is_forward(options.direction):
        bias = draw_normal((problem.oc,)) if options.direction == "FWD_B" else None
        weights.requires_grad_(options.direction != "FWD_I")
        return lambda: torch.nn.functional.conv2d(source, weights, bias, stride, padding, dilation, groups)
    gradient = draw_normal(problem.destination_shape)
    backward, wanted = torch.ops.aten.convolution_backward.default, OUTPUT_MASKS[options.direction]
    rest = ([problem.oc], stride, padding, dilation, False, [0, 0], groups, wanted)
    return lambda: backward(gradient, source, weights, *rest)


def build_bare_step(problem: ConvolutionProblem, options: argparse.Namespace, job: Any) -> Callable[[], Any]:
    """Return as many plain executions as a step of the job has; on a GPU, on as many inputs in turn."""
    if options.device == "cpu":
        return build_bare_operator(problem, options)
    num_inputs = int(job.read_facts()["num_inputs_in_turn"])
    operators = [build_bare_operator(problem, options, seed) for seed in range(1, num_inputs + 1)]
    num_rounds = round(job.samples_per_step) // num_inputs

    def step() -> None:
        for _ in range(num_rounds):
            for operate in operators:
                operate()

    return step


def time_bare(operate: Callable[[], Any], num_steps: int, device: str) -> float:
    """Return the seconds of a step in a plain loop."""
    wait = torch.cuda.synchronize if device == "cuda" else None
    began = time.perf_counter()
    for _ in range(num_steps):
        operate()
        if wait is not None:
            wait()
    return (time.perf_counter() - began) / num_steps


def time_ours(step: Callable[[], Any], num_steps: int, bests: list[float]) -> float:
    """Return the mean seconds of a step in the worker's loop, and append the shortest to `bests`."""
    found = take_samples(step, SamplingPlan(time.monotonic_ns(), num_steps, 1, 0.0))
    bests.append(min(found.samples_s))
    return statistics.fmean(found.samples_s)


def measure(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the figures of one problem."""
    text = f"{PROBLEMS}:{number}"
    problem = parse_convolution(load_shipped_problems(PROBLEMS)[number - 1]).replace_mb(options.mb)
    context = RankContext(0, 1, "", options.threads)
    ours = prepare_convolution(make_parameters(options, text, "contiguous", "included"), context)
    check = ours.check()
    if not check.passed:
        raise SystemExit(f"{text}: wrong numbers, error {check.error:g} of {check.tolerance:g} allowed")
    alone = prepare_convolution(make_parameters(options, text, "channels_last", "excluded"), context)
    alone_check = alone.check()
    bare = build_bare_step(problem, options, ours)
    bests: dict[str, list[float]] = {"ours": [], "alone": []}
    sides: dict[str, Callable[[int], float]] = {
        "bare": lambda n: time_bare(bare, n, options.device),
        "ours": lambda n: time_ours(ours.step, n, bests["ours"]),
        "alone": lambda n: time_ours(alone.step, n, bests["alone"]),
    }
    # Executions of the operator in a step; on a GPU there are many.
    executions = dict.fromkeys(("bare", "ours"), ours.samples_per_step) | {"alone": alone.samples_per_step}
    once_s = time_bare(bare, 2, options.device)
    num_steps = max(1, round(options.round_s / once_s))
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_rounds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(WARM_UP_ROUNDS + options.rounds):
        order = list(sides) if turn % 2 else list(reversed(sides))
        for name in order:
            began_cpu_s = time.process_time()
            step_s = sides[name](num_steps)
            if turn >= WARM_UP_ROUNDS:
                rounds[name].append(step_s / executions[name])
                cpu_s = (time.process_time() - began_cpu_s) / num_steps
                cpu_rounds[name].append(cpu_s / executions[name])
    return {
        "problem": str(problem), "number": number, "num_steps": num_steps,
        "rounds_s": rounds, "rounds_cpu_s": cpu_rounds,
        "alone_best_s": min(bests["alone"]) / executions["alone"],
        "gflop": problem.flops / 1e9, "check_error": check.error, "alone_check_error": alone_check.error,
        "ours_facts": _select_onednn_facts(ours.read_facts()), "alone_facts": _select_onednn_facts(alone.read_facts()),
        "benchdnn": run_benchdnn(str(problem), options),
    }  # fmt: skip


def _select_onednn_facts(facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if "onednn" in name}


def run_benchdnn(problem: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return benchdnn's times for the problem if --benchdnn names the program."""
    if not options.benchdnn:
        return None
    types = format_benchdnn_types(options.dtype, "u8")
    # Older versions of benchdnn know only `cfg`.
    commands = [
        build_benchdnn_command(
            options.benchdnn,
            "conv",
            problem,
            {"dir": options.direction, option: value},
            max_ms=round(3000 * options.round_s),
        )
        for option, value in (("dt", separate_types(types)), ("cfg", types))
    ]
    try:
        return dict(run_first_known(commands, options.threads).to_facts())
    except BenchdnnError as error:
        return {"error": str(error)}


def compute_paired_ratio(rounds: dict[str, list[float]], above: str, below: str) -> float:
    """Return the median ratio of rounds that were measured one after the other."""
    return statistics.median(a / b for a, b in zip(rounds[above], rounds[below], strict=True))


def compute_geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def show(results: list[dict[str, Any]]) -> dict[str, float]:
    """Print the table and return the figures over all problems."""
    print(
        f"{'':>3} {'bare ms':>9} {'ours ms':>9} {'ours/bare':>9} {'CPU time':>8} {'alone ms':>9} {'tax':>6} "
        f"{'benchdnn':>9} {'alone/b.':>8}  kernel alone"
    )
    loops, of_cpu, taxes, against = [], [], [], []
    for one in results:
        rounds = one["rounds_s"]
        loops.append(compute_paired_ratio(rounds, "ours", "bare"))
        of_cpu.append(compute_paired_ratio(one["rounds_cpu_s"], "ours", "bare"))
        taxes.append(compute_paired_ratio(rounds, "ours", "alone"))
        median = {name: 1e3 * statistics.median(values) for name, values in rounds.items()}
        theirs_s = (one["benchdnn"] or {}).get("benchdnn_min_s")
        comparison = f"{'-':>9} {'-':>8}"
        if theirs_s:
            # Both are the best of all executions.
            against.append(one["alone_best_s"] / theirs_s)
            comparison = f"{1e3 * theirs_s:9.3f} {against[-1]:8.3f}"
        kernels = ", ".join(one["alone_facts"].get("onednn_kernels", []))
        print(
            f"{one['number']:>3} {median['bare']:9.3f} {median['ours']:9.3f} "
            f"{loops[-1]:9.4f} {of_cpu[-1]:8.4f} "
            f"{median['alone']:9.3f} {100 * (taxes[-1] - 1):5.0f}% {comparison}  {kernels}"
        )
    summary = {
        "ours_over_bare": compute_geometric_mean(loops),
        "ours_over_bare_in_cpu_time": compute_geometric_mean(of_cpu),
        "ours_over_alone": compute_geometric_mean(taxes),
    }
    if against:
        summary["best_alone_over_best_benchdnn"] = compute_geometric_mean(against)
    for name, value in summary.items():
        print(f"{name:32} {value:.4f}  geometric mean of {len(results)}")
    return summary


def describe_machine() -> dict[str, Any]:
    """Return the machine, the software and the date."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": model, "num_cpus": len(os.sched_getaffinity(0)), "gpu": gpu, "torch": torch.__version__,
        "load": os.getloadavg(), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the raw figures here as JSON")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mb", type=int, default=16, help="minibatch; 0: 256, as published")
    parser.add_argument("--direction", default="FWD_I", choices=DIRECTIONS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--round-s", type=float, default=0.1, help="seconds of one round")
    parser.add_argument("--problems", default="1-20", help="numbers, as in 1-5,9")
    parser.add_argument("--benchdnn", default="", help="the path of a benchdnn program")
    return parser.parse_args()


def parse_numbers(text: str) -> list[int]:
    """Parse numbers such as `1-3,7`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    results = []
    for number in parse_numbers(options.problems):
        if sys.stderr.isatty():
            print(f"problem {number}", end="\r", file=sys.stderr)
        try:
            results.append(measure(number, options))
        except Infeasible as reason:
            print(f"problem {number} is not available here: {reason}")
    if not results:
        raise SystemExit("nothing was measured")
    about = {**describe_machine(), "threads": options.threads, "mb": options.mb, "direction": options.direction}
    print(f"{about['cpu']}, {options.threads} threads, torch {about['torch']}, load {about['load'][0]:.1f}")
    summary = show(results)
    if options.out is not None:
        aside = options.out.with_suffix(".part")
        aside.write_text(json.dumps({"machine": about, "summary": summary, "problems": results}, indent=1) + "\n")
        os.replace(aside, options.out)


if __name__ == "__main__":
    main()
