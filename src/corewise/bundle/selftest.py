"""The self-test of an installation: `python -m corewise.bundle.selftest` prints PASSED, or what failed."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from corewise.bundle.contents import find_missing_chart_package
from corewise.owned_files import build_owned_prefix

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


class SelfTestError(Exception):
    """A check of the self-test failed; the message says how."""


def main() -> int:
    """Run all checks in a temporary folder; return 0 when all of them passed."""
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix=build_owned_prefix("corewise-selftest")) as folder:
        for name, check in list_checks(Path(folder)).items():
            with _report_check(name) as failures:
                check()
            num_failed += len(failures)
    print("self-test FAILED" if num_failed else "self-test PASSED", flush=True)
    return 1 if num_failed else 0


def list_checks(folder: Path) -> dict[str, Callable[[], None]]:
    """List the checks of this installation: a study for each runtime, and commands that read its records."""
    checks: dict[str, Callable[[], None]] = {
        "help and usage errors are shown": lambda: _check_help(folder),
        "doctor describes this machine": lambda: _check_doctor(folder),
        "a study on numpy runs to its end": lambda: _check_study(folder, "numpy"),
    }
    if importlib.util.find_spec("torch"):
        checks["a study on torch runs to its end"] = lambda: _check_study(folder, "torch")
    checks["status and show read the records"] = lambda: _check_records(folder)
    if importlib.util.find_spec("duckdb"):
        checks["the records are exported as parquet"] = lambda: _check_output(folder, "export", "records.parquet")
    # A worker-only install may see some of these packages in the Python that it extends.
    if find_missing_chart_package() is None:
        checks["a report is written"] = lambda: _check_output(folder, "report", "report.html")
    return checks


def _check_help(folder: Path) -> None:
    for arguments in (["--help"], ["run", "--help"]):
        if "Usage:" not in _run_corewise(folder, *arguments):
            raise SelfTestError(f"corewise {' '.join(arguments)} shows no help")
    _run_corewise(folder, "run", "--no-such-option", exit_code=2)


def _check_doctor(folder: Path) -> None:
    machine = json.loads(_run_corewise(folder, "doctor", "--json"))
    if not machine["allocation"]["cpus"]:
        raise SelfTestError("doctor found no usable CPU")


def _check_study(folder: Path, runtime: str) -> None:
    study = folder / f"{runtime}.yaml"
    study.write_text(STUDY.format(runtime=runtime), encoding="utf-8")
    outcome = json.loads(_run_corewise(folder, "run", str(study), "--store", "store", "--json"))
    if outcome["num_ok"] != 1:
        raise SelfTestError(f"the trial did not succeed: {json.dumps(outcome)}")


def _check_records(folder: Path) -> None:
    _run_corewise(folder, "status", "--store", "store", "--json")
    tables = json.loads(_run_corewise(folder, "show", "--store", "store", "--json"))
    rates = [row["samples_per_s"] for table in tables for row in table["rows"]]
    if not rates or not all(rate and rate > 0 for rate in rates):
        raise SelfTestError(f"the records contain no rates: {rates}")


def _check_output(folder: Path, verb: str, name: str) -> None:
    _run_corewise(folder, verb, "--store", "store", "-o", name)
    if not (folder / name).stat().st_size:
        raise SelfTestError(f"{name} is empty")


def _run_corewise(folder: Path, *arguments: str, exit_code: int = 0) -> str:
    """Run a command and return its output; raises SelfTestError when it ends with another exit code."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "corewise", *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as problem:
        raise SelfTestError(f"corewise {arguments[0]} did not end within {TIMEOUT_S} s") from problem
    if done.returncode != exit_code:
        lines = (done.stdout + done.stderr).splitlines()[-LINES_SHOWN:]
        raise SelfTestError("\n    ".join([f"corewise {arguments[0]} ended with {done.returncode}:", *lines]))
    return done.stdout


@contextmanager
def _report_check(name: str) -> Iterator[list[str]]:
    """Print how a check ended; the list then holds its explain_failure, if any."""
    failures: list[str] = []
    try:
        yield failures
    except (SelfTestError, OSError, ValueError, KeyError, TypeError) as problem:
        failures.append(str(problem))
        print(f"  failed  {name}: {problem}", flush=True)
    else:
        print(f"  ok      {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
