"""The measured side's command line: serve the control side, run one trial by hand, or tell versions.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Mapping, Optional, Sequence

from corewise.machine import pinning
from corewise.spec.trial import trial_from_json
from corewise.worker.channel import Channel

PACKAGES = (
    *("torch", "tensorflow", "numpy", "Pillow", "mpi4py", "intel-openmp"),
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)
TENSORFLOW_BUILDS = ("tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "intel-tensorflow")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="worker.pyz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    serve_args = verbs.add_parser("serve", help="fork ranks as told on standard input")
    serve_args.add_argument("--runtime", required=True)
    serve_args.add_argument("--cpus", required=True, help="CPUs this warm parent is confined to")
    serve_args.add_argument("--cold", action="store_true", help="import the framework in each rank instead")
    run_args = verbs.add_parser("run", help="run one trial file once, from a cold start")
    run_args.add_argument("trial", type=Path)
    run_args.add_argument("--out", type=Path, required=True, help="folder for the result files")
    verbs.add_parser("probe", help="print versions as JSON")
    args = parser.parse_args(argv)
    if args.verb == "probe":
        print(json.dumps(probe()))
        return 0
    if args.verb == "run":
        return run_by_hand(args.trial, args.out)
    return _serve(args.runtime, [int(c) for c in args.cpus.split(",") if c], not args.cold)


def probe() -> dict[str, object]:
    """Versions of the interpreter and of what lies beside it, nothing imported."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        versions.update(_first_version(name, (name,)))
    if "tensorflow" not in versions:  # the same module by another name
        versions.update(_first_version("tensorflow", TENSORFLOW_BUILDS))
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": versions,
    }


def _first_version(name: str, packages: Sequence[str]) -> dict[str, str]:
    """Under this name the version of the first package that is installed; nothing where none is."""
    for package in packages:
        try:
            return {name: importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return {}


def run_by_hand(trial_file: Path, out_dir: Path) -> int:
    """0 when every rank left a good result; the trial's environment must already be set."""
    from corewise.worker.zygote import Zygote

    asked_at_ns = time.monotonic_ns()
    trial = trial_from_json(json.loads(trial_file.read_text(encoding="utf-8")))
    wrong = unset_variables(trial.env, os.environ)
    if wrong:
        print(
            f"{trial_file}: set these first, as `corewise plan` prints them: {' '.join(wrong)}",
            file=sys.stderr,
        )
        return 2
    out_dir.mkdir(parents=True, exist_ok=True)
    if trial.params["bind"] != "none":
        os.sched_setaffinity(0, trial.ranks[0].cpus)
    zygote = Zygote(str(trial.params["runtime"]), warm=trial.protocol.start == "fork")
    zygote.run(trial, out_dir, asked_at_ns)
    bad = 0
    for rank in range(trial.num_ranks):
        result = json.loads((out_dir / f"rank-{rank}.json").read_text(encoding="utf-8"))
        samples = sorted(result["samples_s"])
        told = f"median step {samples[len(samples) // 2]:.6g} s" if samples else result["reason"]
        print(f"rank {rank}: {result['status']}: {told}")
        bad += result["status"] != "ok"
    return 1 if bad else 0


def unset_variables(wanted: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """The assignments the trial asks for that the environment lacks."""
    return [f"{name}={value}" for name, value in wanted.items() if actual.get(name) != value]


def _serve(runtime: str, cpus: Sequence[int], warm: bool) -> int:
    from corewise.worker.serve import serve

    control = Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # whatever the framework prints must not reach the control pipe
    pinning.die_with_parent()
    pinning.set_process_name("cw-warm")
    if cpus:
        os.sched_setaffinity(0, cpus)
    serve(runtime, warm, control)
    return 0
