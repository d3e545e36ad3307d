"""Memory use read in a process forked from a large one."""

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.measured.probes.memory_use import read_memory, reset_peak

MIB = 1 << 20


def touched(num_bytes: int) -> mmap.mmap:
    # Closing it returns the memory to the kernel.
    block = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE)
    for start in range(0, num_bytes, mmap.PAGESIZE):
        block[start] = 1
    return block


def in_child(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def test_pages_shared_with_the_warm_parent_are_counted_once() -> None:
    with touched(200 * MIB) as shared:

        def rank() -> dict[str, float]:
            reset_peak()
            # Reading makes the parent's pages resident here too.
            sum(shared[:: mmap.PAGESIZE])
            own = touched(50 * MIB)
            return {**read_memory(), "size": float(len(own))}

        result = in_child(rank)
    assert result["peak_rss_bytes"] >= 250 * MIB
    # Two processes share the 200 MiB.
    assert result["shared_bytes"] >= 100 * MIB
    assert 50 * MIB <= result["peak_memory_bytes"] <= result["peak_rss_bytes"] - 100 * MIB


def test_the_peak_outlives_the_memory_that_made_it() -> None:
    def rank() -> dict[str, float]:
        touched(100 * MIB).close()
        return read_memory()

    result = in_child(rank)
    assert result["peak_rss_bytes"] >= result["rss_bytes"] + 90 * MIB


def test_resetting_forgets_an_earlier_peak() -> None:
    def rank() -> dict[str, float]:
        touched(100 * MIB).close()
        before = read_memory()["peak_rss_bytes"]
        reset = reset_peak()
        return {"before": before, "after": read_memory()["peak_rss_bytes"], "reset": float(reset)}

    result = in_child(rank)
    if not result["reset"]:
        pytest.skip("the kernel does not let the peak be reset")
    assert result["after"] <= result["before"] - 90 * MIB


def test_a_kernel_without_proportional_sizes_takes_nothing_off(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tx\nVmHWM:\t     300 kB\nVmRSS:\t     200 kB\nThreads:\t1\n")
    assert read_memory(str(tmp_path)) == {
        "peak_rss_bytes": 300 * 1024.0,
        "rss_bytes": 200 * 1024.0,
        "pss_bytes": 200 * 1024.0,
        "shared_bytes": 0.0,
        "peak_memory_bytes": 300 * 1024.0,
        "huge_page_bytes": 0.0,
    }


def test_a_peak_that_cannot_be_reset_is_no_failure(tmp_path: Path) -> None:
    assert reset_peak(str(tmp_path)) is False
