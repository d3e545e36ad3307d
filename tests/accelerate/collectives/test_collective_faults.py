"""Ranks that die, stop, hang or differ, and systems that refuse shared memory: bounded waits and named causes."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.accelerate.collectives.fault_cases import MEMFD_CREATE
from tests.accelerate.collectives.rank_runner import run_ranks

Need = Callable[[bool, str], None]


def list_shared_files() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def test_a_killed_rank_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = list_shared_files()
    results = run_ranks("fault_cases:lose_rank", 3, tmp_path)
    assert sorted(results) == [0, 2]
    assert all("rank 1" in text for text in results.values()), results
    assert not [name for name in list_shared_files() - before if "corewise" in name]


@pytest.mark.slow
def test_a_rank_that_is_killed_amid_a_sum_is_named_at_once(tmp_path: Path) -> None:
    results = run_ranks("fault_cases:kill_amid_sums", 3, tmp_path)
    assert sorted(results) == [0, 1]
    for text, seconds in results.values():
        assert "rank 2" in text
        assert seconds < 30


@pytest.mark.slow
def test_a_rank_that_is_killed_on_another_node_ends_the_wait_of_all(tmp_path: Path) -> None:
    results = run_ranks("fault_cases:kill_amid_sums_over_nodes", 4, tmp_path)
    assert sorted(results) == [0, 1, 2]
    assert "rank 3" in results[2][0]
    assert "with the other nodes over gloo" in results[0][0]
    assert all(text != "no error" and seconds < 55 for text, seconds in results.values()), results


def test_a_stopped_rank_is_named_after_the_timeout(tmp_path: Path) -> None:
    results = run_ranks("fault_cases:stop_amid_sums", 3, tmp_path, lost_rank=2)
    assert sorted(results) == [0, 1]
    for text, seconds in results.values():
        assert "rank 2" in text
        assert 2 <= seconds < 30


@pytest.mark.slow
def test_a_rank_that_is_killed_before_the_backward_pass_is_named(tmp_path: Path) -> None:
    backend, text = run_ranks("ddp_cases:lose_rank_in_backward", 2, tmp_path)[0]
    assert backend == "shared"
    assert "rank 1 ended" in text


def test_a_rank_that_hangs_is_named_after_the_timeout(tmp_path: Path) -> None:
    results = run_ranks("fault_cases:hang_rank", 3, tmp_path)
    assert all("rank 1" in results[rank] for rank in (0, 2)), results
    assert "failed before" in results[1]


@pytest.mark.slow
def test_different_sizes_are_refused(tmp_path: Path) -> None:
    results = run_ranks("fault_cases:mismatch_sizes", 2, tmp_path)
    assert any("differ in the collective" in text for text in results.values()), results
    assert "no error" not in results.values()


@pytest.mark.slow
def test_without_pidfd_a_killed_rank_is_named_after_the_timeout(tmp_path: Path, need: Need) -> None:
    need(platform.machine() in MEMFD_CREATE, "the numbers of system calls are known for x86_64 and aarch64")
    results = run_ranks("fault_cases:kill_without_pidfd", 2, tmp_path)
    text, seconds = results[0]
    assert "rank 1" in text
    assert seconds < 30


@pytest.mark.slow
def test_without_memfd_the_model_stays_on_gloo_with_a_reason(tmp_path: Path, need: Need) -> None:
    need(platform.machine() in MEMFD_CREATE, "the numbers of system calls are known for x86_64 and aarch64")
    for explanation in run_ranks("fault_cases:attach_without_memfd", 2, tmp_path).values():
        assert "over gloo: rank 0: no shared segment can be created" in explanation
        assert "not implemented" in explanation


@pytest.mark.slow
def test_where_files_must_stay_small_the_model_stays_on_gloo_with_a_reason(tmp_path: Path) -> None:
    for explanation in run_ranks("fault_cases:attach_with_small_files", 2, tmp_path).values():
        assert "no shared segment can be created" in explanation
        assert "too large" in explanation


@pytest.mark.slow
def test_a_full_dev_shm_does_not_matter(tmp_path: Path, need: Need) -> None:
    need(os.geteuid() == 0, "only root can make a mount namespace")
    hide = 'mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-ec", hide, "sh"]
    results = run_ranks("ddp_cases:average_once", 2, tmp_path, prefix=prefix)
    assert [result[0] for result in results.values()] == ["shared", "shared"]
    assert [result[2] for result in results.values()] == [1.5, 1.5]


@pytest.mark.slow
def test_ranks_in_two_containers_are_two_nodes(tmp_path: Path, need: Need) -> None:
    need(os.geteuid() == 0, "only root can make a namespace of processes")
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    results = run_ranks("ddp_cases:average_once", 2, tmp_path, prefix=prefix)
    for _, explanation, gradient in results.values():
        assert "gloo between 2 nodes" in explanation
        assert gradient == 1.5
