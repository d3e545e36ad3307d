"""oneDNN's benchdnn: the words that run a problem, and its figures read back.

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
UNKNOWN_OPTION = "unknown option"  # what all versions say
BEGINNING = ("perf", "%engine%", "%impl%", "%name%")  # of every template that benchdnn has itself


class BenchdnnError(Exception):
    """benchdnn could not be run, or said something else than figures."""


class UnknownOptionError(BenchdnnError):
    """This version of benchdnn does not have an option."""


@dataclasses.dataclass(frozen=True)
class BenchdnnFigure:
    """One problem as benchdnn timed it."""

    problem: str  # its options and descriptor, as benchdnn repeats them
    implementation: str
    min_s: float
    avg_s: float
    gflop: float  # of one execution; 0 where benchdnn counts none

    @property
    def best_gflop_per_s(self) -> float:
        return self.gflop / self.min_s if self.min_s else 0.0

    def facts(self) -> Mapping[str, Any]:
        """The figure as a record keeps it; no times where oneDNN has no such primitive."""
        if not self.min_s:
            return {"benchdnn_kernel": "unimplemented"}
        return {
            "benchdnn_kernel": self.implementation,
            "benchdnn_min_s": self.min_s,
            "benchdnn_avg_s": self.avg_s,
            "benchdnn_gflop_per_s": self.gflop / self.avg_s if self.avg_s else 0.0,
        }


def read_benchdnn_output(text: str) -> Tuple[BenchdnnFigure, ...]:
    """The figures in what benchdnn printed with `--mode=P`, in the templates `def` and `csv`."""
    entries = DEFAULT_TEMPLATE.split(",")
    found: List[BenchdnnFigure] = []
    for line in text.splitlines():
        template = TEMPLATE.match(line.strip())
        if template is not None:
            entries = template.group("entries").strip().split(",")
        elif line.startswith("perf,") and not line.startswith("perf,engine,"):
            found.append(_figure(line.strip(), entries))
    return tuple(found)


def benchdnn_words(
    program: str,
    driver: str,
    problem: str,
    options: Mapping[str, str],
    *,
    num_times: int = 0,
    max_ms: int = 0,
) -> List[str]:
    """The command that times one problem; fixed times, or as many as fit into the milliseconds."""
    words = [program, f"--{driver}", "--mode=P"]
    if num_times:
        words.append(f"--fix-times-per-prb={num_times}")
    if max_ms:
        words.append(f"--max-ms-per-prb={max_ms}")
    return [*words, *(f"--{name}={value}" for name, value in options.items()), problem]


def run_benchdnn(words: Sequence[str], num_threads: int, timeout_s: float = 600.0) -> BenchdnnFigure:
    """The figure of one problem; the program inherits the caller's CPUs."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    try:
        done = subprocess.run(
            list(words), capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise BenchdnnError(no_program(words[0])) from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BenchdnnError(f"{words[0]} could not be run: {problem}") from problem
    figures = read_benchdnn_output(done.stdout)
    if len(figures) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        kind = UnknownOptionError if UNKNOWN_OPTION in done.stderr + done.stdout else BenchdnnError
        raise kind(f"{words[0]} gave no figure for {words[-1]}; it said: {said}")
    return figures[0]


def run_first_known(
    commands: Sequence[Sequence[str]], num_threads: int, timeout_s: float = 600.0
) -> BenchdnnFigure:
    """The figure of the first command whose options this version of benchdnn has."""
    for words in commands[:-1]:
        try:
            return run_benchdnn(words, num_threads, timeout_s)
        except UnknownOptionError:
            continue
    return run_benchdnn(commands[-1], num_threads, timeout_s)


def is_program(name: str) -> bool:
    """True where a path or a name in the search path can be executed here."""
    return shutil.which(name) is not None


def no_program(name: str) -> str:
    """Why a program cannot be run, and what to do."""
    if os.path.exists(name):
        return f"{name} is no program that may be executed; name benchdnn itself"
    return f"there is no program {name}; build oneDNN's tests/benchdnn and name the program"


def _figure(line: str, entries: Sequence[str]) -> BenchdnnFigure:
    """One line: what stands before and behind the problem is counted off, for the problem may hold commas."""
    words = line.split(",")
    if tuple(entries[:4]) != BEGINNING:
        raise BenchdnnError("benchdnn printed another template than its own; leave --perf-template out")
    behind = [entry for entry in entries if _is_number(entry)]
    if len(words) < len(BEGINNING) + 1 + len(behind):
        raise BenchdnnError(f"benchdnn printed an incomplete line: {line}")
    values: Dict[str, float] = {}
    for entry, word in zip(behind, words[-len(behind) :]):
        try:
            values[entry.strip("%")] = float(word)
        except ValueError:
            raise BenchdnnError(f"benchdnn printed {word!r} where {entry} belongs: {line}") from None
    problem = ",".join(words[len(BEGINNING) : -len(behind)])
    return BenchdnnFigure(
        problem,
        words[2],
        _value(values, "-time") / 1e3,
        _value(values, "0time") / 1e3,
        values.get("Gops", 0.0),
    )


def _is_number(entry: str) -> bool:
    return (
        re.fullmatch(r"%[-0+]?[KMG]?(time|flops|ops|ctime|cptime|cpdtime|bw|freq|clocks)%", entry) is not None
    )


def _value(values: Mapping[str, float], name: str) -> float:
    found: Optional[float] = values.get(name)
    if found is None:
        raise BenchdnnError(f"benchdnn's template lacks %{name}%; leave --perf-template out")
    return found
