"""The self-test of an installation: `python -m corewise.bundle.selftest` says PASSED, or what failed."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 600
LINES_SHOWN = 15
STUDY = """\
question: Does this installation measure?
workload: matmul
mode: infer
runtime: {runtime}
fixed: {{threads: 1, batch: 1, args.size: 64}}
protocol: {{preset: quick, min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 1}}
"""


class Failed(Exception):
    """What did not work, in words."""


def main() -> int:
    """Run all checks in a folder that then goes away; 0 when all of them passed."""
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="corewise-selftest-") as folder:
        for name, check in checks(Path(folder)).items():
            with _told(name) as failures:
                check()
            num_failed += len(failures)
    print("self-test FAILED" if num_failed else "self-test PASSED", flush=True)
    return 1 if num_failed else 0


def checks(folder: Path) -> dict[str, Callable[[], None]]:
    """The checks that this installation must pass: a study for each runtime, and what reads its records."""
    found: dict[str, Callable[[], None]] = {
        "help is shown and a wrong option told": lambda: _helps(folder),
        "doctor describes this machine": lambda: _describes_machine(folder),
        "a study on numpy runs to its end": lambda: _measures(folder, "numpy"),
    }
    if importlib.util.find_spec("torch"):
        found["a study on torch runs to its end"] = lambda: _measures(folder, "torch")
    found["status and show read the records"] = lambda: _reads(folder)
    if importlib.util.find_spec("duckdb"):
        found["the records are exported as parquet"] = lambda: _writes(folder, "export", "records.parquet")
    # A worker-only install may see the altair of the Python it lies in, and cannot write pages all the same.
    if importlib.util.find_spec("altair") and importlib.util.find_spec("corewise.report.page"):
        found["a report is written"] = lambda: _writes(folder, "report", "report.html")
    return found


def _helps(folder: Path) -> None:
    for words in (["--help"], ["run", "--help"]):
        if "Usage:" not in _corewise(folder, *words):
            raise Failed(f"corewise {' '.join(words)} shows no help")
    _corewise(folder, "run", "--no-such-option", ends_with=2)


def _describes_machine(folder: Path) -> None:
    told = json.loads(_corewise(folder, "doctor", "--json"))
    if not told["allocation"]["cpus"]:
        raise Failed("doctor found no CPU that may be used")


def _measures(folder: Path, runtime: str) -> None:
    study = folder / f"{runtime}.yaml"
    study.write_text(STUDY.format(runtime=runtime), encoding="utf-8")
    told = json.loads(_corewise(folder, "run", str(study), "--store", "store", "--json"))
    if told["num_ok"] != 1:
        raise Failed(f"no good record: {json.dumps(told)}")


def _reads(folder: Path) -> None:
    _corewise(folder, "status", "--store", "store", "--json")
    tables = json.loads(_corewise(folder, "show", "--store", "store", "--json"))
    rates = [row["samples_per_s"] for table in tables for row in table["rows"]]
    if not rates or not all(rate and rate > 0 for rate in rates):
        raise Failed(f"the records hold no rates: {rates}")


def _writes(folder: Path, verb: str, name: str) -> None:
    _corewise(folder, verb, "--store", "store", "-o", name)
    if not (folder / name).stat().st_size:
        raise Failed(f"{name} is empty")


def _corewise(folder: Path, *words: str, ends_with: int = 0) -> str:
    """What a command prints; Failed with its complaint when it does not end as it should."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "corewise", *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as problem:
        raise Failed(f"corewise {words[0]} was not done after {TIMEOUT_S} s") from problem
    if done.returncode != ends_with:
        said = (done.stdout + done.stderr).splitlines()[-LINES_SHOWN:]
        raise Failed("\n    ".join([f"corewise {words[0]} ended with {done.returncode}:", *said]))
    return done.stdout


@contextmanager
def _told(name: str) -> Iterator[list[str]]:
    """Print how a check ended; the list then holds its failure, if any."""
    failures: list[str] = []
    try:
        yield failures
    except (Failed, OSError, ValueError, KeyError, TypeError) as problem:
        failures.append(str(problem))
        print(f"  failed  {name}: {problem}", flush=True)
    else:
        print(f"  ok      {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
