"""STREAM's counts, sizes and check."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.kernel import KernelSetup
from corewise.measured.workloads.kernels.stream import (
    OPERATIONS,
    STREAM,
    compute_default_size_bytes,
    read_last_level_cache_bytes,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("operation", "num_passes", "flops_per_element"), [("copy", 2, 0), ("scale", 2, 1), ("add", 3, 1), ("triad", 3, 2)]
)
@pytest.mark.parametrize(("dtype", "num_bytes"), [("float64", 8), ("float32", 4)])
def test_passes_and_operations_are_counted_as_stream_does(
    operation: str, num_passes: int, flops_per_element: int, dtype: str, num_bytes: int
) -> None:
    # A partial element at the end does not count.
    args = {"operation": operation, "size_bytes": 1000 * num_bytes + 3}
    work = STREAM.count_work("infer", args, dtype)
    assert work.bytes_per_sample == num_passes * 1000 * num_bytes
    assert work.flops_per_sample == flops_per_element * 1000
    assert STREAM.estimate_memory_bytes(args, dtype) == work.bytes_per_sample


def make_cache(cpus: Path, cpu: int, index: int, level: int, size: str, shared: str, cache_type: str) -> None:
    folder = cpus / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared), ("type", cache_type)):
        (folder / name).write_text(f"{text}\n")


def test_the_last_level_caches_are_added_up_each_once(tmp_path: Path) -> None:
    for cpu in range(4):
        make_cache(tmp_path, cpu, 0, 1, "32K", str(cpu), "Data")
        make_cache(tmp_path, cpu, 1, 1, "32K", str(cpu), "Instruction")
        make_cache(tmp_path, cpu, 3, 3, "16M", "0-1" if cpu < 2 else "2-3", "Unified")
    assert read_last_level_cache_bytes(tmp_path) == 2 * 16 * MIB


def test_caches_that_the_machine_does_not_report_are_unknown(tmp_path: Path) -> None:
    assert read_last_level_cache_bytes(tmp_path / "nowhere") is None
    read_last_level_cache_bytes.cache_clear()
    make_cache(tmp_path, 0, 0, 3, "much", "0", "Unified")
    assert read_last_level_cache_bytes(tmp_path) is None


@pytest.mark.parametrize(("cache_bytes", "wanted"), [(None, 256 * MIB), (32 * MIB, 256 * MIB), (2**28, 2**30)])
def test_arrays_are_four_times_the_caches_and_no_less_than_256_mebibytes(
    monkeypatch: pytest.MonkeyPatch, cache_bytes: int | None, wanted: int
) -> None:
    monkeypatch.setattr("corewise.measured.workloads.kernels.stream.read_last_level_cache_bytes", lambda: cache_bytes)
    assert compute_default_size_bytes() == wanted
    assert STREAM.parameters["size_bytes"] == wanted


class WrongArrays(NumpyArrays):
    """NumPy with one element wrong in what it computes."""

    def __init__(self, place: int, change: float) -> None:
        super().__init__()
        self.place, self.change = place, change

    def _change_element(self, array: Any) -> Any:
        array[self.place] += self.change
        return array

    def copy(self, a: Any, out: Any = None) -> Any:
        return self._change_element(super().copy(a, out))

    def scale(self, factor: Any, a: Any, out: Any = None) -> Any:
        return self._change_element(super().scale(factor, a, out))

    def add(self, a: Any, b: Any, out: Any = None) -> Any:
        return self._change_element(super().add(a, b, out))

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Any = None) -> Any:
        return self._change_element(super().add_scaled(a, factor, b, out))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("place", [0, 123_457, 2**19 + 5, -1])
def test_a_wrong_element_fails_the_check(operation: str, place: int, tmp_path: Path) -> None:
    args = {"operation": operation, "size_bytes": 8 * (2**19 + 11)}
    setup = KernelSetup(WrongArrays(place, 1e-6), "float64", args, 0, str(tmp_path), 1)
    assert not STREAM.build(setup).check().passed


def test_nothing_written_fails_the_check(tmp_path: Path) -> None:
    class Idle(NumpyArrays):
        def copy(self, a: Any, out: Any = None) -> Any:
            return out

    setup = KernelSetup(Idle(), "float32", {"operation": "copy", "size_bytes": 4000}, 0, str(tmp_path), 1)
    assert not STREAM.build(setup).check().passed


class WrongDeviceArrays(WrongArrays):
    """Arrays of a device that is not the host."""

    device = "cuda"

    def __init__(self, place: int, change: float) -> None:
        super().__init__(place, change)
        self.readers: set[int] = set()
        self.both = threading.Barrier(2)

    def to_host(self, array: Any) -> Any:
        if threading.get_ident() not in self.readers:
            self.readers.add(threading.get_ident())
            if len(self.readers) <= 2:
                self.both.wait(60)
        return super().to_host(array)


@pytest.mark.parametrize(("change", "passes"), [(0.0, True), (1e-6, False)])
def test_what_comes_back_from_a_device_is_compared_by_several_threads(
    change: float, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    arrays = WrongDeviceArrays(2**19 + 5, change)
    setup = KernelSetup(arrays, "float64", {"size_bytes": 8 * (2**20 + 11)}, 0, str(tmp_path), 1)
    assert STREAM.build(setup).check().passed is passes
    assert len(arrays.readers) == 2


def test_host_caches_do_not_matter_for_a_separate_device(tmp_path: Path) -> None:
    setup = KernelSetup(WrongDeviceArrays(0, 0.0), "float32", {"size_bytes": 4000}, 0, str(tmp_path), 1)
    assert STREAM.build(setup).read_facts() == {"array_bytes": 4000}


def test_facts_contain_the_sizes_of_arrays_and_caches(tmp_path: Path) -> None:
    setup = KernelSetup(NumpyArrays(), "float32", {"size_bytes": 4003}, 0, str(tmp_path), 1)
    facts = STREAM.build(setup).read_facts()
    assert facts["array_bytes"] == 4000
    assert "times_last_level_cache" in facts


def test_ranks_draw_different_numbers(tmp_path: Path) -> None:
    made = [
        STREAM.build(KernelSetup(NumpyArrays(), "float64", {"size_bytes": 800}, rank, str(tmp_path), 1))
        for rank in (0, 1)
    ]
    inputs = [array for run in made for array in run._inputs]  # type: ignore[attr-defined]
    assert len({array.tobytes() for array in inputs}) == 4
    assert all(np.any(array) for array in inputs)
