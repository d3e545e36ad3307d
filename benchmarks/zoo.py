"""Try the library's functions on many public architectures: does each work, is it right, is it faster?

    python benchmarks/zoo.py --models bert,gpt2,resnet --functions freeze,malleable --json zoo.json

Each pair of a model and a function runs in a fresh process with a time limit, so a crash is a row of the
table. Models have few layers and random weights (`zoo_models.py`). With `--size base` they have the widths,
tokens and images of published base versions. Results are compared with the plain module's on the example, on
fresh inputs, and on a batch of another size. Then plain and changed module run in turns, and the median ratio
of consecutive timings is the speed. With `--jobs 8 --cpus-per-job 2` eight pairs run at once, each pinned to
two CPUs of its own.

A row is one of: works; refused (with the reason; nothing changes for the user); wrong (another result);
crashed (any other error, a signal, or the time limit).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import zoo_models  # noqa: E402

# Relative error of the whole result above which it is wrong, by function. Formats of fewer bits are judged by
# their error, which is printed; here only results without any likeness are wrong.
MAX_ERRORS = {"freeze": 1e-3, "freeze_bf16": 0.1, "malleable": 1e-3, "quantize": 0.25, "use_fast_kernels": 1e-3}
# Seconds of calls in one timing; shorter calls are repeated.
MIN_TIMING_S = 0.02
# Variables that malleable asks for. They are set for its processes only, and for the plain module in them.
# Variables of the caller take precedence: with other load on the machine, OMP_WAIT_POLICY=PASSIVE spins less.
ENVIRONMENT = {"GOMP_SPINCOUNT": "300000", "OMP_WAIT_POLICY": "ACTIVE"}
# Functions that keep float32, and those that compute in fewer bits.
EXACT_FUNCTIONS, SHORT_FUNCTIONS = ("freeze", "malleable"), ("freeze_bf16", "quantize")
WORKS, REFUSED, WRONG, CRASHED = "works", "refused", "wrong", "crashed"
Call = Callable[..., Any]


class RefusedError(Exception):
    """Raised with the reason if a function says that it does not support a model."""


def apply_freeze(model: Any, inputs: dict[str, Any]) -> Call:
    """Freeze the model in float32."""
    return _freeze(model, inputs, {})


def apply_freeze_bf16(model: Any, inputs: dict[str, Any]) -> Call:
    """Freeze the model in bfloat16, and call it under autocast."""
    import torch

    frozen = _freeze(model, inputs, {"dtype": torch.bfloat16})

    def call(**given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return frozen(**given)

    return call


def _freeze(model: Any, inputs: dict[str, Any], options: dict[str, Any]) -> Call:
    import corewise
    from corewise.accelerate.unsupported import Unsupported

    try:
        frozen: Call = corewise.freeze(model, inputs, **options)  # type: ignore[operator]
    except Unsupported as problem:
        raise RefusedError(str(problem)) from problem
    return frozen


def apply_malleable(model: Any, inputs: dict[str, Any]) -> Call:
    """Plan malleable execution; a model that runs unchanged counts as refused."""
    import corewise

    planned: Any = corewise.malleable(model, inputs, keep=False)  # type: ignore[operator]
    text = planned.explain()
    if "operator" not in text:
        raise RefusedError(text)
    return planned  # type: ignore[no-any-return]


def apply_quantize(model: Any, inputs: dict[str, Any]) -> Call:
    """Quantize the model to int8."""
    import corewise

    try:
        quantized: Call = corewise.quantize(model, inputs)  # type: ignore[operator]
    except ValueError as problem:
        raise RefusedError(str(problem)) from problem
    return quantized


def apply_fast_kernels(model: Any, inputs: dict[str, Any]) -> Call:
    """Run layers on fast kernels; images and weights become channels_last, as these kernels need."""
    import torch

    import corewise
    from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers

    changed: Any = corewise.use_fast_kernels(model)  # type: ignore[operator]
    if not count_fast_layers(changed):
        raise RefusedError("no layer of this model has a fast kernel")
    changed = changed.to(memory_format=torch.channels_last)

    def call(**given: Any) -> Any:
        images = {name: one for name, one in given.items() if isinstance(one, torch.Tensor) and one.dim() == 4}
        given.update({name: one.to(memory_format=torch.channels_last) for name, one in images.items()})
        return changed(**given)

    return call


FUNCTIONS: dict[str, Callable[[Any, dict[str, Any]], Call]] = {
    "freeze": apply_freeze,
    "freeze_bf16": apply_freeze_bf16,
    "malleable": apply_malleable,
    "quantize": apply_quantize,
    "use_fast_kernels": apply_fast_kernels,
}


@dataclasses.dataclass
class Row:
    """What became of one function on one model."""

    model: str
    function: str
    status: str
    # Why it was refused, is wrong, or crashed; for what works, a note on inputs of other sizes.
    reason: str = ""
    # How many times as fast as the plain float32 module: median and quartiles of the rounds.
    speed: float | None = None
    quartiles: tuple[float, float] | None = None
    # The same against the plain module under autocast, for bfloat16.
    speed_over_autocast: float | None = None
    error: float | None = None
    plain_ms: float | None = None
    ready_s: float | None = None


def compute_error(expected: Any, actual: Any) -> float:
    """Return the largest relative error of a tensor of the result; infinite if its structure differs."""
    ones, others = list_tensors(expected), list_tensors(actual)
    if len(ones) != len(others):
        return math.inf
    return max((_compute_tensor_error(one, other) for one, other in zip(ones, others, strict=True)), default=0.0)


def _compute_tensor_error(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return math.inf
    one, other = one.double(), other.double()
    # Masked places hold infinity or the smallest number; the difference of equal ones is nothing.
    difference = (one - other).masked_fill(one == other, 0.0)
    scale = float(one[one.isfinite() & (one.abs() < 1e30)].norm())
    error = float(difference.norm()) / max(scale, 1e-6 * math.sqrt(max(1, one.numel())))
    return error if math.isfinite(error) else math.inf


def list_tensors(result: Any) -> list[Any]:
    """List the tensors of a result, through mappings, sequences, dataclasses and caches of transformers."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict) or hasattr(result, "items"):
        return [tensor for _, part in result.items() for tensor in list_tensors(part)]
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in list_tensors(part)]
    if dataclasses.is_dataclass(result) or type(result).__module__.startswith("transformers."):
        names = [name for name in vars(result) if not name.startswith("_")]
        return [tensor for name in names for tensor in list_tensors(getattr(result, name))]
    return []


