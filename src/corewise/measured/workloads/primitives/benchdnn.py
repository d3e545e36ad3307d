"""Run oneDNN's benchdnn on a problem and parse its output.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

TEMPLATE = re.compile(r"^(?:Output template|Template entries): (?P<entries>.+)$")
DEFAULT_TEMPLATE = "perf,%engine%,%impl%,%name%,%prb%,%Gops%,%+ctime%,%-time%,%-Gflops%,%0time%,%0Gflops%"
# All versions of benchdnn print this for an option that they do not have.
UNKNOWN_OPTION = "unknown option"
# The first entries of every built-in template of benchdnn.
BEGINNING = ("perf", "%engine%", "%impl%", "%name%")


class BenchdnnError(Exception):
    """benchdnn could not be run, or its output could not be parsed."""


class UnknownOptionError(BenchdnnError):
    """This version of benchdnn lacks an option."""


@dataclasses.dataclass(frozen=True)
class BenchdnnFigure:
    """The timing of one problem by benchdnn.

    `problem` holds the options and the descriptor as benchdnn prints them. `gflop` is the work of one
    execution; 0 if benchdnn counts none.
    """

    problem: str
    implementation: str
    min_s: float
    avg_s: float
    gflop: float

    @property
    def best_gflop_per_s(self) -> float:
        return self.gflop / self.min_s if self.min_s else 0.0

    def to_facts(self) -> Mapping[str, Any]:
        """Return the figure as facts of a record, without times if oneDNN lacks the primitive."""
        if not self.min_s:
            return {"benchdnn_kernel": "unimplemented"}
        return {
            "benchdnn_kernel": self.implementation,
            "benchdnn_min_s": self.min_s,
            "benchdnn_avg_s": self.avg_s,
            "benchdnn_gflop_per_s": self.gflop / self.avg_s if self.avg_s else 0.0,
        }


def read_benchdnn_output(text: str) -> Tuple[BenchdnnFigure, ...]:
    """Parse the figures in the output of `--mode=P`, for the templates `def` and `csv`."""
    entries = DEFAULT_TEMPLATE.split(",")
    figures: List[BenchdnnFigure] = []
    for line in text.splitlines():
        template = TEMPLATE.match(line.strip())
        if template is not None:
            entries = template.group("entries").strip().split(",")
        elif line.startswith("perf,") and not line.startswith("perf,engine,"):
            figures.append(_parse_figure(line.strip(), entries))
    return tuple(figures)


def build_benchdnn_command(
    program: str, driver: str, problem: str, options: Mapping[str, str], *, num_times: int = 0, max_ms: int = 0
) -> List[str]:
    """Build the command that times one problem, `num_times` executions or as many as fit into `max_ms`."""
    command = [program, f"--{driver}", "--mode=P"]
    if num_times:
        command.append(f"--fix-times-per-prb={num_times}")
    if max_ms:
        command.append(f"--max-ms-per-prb={max_ms}")
    return [*command, *(f"--{name}={value}" for name, value in options.items()), problem]


def run_benchdnn(command: Sequence[str], num_threads: int, timeout_s: float = 600.0) -> BenchdnnFigure:
    """Run benchdnn on one problem; the program inherits the caller's CPUs."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise BenchdnnError(explain_missing_program(command[0])) from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BenchdnnError(f"{command[0]} could not be run: {problem}") from problem
    figures = read_benchdnn_output(done.stdout)
    if len(figures) != 1:
        message = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        error_type = UnknownOptionError if UNKNOWN_OPTION in done.stderr + done.stdout else BenchdnnError
        raise error_type(f"{command[0]} gave no figure for {command[-1]}; it printed: {message}")
    return figures[0]


def run_first_known(commands: Sequence[Sequence[str]], num_threads: int, timeout_s: float = 600.0) -> BenchdnnFigure:
    """Run the first command whose options this version of benchdnn supports."""
    for command in commands[:-1]:
        try:
            return run_benchdnn(command, num_threads, timeout_s)
        except UnknownOptionError:
            continue
    return run_benchdnn(commands[-1], num_threads, timeout_s)


def is_executable(name: str) -> bool:
    """Return True if a path, or a name in the search path, can be executed."""
    return shutil.which(name) is not None


def explain_missing_program(name: str) -> str:
    """Return why a program cannot be run and what to do."""
    if os.path.exists(name):
        return f"{name} is not executable; name the benchdnn program"
    return f"program {name} does not exist; build oneDNN's tests/benchdnn and name the program"


def _parse_figure(line: str, entries: Sequence[str]) -> BenchdnnFigure:
    """Parse one line; entries are counted from both ends, because the problem may contain commas."""
    fields = line.split(",")
    if tuple(entries[:4]) != BEGINNING:
        raise BenchdnnError("benchdnn used a custom template; leave --perf-template out")
    numbers = [entry for entry in entries if _is_number(entry)]
    if len(fields) < len(BEGINNING) + 1 + len(numbers):
        raise BenchdnnError(f"benchdnn printed an incomplete line: {line}")
    values: Dict[str, float] = {}
    for entry, field in zip(numbers, fields[-len(numbers) :]):
        try:
            values[entry.strip("%")] = float(field)
        except ValueError:
            raise BenchdnnError(f"benchdnn printed {field!r} where {entry} belongs: {line}") from None
    problem = ",".join(fields[len(BEGINNING) : -len(numbers)])
    return BenchdnnFigure(
        problem,
        fields[2],
        _require_value(values, "-time") / 1e3,
        _require_value(values, "0time") / 1e3,
        values.get("Gops", 0.0),
    )


def _is_number(entry: str) -> bool:
    return re.fullmatch(r"%[-0+]?[KMG]?(time|flops|ops|ctime|cptime|cpdtime|bw|freq|clocks)%", entry) is not None


def _require_value(values: Mapping[str, float], name: str) -> float:
    value: Optional[float] = values.get(name)
    if value is None:
        raise BenchdnnError(f"benchdnn's template lacks %{name}%; leave --perf-template out")
    return value
