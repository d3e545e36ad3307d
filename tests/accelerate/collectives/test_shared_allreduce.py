"""Allreduce in shared memory: sums, bits, gradients of DDP, and ranks that die, hang or differ."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import corewise
from corewise.accelerate.collectives.shared_allreduce import choose_chunk_bytes

SCRIPT = Path(__file__).with_name("rank_scripts.py")


def run_ranks(case: str, num_ranks: int, folder: Path) -> dict[int, Any]:
    """Run a case on all ranks; return the results of those that ended well."""
    command = [sys.executable, "-P", str(SCRIPT), case]
    ranks = [
        subprocess.Popen([*command, str(rank), str(num_ranks), str(folder)], stderr=subprocess.PIPE)
        for rank in range(num_ranks)
    ]
    errors = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    results = {}
    for rank, process in enumerate(ranks):
        assert process.returncode in (0, -9), errors[rank]
        if process.returncode == 0:
            results[rank] = json.loads((folder / f"{rank}.json").read_text())
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_sums_are_right_and_have_the_same_bits_on_all_ranks(num_ranks: int, tmp_path: Path) -> None:
    results = run_ranks("sum_sizes", num_ranks, tmp_path)
    assert len(results) == num_ranks
    for row in results[0]:
        dtype, size, is_close, digests = row
        assert is_close, f"{dtype} {size}"
        assert len(digests) == 1, f"{dtype} {size}: two calls differ"
    assert all(result == results[0] for result in results.values())


def test_sums_over_nodes_are_right_on_all_ranks(tmp_path: Path) -> None:
    results = run_ranks("sum_over_nodes", 3, tmp_path)
    assert all(row[2] for row in results[0])
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_gradients_equal_those_over_gloo(tmp_path: Path) -> None:
    results = run_ranks("compare_gradients", 2, tmp_path)
    assert len(results) == 2
    for result in results.values():
        assert result["backend"] == "shared"
        assert result["communicates"]
        assert "2 ranks" in result["explain"]
        assert len(result["close"]) >= 16
        assert all(result["close"])


def test_a_transformer_trains_to_the_same_weights_on_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    results = run_ranks("train_transformer", 2, tmp_path)
    assert results[0][0] == "shared"
    assert results[0] == results[1]


def test_a_killed_rank_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    results = run_ranks("lose_rank", 3, tmp_path)
    assert sorted(results) == [0, 2]
    assert all("rank 1" in text for text in results.values()), results
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not [name for name in after - before if "corewise" in name]


def test_a_rank_that_is_killed_before_the_backward_pass_is_named(tmp_path: Path) -> None:
    backend, text = run_ranks("lose_rank_in_backward", 2, tmp_path)[0]
    assert backend == "shared"
    assert "rank 1 ended" in text


def test_a_rank_that_hangs_is_named_after_the_timeout(tmp_path: Path) -> None:
    results = run_ranks("hang_rank", 3, tmp_path)
    assert all("rank 1" in results[rank] for rank in (0, 2)), results
    assert "failed before" in results[1]


def test_different_sizes_are_refused(tmp_path: Path) -> None:
    results = run_ranks("mismatch_sizes", 2, tmp_path)
    assert any("different sizes" in text for text in results.values()), results
    assert "no error" not in results.values()


def test_unsupported_types_stay_on_gloo_with_a_reason(tmp_path: Path) -> None:
    for backend, reason, explanation in run_ranks("fall_back", 2, tmp_path).values():
        assert backend == "gloo"
        assert "float16" in reason
        assert reason in explanation


def test_a_model_without_ddp_is_refused() -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        corewise.collectives.attach(nn.Linear(2, 2))


def test_the_slots_of_all_ranks_stay_within_the_cache() -> None:
    assert choose_chunk_bytes(2) == 1 << 20
    assert choose_chunk_bytes(16) == 256 << 10
    assert choose_chunk_bytes(1000) == 64 << 10
