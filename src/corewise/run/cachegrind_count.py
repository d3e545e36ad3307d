"""Counts the instructions and simulated cache misses of a trial's step with cachegrind, where asked for.

Cachegrind, a tool of valgrind, executes a program on a simulated processor. It needs no PMU, but a step takes about
a hundred times as long. Two reduced runs, of n and 2n steps, differ by the counts of n steps.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from corewise.launch.environment import strip_controlled_variables
from corewise.launch.supervision.supervised_command import SupervisedCommand
from corewise.machine.counter_sources import VALGRIND_HINT, explain_missing_valgrind
from corewise.measured.cache_sizes import Cache
from corewise.measured.instruction_sets import build_isa_variables
from corewise.measured.parameters import Device, Isa
from corewise.measured.probes.counter_names import CACHEGRIND, NO_COUNTS
from corewise.measured.trial import Trial, to_json
from corewise.measured.worker.reduced_run import DONE_FILE
from corewise.owned_files import build_owned_prefix
from corewise.run.counter_metrics import derive_metrics, find_pixels
from corewise.run.plan import Plan
from corewise.study.trial_run import TrialRun
from corewise.text_format import format_memory
from corewise.trusted_paths import create_private_folder

# Both runs must end within this time.
COUNT_LIMIT_S = 1800.0
# So much work of a step exceeds the noise of starting the interpreter, which differs between two runs.
MIN_COUNTED_S = 0.05
MAX_COUNTED_STEPS = 500
# The two runs share the memory; each needs this much more than the trial, for translated code.
VALGRIND_BYTES = 3 << 30
LINE_BYTES = 64
# The ways of the simulated caches, before they are adapted to a number of sets that is a power of two.
USUAL_WAYS = {"I1": 8, "D1": 8, "LL": 16}
# The instruction sets that valgrind executes.
COUNTABLE = (Isa.DEFAULT, Isa.SSE41, Isa.AVX2)
# What would be simulated with these is the compiler, or the planning.
UNCOUNTABLE_EXECUTIONS = ("compile", "malleable")
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class CachegrindCount:
    """Metrics of a trial from cachegrind, and notes on how they were counted or why there are none."""

    metrics: Mapping[str, float]
    notes: tuple[str, ...]


class CountFailure(Exception):
    """Cachegrind gave no counts; the text says why."""


@dataclass(frozen=True)
class CountRequest:
    """The trial and what is known about it: the time and memory of a step, and the pixels of a sample."""

    trial: Trial
    worker: Path
    step_s: float
    peak_bytes: float
    pixels_per_sample: float
    caches: tuple[Cache, ...]
    memory_bytes: int
    limit_s: float = COUNT_LIMIT_S


def build_count_request(plan: Plan, trial: Trial, runs: Sequence[TrialRun], limit_s: float) -> CountRequest:
    """Collect what the count of a trial needs from its runs and its machine."""
    cpus = set(trial.ranks[0].cpus)
    ranks = runs[0].ranks
    return CountRequest(
        trial=trial,
        worker=plan.worker,
        step_s=statistics.median(run.metrics["step_s"] for run in runs),
        peak_bytes=max(run.metrics.get("peak_memory_bytes", 0.0) for run in runs),
        pixels_per_sample=find_pixels(trial, ranks[0] if ranks else {}),
        caches=tuple(cache for cache in plan.host.facts.caches if cpus.intersection(cache.shared_cpus)),
        memory_bytes=plan.host.allocation.memory_bytes,
        limit_s=limit_s,
    )


def count_with_cachegrind(request: CountRequest) -> CachegrindCount:
    """Count the step of a trial on one rank and one thread; a failure becomes a note."""
    try:
        _refuse_uncountable(request.trial)
        num_steps = choose_num_steps(request.step_s)
        options = build_cache_options(request.caches)
        started = time.monotonic()
        short, long = _run_both(request, num_steps, options)
        counts = {name: (long[name] - short[name]) / num_steps for name in ("instructions", "llc_misses")}
        metrics = derive_metrics(CACHEGRIND, counts, long["samples_per_step"], request.pixels_per_sample)
    except CountFailure as problem:
        return CachegrindCount({}, (f"{NO_COUNTS}{CACHEGRIND}: {problem}",))
    if not metrics:
        return CachegrindCount({}, (f"{NO_COUNTS}{CACHEGRIND}: the longer run did not execute more instructions",))
    steps = "1 step" if num_steps == 1 else f"{num_steps} steps"
    shown = ", ".join(f"{name} {format_memory(size)}" for name, size in list_simulated_sizes(request.caches).items())
    note = (
        f"cachegrind counted {steps} of one rank on one thread in {time.monotonic() - started:.0f} s; "
        f"valgrind has no AVX-512, so kernels used at most AVX2; simulated caches: {shown or 'as cachegrind chose'}"
    )
    return CachegrindCount(metrics, (note,))


def choose_num_steps(step_s: float) -> int:
    """Choose how many steps are counted: one, unless steps are very short.

    Example:
        >>> choose_num_steps(0.5), choose_num_steps(0.001)
        (1, 50)
    """
    return max(1, min(MAX_COUNTED_STEPS, math.ceil(MIN_COUNTED_S / max(step_s, 1e-9))))


def build_cache_options(caches: Iterable[Cache]) -> list[str]:
    """Build the options that give the simulated caches the sizes of the machine's."""
    sizes = list_simulated_sizes(caches)
    return [f"--{name}={size},{fit_ways(size, USUAL_WAYS[name])},{LINE_BYTES}" for name, size in sizes.items()]