def measure_pair(model_name: str, function: str, rounds: int, threads: int) -> Row:
    """Apply one function to one model in this process; check results and measure speed."""
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    row = Row(model_name, function, CRASHED)
    with torch.no_grad():
        module, make_inputs = zoo_models.list_models()[model_name]()
        plain, _ = zoo_models.list_models()[model_name]()
        example = make_inputs(0, zoo_models.BATCH)
        plain(**make_inputs(0, zoo_models.BATCH))
        began = time.perf_counter()
        try:
            changed = FUNCTIONS[function](module, example)
        except RefusedError as problem:
            row.status, row.reason = REFUSED, str(problem)
            return row
        changed(**make_inputs(0, zoo_models.BATCH))
        row.ready_s = time.perf_counter() - began
        row.error = 0.0
        for seed in (0, 1):
            given = make_inputs(seed, zoo_models.BATCH)
            row.error = max(row.error, compute_error(plain(**given), changed(**make_inputs(seed, zoo_models.BATCH))))
            if row.error > MAX_ERRORS[function]:
                row.status = WRONG
                row.reason = f"relative error {row.error:.2g} on {'fresh inputs' if seed else 'the example'}"
                return row
        row.status, row.reason = check_other_batch(plain, changed, make_inputs, function)
        if row.status == WORKS:
            _measure_speed(row, plain, changed, make_inputs, rounds)
    return row


def check_other_batch(plain: Call, changed: Call, make_inputs: Any, function: str) -> tuple[str, str]:
    """Compare results on a batch of another size."""
    batch = zoo_models.BATCH + 1
    try:
        actual = changed(**make_inputs(2, batch))
    except Exception as problem:
        return CRASHED, f"batch of {batch}: {describe_error(problem)}"
    error = compute_error(plain(**make_inputs(2, batch)), actual)
    if error > MAX_ERRORS[function]:
        return WRONG, f"relative error {error:.2g} on a batch of {batch}"
    return WORKS, ""


