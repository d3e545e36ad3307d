"""Helpers for tests of jax and tensorflow: their arrays in this process, and fresh processes."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FRAMEWORKS = ("jax", "tensorflow")
Need = Callable[[bool, str], None]
# End like ranks do: threads of a framework may abort a process during the shutdown of Python.
ENDS = "\nimport os, sys\nsys.stdout.flush()\nsys.stderr.flush()\nos._exit(0)\n"


def need_framework(need: Need, name: str) -> None:
    need(importlib.util.find_spec(name) is not None, f"{name} is not installed")


def make_arrays(name: str) -> Any:
    """Return the arrays of the framework on the CPU."""
    if name == "jax":
        from corewise.measured.runtimes.jax.arrays import JaxArrays

        return JaxArrays()
    from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays

    return TensorflowArrays()


def arrays_of_any(name: str, need: Need) -> Any:
    """Return the arrays of any of the four frameworks on the CPU; skip if it is missing."""
    need_framework(need, name)
    if name in FRAMEWORKS:
        return make_arrays(name)
    if name == "torch":
        from corewise.measured.runtimes.torch.arrays import TorchArrays

        return TorchArrays()
    from corewise.measured.runtimes.numpy.arrays import NumpyArrays

    return NumpyArrays()


def run_for_json(source: str, env: Mapping[str, str], folder: Path) -> Any:
    """Run source code in a fresh process and return the JSON of its last line."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", source + ENDS],
        env={**clean, "TF_CPP_MIN_LOG_LEVEL": "2", **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
