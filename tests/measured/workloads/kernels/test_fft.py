"""The Fourier transform, direct, by tiles and in pieces: results, odd lengths, and refused parameters."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, arrays_of_any
from tests.measured.workloads.kernels.separate_device import SeparateDevice, load_separate_pieces

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.devices import host_memory
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.fft import merge, streamed
from corewise.measured.workloads.kernels.fft import tiles as fft_tiles
from corewise.measured.workloads.kernels.fft.merge import TileSplit, compute_twiddles
from corewise.measured.workloads.kernels.fft.reference import check_transform, compute_host_product, sum_by_definition
from corewise.measured.workloads.kernels.fft.roots_of_unity import compute_roots_of_unity
from corewise.measured.workloads.kernels.fft.workload import FFT, TILES_OVERHEAD_BYTES
from corewise.measured.workloads.kernels.kernel import KernelSetup

Need = Callable[[bool, str], None]


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest, need: Need) -> Any:
    """The arrays of a framework that can write them."""
    return arrays_of_any(request.param, need)


@pytest.fixture(params=["numpy", "torch", *FRAMEWORKS])
def any_arrays(request: pytest.FixtureRequest, need: Need) -> Any:
    return arrays_of_any(request.param, need)


def build_run(arrays: Any, folder: Path, dtype: str = "complex128", **args: Any) -> Any:
    args = {**FFT.parameters, **args}
    return FFT.build(KernelSetup(arrays, dtype, args, seed=3, folder=str(folder), num_threads=1))


def transform_of(run: Any, arrays: Any) -> tuple[Any, Any]:
    """The signal of a run and its transform, on the host."""
    run.step()
    on_host = isinstance(run._x, np.ndarray)
    read = np.array if on_host else arrays.to_host
    return read(run._x), read(run._out).reshape(-1)


def test_roots_of_unity_are_exact_to_the_last_bits_for_two_to_the_31_and_for_primes() -> None:
    for n in (2**31, 2**33, 1_000_003, 7):
        k = np.random.default_rng(5).integers(0, n, 1000)
        angle = 8 * np.arctan(np.longdouble(1)) * (k.astype(np.longdouble) / np.longdouble(n))
        precise = np.cos(angle) - 1j * np.sin(angle)
        assert np.max(np.abs(compute_roots_of_unity(k, n) - precise)) < 1.5 * 2.0**-53
    assert compute_roots_of_unity([0, 2, 4, 6, 8], 8).tolist() == [1, -1j, -1, 1j, 1]


def test_sums_by_definition_match_numpy_forward_and_inverse() -> None:
    for size in (1, 2, 97, 1000):
        x = np.random.default_rng(size).standard_normal(2 * size).view(np.complex128)
        k = np.arange(size)
        assert np.allclose(sum_by_definition(x, size, k, compute_host_product), np.fft.fft(x))
        assert np.allclose(sum_by_definition(x, size, -k, compute_host_product) / size, np.fft.ifft(x))


def test_the_check_finds_one_wrong_value_anywhere() -> None:
    x = np.random.default_rng(0).standard_normal(8192).view(np.complex128)
    transform = np.fft.fft(x)
    assert check_transform(x, transform, 4096, "complex128", np.asarray).passed
    transform[1234] *= 1 + 1e-6
    assert not check_transform(x, transform, 4096, "complex128", np.asarray).passed
    transform[1234] = math.nan
    assert not check_transform(x, transform, 4096, "complex128", np.asarray).passed


@pytest.mark.parametrize("size", [2, 3, 997, 1024, 9999])
def test_direct_takes_any_length(arrays: Any, tmp_path: Path, size: int) -> None:
    run = build_run(arrays, tmp_path, size=size)
    x, transform = transform_of(run, arrays)
    assert np.allclose(transform, np.fft.fft(x))
    assert run.check().passed


@pytest.mark.parametrize(
    ("size", "num_tiles"),
    [
        (64, 1),
        (64, 64),
        (4096, 8),
        (4096, 64),
        (45, 9),
        (45, 15),
        (3 * 7 * 11 * 13, 77),
        (2**17, 2),
        (2**17, 16),
        (2**17, 32),
    ],
)
def test_tiles_give_every_number_of_the_direct_transform(
    arrays: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, num_tiles: int
) -> None:
    # There are several blocks, and the last one is narrower.
    monkeypatch.setitem(merge.BLOCK_ELEMENTS, "cpu", 1024)
    monkeypatch.setitem(fft_tiles.GROUP_ELEMENTS, "cpu", 2048)
    monkeypatch.setattr(merge, "MIN_WIDTH", 24)
    run = build_run(arrays, tmp_path, size=size, method="tiles", num_tiles=num_tiles)
    x, transform = transform_of(run, arrays)
    wanted = np.fft.fft(x)
    assert np.max(np.abs(transform - wanted)) < 1e-14 * math.sqrt(size) * 8
    assert run.check().passed


@pytest.mark.parametrize(("place", "num_tiles"), [("host", 96), ("file", 96), ("host", 7)])
def test_a_signal_in_pieces_gives_every_number_and_leaves_no_file(
    any_arrays: Any, tmp_path: Path, place: str, num_tiles: int
) -> None:
    size, arrays = 96 * 1001, any_arrays
    run = build_run(arrays, tmp_path, size=size, method="tiles", num_tiles=num_tiles, signal=place, memory_bytes=2**22)
    x, transform = transform_of(run, arrays)
    assert np.allclose(transform, np.fft.fft(x))
    assert run.check().passed
    facts = run.read_facts()
    assert facts["num_pieces"] > 2
    assert facts["piece_bytes"] <= 2**20
    run.close()
    assert not list(tmp_path.iterdir())


def test_a_signal_in_pieces_in_single_precision_stays_so(any_arrays: Any, tmp_path: Path) -> None:
    asked = {"size": 2**14, "method": "tiles", "num_tiles": 16, "signal": "host", "memory_bytes": 2**17}
    run = build_run(any_arrays, tmp_path, "complex64", **asked)
    x, transform = transform_of(run, any_arrays)
    assert x.dtype == transform.dtype == np.complex64
    assert run.check().passed


def test_pieces_in_several_threads_give_the_same_numbers(any_arrays: Any, tmp_path: Path) -> None:
    arrays = any_arrays
    run = build_run(arrays, tmp_path, size=2**16, method="tiles", num_tiles=16, signal="host", memory_bytes=2**19)
    _, alone = transform_of(run, arrays)
    run._slots = [
        type(run._slots[0])(np.empty_like(run._slots[0].buffer), run._merge.allocate_scratch()) for _ in range(4)
    ]
    _, together = transform_of(run, arrays)
    assert np.array_equal(alone, together)


def test_a_device_with_separate_memory_gets_copies_in_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "load_pieces", SeparateDevice)
    for num_tiles in (8, 96):
        args = {"size": 96 * 1001, "method": "tiles", "num_tiles": num_tiles, "signal": "host"}
        run = build_run(NumpyArrays(), tmp_path, **args, memory_bytes=2**23)
        assert len(run._slots) == 3
        x, transform = transform_of(run, NumpyArrays())
        assert np.allclose(transform, np.fft.fft(x))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_with_separate_memory_gets_copies_in_several_threads(
    framework: str, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = arrays_of_any(framework, need)
    monkeypatch.setattr(streamed, "load_pieces", load_separate_pieces)
    args = {"size": 96 * 1001, "method": "tiles", "num_tiles": 96, "signal": "host"}
    run = build_run(arrays, tmp_path, **args, memory_bytes=2**23)
    assert len(run._slots) == 3
    for _ in range(2):
        x, transform = transform_of(run, arrays)
        assert np.allclose(transform, np.fft.fft(x))


def test_single_precision_is_checked_with_its_roundoff(arrays: Any, tmp_path: Path) -> None:
    run = build_run(arrays, tmp_path, "complex64", size=2**14, method="tiles", num_tiles=16)
    x, transform = transform_of(run, arrays)
    assert x.dtype == transform.dtype == np.complex64
    check = run.check()
    assert check.passed
    assert check.tolerance < 1e-5


def test_a_pure_tone_ends_in_one_bin(arrays: Any, tmp_path: Path) -> None:
    run = build_run(arrays, tmp_path, size=2**12, method="tiles", num_tiles=8)
    tone = np.conj(compute_roots_of_unity(np.arange(2**12) * 77, 2**12))
    arrays.copy(arrays.from_host(tone), out=run._x)
    _, transform = transform_of(run, arrays)
    transform[77] -= 2**12
    assert np.max(np.abs(transform)) < 1e-10


def test_phases_of_tiles_are_in_the_facts(arrays: Any, tmp_path: Path) -> None:
    run = build_run(arrays, tmp_path, size=2**14, method="tiles")
    run.step()
    facts = run.read_facts()
    assert facts["sub_transforms_s"] > 0
    assert 0 < facts["merge_fraction"] < 1
    assert facts["merge_fraction"] == pytest.approx(
        facts["merge_s"] / (facts["merge_s"] + facts["sub_transforms_s"]), abs=1e-3
    )


class Counting(NumpyArrays):
    """NumPy that counts what is multiplied element by element."""

    def __init__(self) -> None:
        super().__init__()
        self.num_multiplied = 0

    def multiply(self, a: Any, b: Any, out: Any = None) -> Any:
        self.num_multiplied += a.size
        return super().multiply(a, b, out)


@pytest.mark.parametrize("num_tiles", [8, 16])
def test_the_merge_of_few_tiles_multiplies_every_number_once_with_its_factor(tmp_path: Path, num_tiles: int) -> None:
    arrays = Counting()
    # There are several blocks.
    run = build_run(arrays, tmp_path, size=2**19, method="tiles", num_tiles=num_tiles)
    arrays.num_multiplied = 0
    run.step()
    assert arrays.num_multiplied == 2**19


def test_memory_besides_the_signal_stays_small_with_many_threads() -> None:
    assert merge.choose_block_elements("cpu", 64, 1) == merge.BLOCK_ELEMENTS["cpu"]
    assert all(2 * 16 * merge.choose_block_elements("cpu", n, 192) <= TILES_OVERHEAD_BYTES for n in (16, 64))


def test_twiddles_of_a_block_are_those_of_the_whole() -> None:
    cut = TileSplit(2**31, 64)
    start = 2**24 + 5
    block = compute_twiddles(cut, start, start + 3)
    assert block.shape == (64, 3)
    assert block[63, 2] == compute_roots_of_unity(63 * (start + 2), 2**31)


def test_work_counts_five_n_log_n_and_two_passes() -> None:
    work = FFT.count_work("infer", {"size": 2**20}, "complex64")
    assert work.flops_per_sample == 5 * 2**20 * 20
    assert work.bytes_per_sample == 2 * 8 * 2**20


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"size": 1_000_003, "method": "tiles"}, "16 tiles do not divide.*no divisor.*method direct"),
        ({"size": 1000, "method": "tiles"}, "16 tiles do not divide the size 1000; its divisors are 2, 4, 5, 8"),
        ({"size": 1}, "at least 2"),
        ({"method": "quick"}, "one of direct, tiles"),
        ({"signal": "host"}, "which needs method tiles"),
        ({"size": 2**41}, "larger than 2"),
    ],
)
def test_invalid_parameters_are_refused_with_a_remedy(args: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FFT.count_work("infer", args)


def test_more_tiles_than_a_piece_holds_are_refused_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"16 tiles are too many .* use fewer tiles, or more memory_bytes"):
        build_run(NumpyArrays(), tmp_path, size=4096, method="tiles", num_tiles=16, signal="host", memory_bytes=30_000)


def test_a_tile_larger_than_a_piece_is_refused_with_the_required_number_of_tiles(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match="use at least 64 tiles"):
        build_run(NumpyArrays(), tmp_path, size=2**20, method="tiles", num_tiles=4, signal="host", memory_bytes=2**20)


@pytest.mark.parametrize(
    ("size", "memory_bytes", "advice"),
    [(3**11, 2**20, "use at least 27 tiles, or more"), (2**20, 1000, "may have [0-9]+; use more")],
)
def test_only_valid_numbers_of_tiles_are_suggested(tmp_path: Path, size: int, memory_bytes: int, advice: str) -> None:
    args = {"method": "tiles", "signal": "host", "memory_bytes": memory_bytes, "size": size}
    with pytest.raises(Infeasible, match=f"{advice} memory_bytes"):
        build_run(NumpyArrays(), tmp_path, **args, num_tiles=1)


def test_a_signal_that_the_host_cannot_hold_is_refused(tmp_path: Path) -> None:
    for place, reason in (("host", "use signal file"), ("file", "free some disk space")):
        with pytest.raises(Infeasible, match=rf"need 35184372088832 bytes.*{reason}"):
            build_run(
                NumpyArrays(), tmp_path, size=2**40, method="tiles", num_tiles=2**20, signal=place, memory_bytes=2**40
            )
    assert not list(tmp_path.iterdir())


def test_processes_of_a_trial_have_separate_files(tmp_path: Path) -> None:
    args = {**FFT.parameters, "size": 2**12, "method": "tiles", "signal": "file"}
    runs = [FFT.build(KernelSetup(NumpyArrays(), "complex128", args, rank, str(tmp_path), 1)) for rank in (0, 1)]
    assert len(list(tmp_path.iterdir())) == 4
    for run in runs:
        assert run.check().passed
    runs[0].close()
    assert runs[1].check().passed
    # Another process has removed the file.
    next(tmp_path.glob("signal-1*")).unlink()
    runs[1].close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_with_file_and_bytes(need: Need, tmp_path: Path) -> None:
    program = """
