"""The tiled product on frameworks that make every result anew: memory of their own, limits and kills."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_apart import apart
from tests.runtimes.xla_frameworks import FRAMEWORKS, Need, arrays_of_any, need_framework, told_by

from corewise.runtimes.kernel_job import announced_bytes
from corewise.workloads.kernels import tiled_product_run
from corewise.workloads.kernels.base import Setup
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.kernels.tiled_product import TILED_PRODUCT
from corewise.workloads.kernels.tiled_product_run import tiles_within

COMMAND = [
    sys.executable,
    "-m",
    "corewise.workloads.kernels.tiled_product",
    "--threads",
    "1",
    "--tile",
    "256",
]
WITHIN_A_LIMIT = """
import json
from corewise.workloads.kernels import tiled_product_run as running
from corewise.workloads.kernels.framework_arrays import arrays_of
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.kernels.tiled_product_command import _parser
from corewise.workloads.kernels.tiled_product_multiply import multiply

runtime, words = {runtime!r}, {words!r}
arrays = arrays_of(runtime, "cpu", 1, "float32")
running.start_within_limit(arrays, pieces_of(arrays), "float32", 2**18)
limit = running.resident_bytes() + running.BESIDE_TILES_BYTES + 40 * 2**20
found = multiply(_parser().parse_args([*words, "--runtime", runtime, "--memory", str(limit), "--json"]))
print(json.dumps({{**found, "limit": limit}}))
"""


def built(arrays: Any, folder: Path, **args: Any) -> Any:
    args = {**TILED_PRODUCT.parameters, **args}
    return TILED_PRODUCT.build(Setup(arrays, "float32", args, seed=2, folder=str(folder), num_threads=1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_device_with_memory_of_its_own_gets_copies(
    framework: str, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = arrays_of_any(framework, need)
    monkeypatch.setattr(tiled_product_run, "pieces_of", apart)
    run = built(arrays, tmp_path, size=100, tile=16)
    for _ in range(2):
        assert run.check().passed
    assert all(isinstance(buffer, np.ndarray) for buffer in run._memory.staging)
    assert set(run._memory.inputs) == set(run._memory.sums) == {None}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tiles_that_a_product_takes_besides_are_within_the_limit(framework: str, need: Need) -> None:
    arrays = arrays_of_any(framework, need)
    num_spare = pieces_of(arrays).num_spare
    assert num_spare > 0
    assert tiles_within(2**30, 2**20, is_host=False, num_spare=num_spare) == 1024 - num_spare
    by_default = {"size": 64, "tile": 16}  # four tiles, and those besides
    assert announced_bytes(TILED_PRODUCT, by_default, "float32", arrays) >= (4 + num_spare) * 4 * 16**2
    limited = {**by_default, "memory_bytes": 2**30}
    assert announced_bytes(TILED_PRODUCT, limited, "float32", arrays) < 1.2 * 2**30


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_command_goes_on_within_the_memory_given(framework: str, need: Need, tmp_path: Path) -> None:
    need_framework(need, framework)
    random = np.random.default_rng(4)
    for name, shape in (("a", (7000, 300)), ("b", (300, 7000))):
        np.save(tmp_path / f"{name}.npy", random.standard_normal(shape, dtype=np.float32))
    folder = tmp_path / "tiles"
    own = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"), "--folder", str(folder)]
    # The command gives way to who watches it: on a busy machine it would have ended before it is killed.
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
    source = WITHIN_A_LIMIT.format(runtime=framework, words=[*own, "--threads", "1", "--tile", "256"])
    found = told_by(source, {}, tmp_path)
    assert found["num_tiles_kept"] == num_finished
    assert found["num_tiles_written"] == 784 - num_finished
    assert found["check_passed"]
    assert found["tiles_of_memory"] <= 160  # the product alone has 784
    assert found["peak_memory_bytes"] <= found["limit"]