def list_simulated_sizes(caches: Iterable[Cache]) -> dict[str, int]:
    """Return the sizes of the first level and of the last level, by cachegrind's names; without unknown ones."""
    sizes: dict[str, int] = {}
    known = [cache for cache in caches if cache.size_bytes % LINE_BYTES == 0 and cache.size_bytes > 0]
    for cache in known:
        if cache.level == 1 and cache.type != "Data":
            sizes.setdefault("I1", cache.size_bytes)
        if cache.level == 1 and cache.type != "Instruction":
            sizes.setdefault("D1", cache.size_bytes)
    last = max((cache.level for cache in known), default=1)
    if last > 1:
        sizes["LL"] = next(c.size_bytes for c in known if c.level == last and c.type != "Instruction")
    return sizes


def fit_ways(size_bytes: int, usual: int) -> int:
    """Return the number of ways nearest to the usual one that gives a power of two of sets.

    Cachegrind needs such a number; processors with caches of 36 MiB, say, hash addresses instead.

    Example:
        >>> fit_ways(32 << 20, 16), fit_ways(36 << 20, 16), fit_ways(48 << 10, 8)
        (16, 18, 6)
    """
    num_lines = size_bytes // LINE_BYTES
    odd = num_lines
    while odd % 2 == 0:
        odd //= 2
    choices = [odd << bit for bit in range(num_lines.bit_length()) if (odd << bit) <= num_lines]
    return min(choices, key=lambda ways: abs(ways - usual))


def parse_counts(text: str) -> dict[str, float]:
    """Parse a file of cachegrind: executed instructions, and misses of the last level."""
    lines = dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(("events: ", "summary: ")))
    try:
        counts = dict(zip(lines["events"].split(), map(float, lines["summary"].split()), strict=True))
        misses = sum(counts[name] for name in ("ILmr", "DLmr", "DLmw"))
        return {"instructions": counts["Ir"], "llc_misses": misses}
    except (KeyError, ValueError) as problem:
        raise CountFailure(f"cachegrind wrote a file that cannot be read: {problem}") from problem