def _measure_speed(row: Row, plain: Call, changed: Call, make_inputs: Any, rounds: int) -> None:
    """Time plain and changed module in turns."""
    import torch

    given = make_inputs(0, zoo_models.BATCH)

    def call_autocast(**inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(**inputs)

    calls = {"plain": plain, "changed": changed}
    if row.function == "freeze_bf16":
        calls["autocast"] = call_autocast
    num_calls = 1
    for call in calls.values():
        call(**given)
    took_s = time_calls(plain, given, 1)
    num_calls = max(1, math.ceil(MIN_TIMING_S / max(1e-6, took_s)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls) if number % 2 else reversed(list(calls)):
            seconds[name].append(time_calls(calls[name], given, num_calls))
    ratios = sorted(one / other for one, other in zip(seconds["plain"], seconds["changed"], strict=True))
    row.speed = statistics.median(ratios)
    row.quartiles = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    row.plain_ms = 1e3 * statistics.median(seconds["plain"])
    if "autocast" in seconds:
        pairs = zip(seconds["autocast"], seconds["changed"], strict=True)
        row.speed_over_autocast = statistics.median(one / other for one, other in pairs)


def time_calls(call: Call, inputs: dict[str, Any], num_calls: int) -> float:
    """Return the seconds per call."""
    began = time.perf_counter()
    for _ in range(num_calls):
        call(**inputs)
    return (time.perf_counter() - began) / num_calls


def describe_error(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:300]}" if lines else type(problem).__name__


def run_worker(options: argparse.Namespace) -> None:
    """Measure one pair in this process and write its row to a file."""
    model, function = options.worker
    try:
        row = measure_pair(model, function, options.rounds, options.cpus_per_job)
    except Exception as problem:
        row = Row(model, function, CRASHED, describe_error(problem))
        if options.traceback:
            raise
    Path(options.result).write_text(json.dumps(dataclasses.asdict(row)))
    # Plans and thread teams must not turn a result into a crash at exit.
    os._exit(0)


def start_worker(model: str, function: str, options: argparse.Namespace, cpus: Sequence[int]) -> Row:
    """Measure one pair in a fresh process on these CPUs."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        result, errors = Path(folder) / "row.json", Path(folder) / "stderr"
        command = [sys.executable, str(HERE / "zoo.py"), "--worker", model, function, "--result", str(result)]
        command += ["--rounds", str(options.rounds), "--cpus-per-job", str(len(cpus) or options.cpus_per_job)]
        asked = ENVIRONMENT if function == "malleable" else {}
        num_threads = str(len(cpus) or options.cpus_per_job)
        environment = {**asked, **os.environ, "OMP_NUM_THREADS": num_threads, zoo_models.SIZE_VARIABLE: options.size}
        pin = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=stream, preexec_fn=pin, cwd=folder
            )
            try:
                code = process.wait(options.time_limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return Row(model, function, CRASHED, f"not finished after {options.time_limit:g} s")
        if result.exists():
            found = json.loads(result.read_text())
            return Row(**found)
        lines = errors.read_text(errors="replace").strip().splitlines() or ["no message"]
        return Row(model, function, CRASHED, f"exit code {code}: {lines[-1][:300]}")


def choose_cpus(num_jobs: int, cpus_per_job: int) -> list[list[int]]:
    """Give each job CPUs of its own; a single job is not pinned."""
    cpus = sorted(os.sched_getaffinity(0))
    if num_jobs == 1:
        return [[]]
    if num_jobs * cpus_per_job > len(cpus):
        raise SystemExit(f"--jobs {num_jobs} with {cpus_per_job} CPUs each need more than the {len(cpus)} CPUs here")
    return [cpus[i * cpus_per_job : (i + 1) * cpus_per_job] for i in range(num_jobs)]


def format_row(row: Row) -> str:
    speed = f"{row.speed:5.2f}x" if row.speed is not None else "      "
    spread = f" [{row.quartiles[0]:.2f}, {row.quartiles[1]:.2f}]" if row.quartiles is not None else ""
    error = f" error {row.error:.0e}" if row.error is not None else ""
    over = f" ({row.speed_over_autocast:.2f}x over autocast)" if row.speed_over_autocast is not None else ""
    plain = f" plain {row.plain_ms:.1f} ms" if row.plain_ms is not None else ""
    ready = f" ready in {row.ready_s:.1f} s" if row.ready_s is not None else ""
    figures = f"{speed}{spread}{over}{error}{plain}{ready}"
    return f"{row.model:20} {row.function:17} {row.status:8} {figures} {row.reason}".rstrip()


def summarize(rows: Sequence[Row]) -> list[str]:
    """Return one line per function: counts and geometric means; then the best function of each model."""
    lines = []
    for function in dict.fromkeys(row.function for row in rows):
        mine = [row for row in rows if row.function == function]
        counts = Counter(row.status for row in mine)
        speeds = [row.speed for row in mine if row.speed is not None]
        text = ", ".join(f"{counts[status]} {status}" for status in (WORKS, REFUSED, WRONG, CRASHED))
        slower = [f"{row.model} {row.speed:.2f}" for row in mine if row.speed is not None and row.speed < 0.97]
        mean = f"; geometric mean {compute_geometric_mean(speeds):.3f}x" if speeds else ""
        lines.append(f"{function}: {len(mine)} models: {text}{mean}; slower by over 3 %: {', '.join(slower) or 'none'}")
    for functions in (EXACT_FUNCTIONS, (*EXACT_FUNCTIONS, *SHORT_FUNCTIONS)):
        mine = [row for row in rows if row.function in functions]
        if len({row.function for row in mine}) == len(functions):
            mean = compute_geometric_mean(list(find_best_speeds(mine).values()))
            lines.append(f"best of {', '.join(functions)} and plain: geometric mean {mean:.3f}x")
    return lines


def find_best_speeds(rows: Sequence[Row]) -> dict[str, float]:
    """Return for each model the speed of the best of its rows; 1 is the plain module's."""
    best: dict[str, float] = {}
    for row in rows:
        best[row.model] = max(best.get(row.model, 1.0), row.speed or 1.0)
    return best


def compute_geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def run_all(options: argparse.Namespace, pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Run all pairs, several at once, and print each row when it is there."""
    free: queue.Queue[list[int]] = queue.Queue()
    for cpus in choose_cpus(options.jobs, options.cpus_per_job):
        free.put(cpus)

    def run(pair: tuple[str, str]) -> Row:
        cpus = free.get()
        try:
            return start_worker(*pair, options, cpus)
        finally:
            free.put(cpus)

    rows: list[Row] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(run, pair) for pair in pairs]
        for number, done in enumerate(concurrent.futures.as_completed(waiting), 1):
            rows.append(done.result())
            print(f"[{number}/{len(pairs)}] {format_row(rows[-1])}", flush=True)
            if options.json is not None:
                write_rows(options.json, rows)
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows so that an interrupted run leaves a whole file."""
    from measuring import describe_machine

    aside = path.with_name(path.name + ".new")
    found = {"machine": describe_machine(), "rows": [dataclasses.asdict(row) for row in rows]}
    aside.write_text(json.dumps(found, indent=1) + "\n")
    aside.replace(path)


def choose_names(wanted: str, known: Sequence[str], what: str) -> list[str]:
    names = [name.strip() for name in wanted.split(",") if name.strip()] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown {what}: {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names, separated by commas; all by default")
    parser.add_argument("--functions", default="", help=f"of {', '.join(FUNCTIONS)}; all by default")
    parser.add_argument("--rounds", type=int, default=11, help="timings of either module")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for one model and function")
    parser.add_argument("--jobs", type=int, default=1, help="pairs that run at once, each on its own CPUs")
    parser.add_argument("--cpus-per-job", type=int, default=2)
    parser.add_argument("--size", choices=zoo_models.SIZES, default="small", help="of models and inputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--list", action="store_true", help="print the names of models and end")
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "FUNCTION"), help=argparse.SUPPRESS)
    parser.add_argument("--result", default=os.devnull, help=argparse.SUPPRESS)
    parser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(options)
    known = list(zoo_models.list_models())
    if options.list:
        print("\n".join(known))
        return
    models = choose_names(options.models, known, "models")
    functions = choose_names(options.functions, list(FUNCTIONS), "functions")
    pairs = [(model, function) for model in models for function in functions]
    rows = run_all(options, pairs)
    order = {pair: place for place, pair in enumerate(pairs)}
    rows.sort(key=lambda row: order[row.model, row.function])
    print()
    with contextlib.suppress(BrokenPipeError):
        for row in rows:
            print(format_row(row))
        print()
        print("\n".join(summarize(rows)))


if __name__ == "__main__":
    main()
