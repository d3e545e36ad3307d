"""Kernels as jobs: memory, seeds, clocks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.random_fill import PIECE_ELEMENTS, fill_normal
from corewise.measured.runtimes.base import Infeasible, NotNow, RankContext
from corewise.measured.runtimes.devices.gpu_clocks import parse_clocks, sample_clocks
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes, read_total_host_bytes
from corewise.measured.runtimes.kernel_job import EXTRA_BYTES, prepare_kernel, require_memory
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.workloads.kernels.gemm import GEMM
from corewise.measured.workloads.kernels.stream import STREAM

Params = Callable[..., TrialParameters]


def test_missing_memory_is_reported_in_bytes_with_the_size_that_fits() -> None:
    with pytest.raises(Infeasible) as refused:
        require_memory(GEMM, {"size": 4096}, "float64", 26_400_008 + 2**26, NumpyArrays())
    assert str(refused.value) == (
        "gemm needs 510027366 bytes (0.51 GB) in float64 on numpy, 93508872 (0.0935 GB) are free; "
        "the largest that fits is size 1000"
    )


def test_where_nothing_fits_no_size_is_offered() -> None:
    with pytest.raises(Infeasible, match="no smaller size fits either"):
        require_memory(STREAM, {"operation": "copy", "size_bytes": 8}, "float64", 7, NumpyArrays())


def test_missing_free_memory_is_refused_for_now_and_missing_total_memory_permanently() -> None:
    with pytest.raises(NotNow):
        require_memory(GEMM, {"size": 100}, "float64", 10, NumpyArrays())
    with pytest.raises(Infeasible) as refused:
        require_memory(GEMM, {"size": 10**7}, "float64", 10, NumpyArrays())
    assert not isinstance(refused.value, NotNow)


class Small(NumpyArrays):
    def free_bytes(self) -> int:
        return int(1.1 * 3 * 8 * 100**2) + EXTRA_BYTES


def test_ranks_share_the_memory_of_their_host(params: Params, tmp_path: Path) -> None:
    asked = params(workload="gemm", dtype="float64", size=100)
    for num_ranks in (1, 2):
        context = RankContext(rank=0, num_ranks=num_ranks, rendezvous=str(tmp_path), num_cpus=1)
        if num_ranks == 1:
            prepare_kernel(GEMM, Small(), asked, context)
        else:
            with pytest.raises(NotNow, match=r"33686432 .* are free"):
                prepare_kernel(GEMM, Small(), asked, context)


def test_a_rank_that_comes_late_has_its_share_of_what_was_free_before_the_first(params: Params, tmp_path: Path) -> None:
    asked = params(workload="gemm", dtype="float64", size=100)
    # The other rank has taken its half meanwhile.
    before = 2 * Small().free_bytes()
    job = prepare_kernel(GEMM, Small(), asked, RankContext(1, 2, str(tmp_path), 1, host_free_bytes=before))
    assert job.check().passed


def test_numpy_refuses_threads_that_it_cannot_use(params: Params, alone: RankContext) -> None:
    asked = params(workload="stream", dtype="float64", size_bytes=800, threads=2)
    with pytest.raises(Infeasible, match="threads 2: numpy runs stream in one thread"):
        prepare_kernel(STREAM, NumpyArrays(), asked, alone)


@pytest.mark.parametrize(("cache_bytes", "fit"), [(10**6, "fit"), (2000, "partly stay in"), (100, "")])
def test_arrays_that_fit_a_cache_are_noted(
    params: Params, alone: RankContext, monkeypatch: pytest.MonkeyPatch, cache_bytes: int, fit: str
) -> None:
    monkeypatch.setattr("corewise.measured.workloads.kernels.stream.read_last_level_cache_bytes", lambda: cache_bytes)
    asked = params(workload="stream", dtype="float64", size_bytes=800)
    notes = prepare_kernel(STREAM, NumpyArrays(), asked, alone).collect_notes()
    note = f"its arrays (2400 bytes) {fit} the last-level caches ({cache_bytes})"
    assert notes == ((f"{note}: this is not memory bandwidth",) if fit else ())


def test_a_name_that_is_no_parameter_suggests_the_nearest(params: Params, alone: RankContext) -> None:
    with pytest.raises(Infeasible, match="no parameter 'oparation'; did you mean 'operation'"):
        find_runtime("numpy").prepare(params(workload="stream", oparation="copy"), alone)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_numpy_refuses_formats_without_fast_products(params: Params, alone: RankContext, dtype: str) -> None:
    with pytest.raises(Infeasible, match=f"numpy has no .*{dtype}"):
        find_runtime("numpy").prepare(params(workload="gemm", size=8, dtype=dtype), alone).check()


def test_a_gpu_that_is_not_there_is_refused(params: Params, alone: RankContext) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(Infeasible, match="torch sees no CUDA device"):
        find_runtime("torch").prepare(params(workload="stream", dtype="float64", device="cuda"), alone)


def test_a_short_precision_of_other_than_float32_is_refused(params: Params, alone: RankContext) -> None:
    pytest.importorskip("torch")
    asked = params(workload="gemm", size=8, dtype="float64", float32_precision="tf32")
    with pytest.raises(Infeasible, match="float32_precision tf32: dtype is float64"):
        find_runtime("torch").prepare(asked, alone)


def test_random_numbers_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for num_cpus in (1, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, num=num_cpus: set(range(num)))
        array = np.empty(2 * PIECE_ELEMENTS + 17, np.float32)
        fill_normal(array, 5)
        found.append(array)
    assert np.array_equal(*found)
    assert not np.array_equal(found[0][:1000], found[0][PIECE_ELEMENTS : PIECE_ELEMENTS + 1000])


def make_group(root: Path, name: str, limit: str, used: int, spare: int) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {spare}\n")


def test_free_memory_is_the_least_of_the_machine_and_every_group_above(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert read_free_host_bytes(tmp_path) == 4000 * 1024
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    (proc / "self" / "mountinfo").write_text("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    make_group(groups, "job/step", "max", 10, 0)
    assert read_total_host_bytes(tmp_path) == 9000 * 1024
    assert read_free_host_bytes(tmp_path) == 4000 * 1024
    make_group(groups, "job", "1000000", 300_000, 50_000)
    assert read_free_host_bytes(tmp_path) == 750_000
    assert read_total_host_bytes(tmp_path) == 1_000_000
    make_group(groups, "job", "1000", 300_000, 0)
    assert read_free_host_bytes(tmp_path) == 0


def test_the_clocks_of_a_gpu_are_read_while_it_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nsleep 0.1\necho '1980, 3201, 1980, 690.12, 55, 0x0000000000000004'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    steps: list[int] = []
    facts = sample_clocks(lambda: steps.append(1), "GPU-1")
    assert steps
    assert (facts["gpu_sm_mhz"], facts["gpu_power_w"], facts["gpu_throttle_reasons"]) == (
        1980.0,
        690.12,
        "0x0000000000000004",
    )


def test_clocks_that_cannot_be_read_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse_clocks("1980, [N/A], 1980, 690.12, 55, 0x4") == {
        "gpu_sm_mhz": 1980.0,
        "gpu_max_sm_mhz": 1980.0,
        "gpu_power_w": 690.12,
        "gpu_temperature_c": 55.0,
        "gpu_throttle_reasons": "0x4",
    }
    assert parse_clocks("No devices were found") == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sample_clocks(lambda: None, "GPU-1") == {}