def build_count_environment(trial: Trial, outer: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a reduced run: that of the trial, with one thread and at most AVX2."""
    isa = Isa.AVX2 if trial.params.isa == Isa.DEFAULT else trial.params.isa
    threads = {name: "1" for name in trial.env if name.endswith(("NUM_THREADS", "NPROC", "INTRAOP_THREADS"))}
    # Equal hashes make both runs execute the same instructions before the first step.
    fixed = {"PYTHONHASHSEED": "0", **build_isa_variables(isa)}
    return {**strip_controlled_variables(outer), **trial.env, **threads, **fixed}


def build_count_command(
    trial: Trial, worker: Path, num_steps: int, folder: Path, options: Iterable[str]
) -> tuple[str, ...]:
    """Build the command that counts a reduced run; valgrind comes right before the interpreter."""
    *prefix, python = trial.python
    counter = ("valgrind", "--tool=cachegrind", "--cache-sim=yes", *options)
    out = (f"--cachegrind-out-file={folder}/counts-%p",)
    return (*prefix, *counter, *out, python, str(worker), "count", "--steps", str(num_steps), "--out", str(folder))


def _refuse_uncountable(trial: Trial) -> None:
    params = trial.params
    missing = explain_missing_valgrind()
    # Behind a prefix, such as a container, valgrind must be installed there.
    if missing and len(trial.python) == 1:
        raise CountFailure(missing)
    if params.device != Device.CPU:
        raise CountFailure("cachegrind counts on the CPU only; use device: cpu")
    if params.isa not in COUNTABLE:
        raise CountFailure(f"valgrind has no AVX-512 and no AMX, which isa: {params.isa} asks for")
    if params.execution in UNCOUNTABLE_EXECUTIONS:
        raise CountFailure(f"execution: {params.execution} prepares code for minutes under valgrind; use eager")


def _run_both(request: CountRequest, num_steps: int, options: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Run n and 2n steps, at the same time if the machine has the memory and CPUs for both."""
    until = time.monotonic() + request.limit_s
    with ExitStack() as stack:
        folder = Path(create_private_folder(build_owned_prefix("corewise-count")))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        both = 2 * (request.peak_bytes + VALGRIND_BYTES) <= request.memory_bytes
        runs: list[_CountRun] = []
        for factor in (1, 2):
            run = _CountRun(request, factor * num_steps, folder, options)
            stack.callback(run.end)
            runs.append(run)
            if not both:
                run.wait(until)
        for run in runs:
            run.wait(until)
        return runs[0].read_counts(), runs[1].read_counts()


class _CountRun:
    """One reduced run under cachegrind, which ends with us."""

    def __init__(self, request: CountRequest, num_steps: int, folder: Path, options: list[str]) -> None:
        self._folder, self._num_steps, self._limit_s = folder, num_steps, request.limit_s
        self._log = folder / f"log-{num_steps}"
        trial_file = folder / f"trial-{num_steps}.json"
        trial_file.write_text(json.dumps(to_json(request.trial)), encoding="utf-8")
        command = build_count_command(request.trial, request.worker, num_steps, folder, options)
        with open(trial_file, "rb") as stdin, open(self._log, "wb") as log:
            self._process = SupervisedCommand(
                command,
                env=build_count_environment(request.trial, os.environ),
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, until: float) -> None:
        if not self._process.wait(max(0.0, until - time.monotonic())):
            raise CountFailure(f"cachegrind did not end within {self._limit_s:.0f} s; use a smaller batch or image")

    def read_counts(self) -> dict[str, float]:
        """Read the counts of the run and the samples of a step."""
        end = self._process.read_end()
        if end.problem:
            raise CountFailure(f"valgrind cannot be started: {end.problem}; {VALGRIND_HINT}")
        done = self._folder / DONE_FILE.format(num_steps=self._num_steps)
        if end.code != 0 or not done.is_file():
            raise CountFailure(f"the run under valgrind ended with code {end.code}: {self._read_last_line()}")
        values = json.loads(done.read_text(encoding="utf-8"))
        counts = self._folder / f"counts-{values['pid']}"
        if not counts.is_file():
            raise CountFailure("valgrind counted no Python: `python:` names a script; name the binary that it starts")
        return {**parse_counts(_read_ends(counts)), "samples_per_step": float(values["samples_per_step"])}

    def end(self) -> None:
        self._process.end()

    def _read_last_line(self) -> str:
        text = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("==", "--"))]
        return lines[-1].strip() if lines else "no output"


def _read_ends(path: Path) -> str:
    """Read the lines that hold the names and sums of the events; the lines between are per function."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(line for line in file if line.startswith(("events: ", "summary: ")))