import shutil, sys
from corewise.measured.runtimes.base import NotNow
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.kernel import KernelSetup
from corewise.measured.workloads.kernels.fft.workload import FFT, TILES_OVERHEAD_BYTES
import os
usage = shutil.disk_usage
shutil.disk_usage = lambda folder: usage("/dev/shm")._replace(free=2**40)
args = {**FFT.parameters, "size": 2**16, "method": "tiles", "signal": "file"}
try:
    run = FFT.build(KernelSetup(NumpyArrays(), "complex128", args, 0, sys.argv[1], 1))
    run.step()
except NotNow as problem:
    print(problem)
print(os.listdir(sys.argv[1]))
"""
    script = 'mount -t tmpfs -o size=1536k none "$2" || exit 77; exec "$0" -c "$1" "$2"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, program, str(tmp_path)], capture_output=True, text=True
    )
    need(ran.returncode != 77 and "unshare" not in ran.stderr, "no tmpfs can be mounted here")
    assert ran.returncode == 0, ran.stderr
    assert "no space for the 1048576 bytes of" in ran.stdout
    assert "transform-0.fft: No space left on device" in ran.stdout
    assert ran.stdout.endswith("[]\n")


def test_processes_share_the_memory_that_their_control_group_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "read_free_host_bytes", lambda: 2**24 + 2**21)
    args = {**FFT.parameters, "method": "tiles", "num_tiles": 32, "signal": "host", "memory_bytes": 2**20}
    largest_of_three = (2**22 + 2**19 - int(1.4 * 2**20)) // 32 // 32 * 32
    for size, num_ranks, largest in ((2**19, 1, None), (2**19, 4, 2**16), (3 * 2**17, 4, largest_of_three)):
        given = {**args, "size": size}
        setup: Any = SimpleNamespace(
            arrays=NumpyArrays(), dtype="complex128", args=given, seed=0, folder="", num_ranks=num_ranks
        )
        if largest is None:
            assert FFT.build(setup).check().passed
            continue
        message = f"has {2**22 + 2**19} free for each of 4.* that fits is {largest};"
        with pytest.raises(Infeasible, match=message):
            FFT.build(setup)


def test_the_reference_of_single_precision_is_computed_in_double_on_the_host() -> None:
    x = np.random.default_rng(0).standard_normal(2 * 10**5).astype(np.float32).view(np.complex64)
    k = np.array([1, 77, 99_999])
    found = sum_by_definition(x, 10**5, k, compute_host_product)
    assert np.max(np.abs(found - np.fft.fft(x.astype(np.complex128))[k])) < 1e-10


def test_an_error_of_a_few_roundoffs_in_single_precision_is_found() -> None:
    x = np.random.default_rng(0).standard_normal(2**21).astype(np.float32).view(np.complex64)
    transform = np.fft.fft(x.astype(np.complex128)).astype(np.complex64)
    assert check_transform(x, transform, 2**20, "complex64", np.asarray).passed
    transform *= np.float32(1 + 2e-5)
    assert not check_transform(x, transform, 2**20, "complex64", np.asarray).passed
