"""The tiled product on frameworks that allocate every result: separate memory, limits and kills."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, arrays_of_any, need_framework, run_for_json
from tests.measured.workloads.kernels.separate_device import load_separate_pieces

from corewise.measured.runtimes.kernel_job import estimate_peak_bytes
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import KernelSetup
from corewise.measured.workloads.kernels.tiled_product import run as tiled_product_run
from corewise.measured.workloads.kernels.tiled_product.run import count_tiles_within
from corewise.measured.workloads.kernels.tiled_product.workload import TILED_PRODUCT

COMMAND = [sys.executable, "-m", "corewise.measured.workloads.kernels.tiled_product", "--threads", "1", "--tile", "256"]
WITHIN_A_LIMIT = """
import json
from corewise.measured.workloads.kernels.tiled_product import run as running
from corewise.measured.workloads.kernels.framework_arrays import load_arrays
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.tiled_product.__main__ import _build_parser
from corewise.measured.workloads.kernels.tiled_product.multiply import multiply

runtime, arguments = {runtime!r}, {arguments!r}
arrays = load_arrays(runtime, "cpu", 1, "float32")
running.start_within_limit(arrays, load_pieces(arrays), "float32", 2**18)
limit = running.read_resident_bytes() + running.OVERHEAD_BYTES + 40 * 2**20
arguments += ["--runtime", runtime, "--memory", str(limit), "--json"]
found = multiply(_build_parser().parse_args(arguments))
print(json.dumps({{**found, "limit": limit}}))
"""


def build_run(arrays: Any, folder: Path, **args: Any) -> Any:
    args = {**TILED_PRODUCT.parameters, **args}
    return TILED_PRODUCT.build(KernelSetup(arrays, "float32", args, seed=2, folder=str(folder), num_threads=1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_device_with_separate_memory_gets_copies(
    framework: str, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = arrays_of_any(framework, need)
    monkeypatch.setattr(tiled_product_run, "load_pieces", load_separate_pieces)
    run = build_run(arrays, tmp_path, size=100, tile=16)
    for _ in range(2):
        assert run.check().passed
    assert all(isinstance(buffer, np.ndarray) for buffer in run._memory.staging)
    assert set(run._memory.inputs) == set(run._memory.sums) == {None}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_additional_tiles_of_a_product_are_within_the_limit(framework: str, need: Need) -> None:
    arrays = arrays_of_any(framework, need)
    num_spare = load_pieces(arrays).num_spare
    assert num_spare > 0
    assert count_tiles_within(2**30, 2**20, is_host=False, num_spare=num_spare) == 1024 - num_spare
    # There are four tiles, and those that the framework needs in addition.
    by_default = {"size": 64, "tile": 16}
    assert estimate_peak_bytes(TILED_PRODUCT, by_default, "float32", arrays) >= (4 + num_spare) * 4 * 16**2
    limited = {**by_default, "memory_bytes": 2**30}
    assert estimate_peak_bytes(TILED_PRODUCT, limited, "float32", arrays) < 1.2 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_command_resumes_within_the_memory_limit(framework: str, need: Need, tmp_path: Path) -> None:
    need_framework(need, framework)
    random = np.random.default_rng(4)
    for name, shape in (("a", (7000, 300)), ("b", (300, 7000))):
        np.save(tmp_path / f"{name}.npy", random.standard_normal(shape, dtype=np.float32))
    folder = tmp_path / "tiles"
    own = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"), "--folder", str(folder)]
    # The command runs at low priority: on a busy machine it would otherwise end before it is killed.
    running = subprocess.Popen(
        ["nice", "-n", "5", *COMMAND, *own, "--runtime", framework],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 100
    while len(list(folder.glob("C_*.tile"))) < 12 and time.monotonic() < deadline:
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    num_finished = len(list(folder.glob("C_*.tile")))
    assert 12 <= num_finished < 784
    source = WITHIN_A_LIMIT.format(runtime=framework, arguments=[*own, "--threads", "1", "--tile", "256"])
    found = run_for_json(source, {}, tmp_path)
    assert found["num_tiles_kept"] == num_finished
    assert found["num_tiles_written"] == 784 - num_finished
    assert found["check_passed"]
    # The product alone has 784 tiles.
    assert found["tiles_of_memory"] <= 160
    assert found["peak_memory_bytes"] <= found["limit"]
