"""Gradients of DDP in shared memory: every use of DDP, fallbacks with reasons, forks and the end."""

from pathlib import Path
from typing import Any, cast

import pytest
from tests.accelerate.collectives.rank_runner import run_ranks
from torch import nn

import corewise
from corewise.accelerate.collectives.attach_hook import _explain_unsupported


def test_gradients_equal_those_over_gloo(tmp_path: Path) -> None:
    results = run_ranks("ddp_cases:compare_gradients", 2, tmp_path)
    assert len(results) == 2
    for result in results.values():
        assert result["backend"] == "shared"
        assert result["communicates"]
        assert "2 ranks" in result["explain"]
        assert len(result["close"]) >= 16
        assert all(result["close"])


def test_every_use_of_ddp_gives_the_gradients_of_gloo(tmp_path: Path) -> None:
    for result in run_ranks("ddp_cases:train_variants", 2, tmp_path).values():
        assert result["equal"] == dict.fromkeys(
            ["no_sync", "two models in one backward pass", "static_graph", "mixed types", "two nodes"], True
        )
        assert "gloo between 2 nodes" in result["nodes"]
        assert result["again"], "a second call attaches again"


def test_data_loaders_may_fork_and_other_uses_of_a_fork_are_refused(tmp_path: Path) -> None:
    for result in run_ranks("ddp_cases:use_after_fork_and_close", 2, tmp_path).values():
        assert result["forked"] == 7
        assert result["batches"] == 3
        assert "attach again" in result["closed"]


@pytest.mark.slow
def test_a_transformer_trains_to_the_same_weights_on_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    results = run_ranks("ddp_cases:train_transformer", 2, tmp_path)
    assert results[0][0] == "shared"
    assert results[0] == results[1]


@pytest.mark.slow
def test_unsupported_types_stay_on_gloo_with_a_reason(tmp_path: Path) -> None:
    for backend, reason, explanation in run_ranks("ddp_cases:fall_back", 2, tmp_path).values():
        assert backend == "gloo"
        assert "float16" in reason
        assert reason in explanation


@pytest.mark.slow
def test_a_single_rank_keeps_its_backend(tmp_path: Path) -> None:
    backend, explanation, gradient = run_ranks("ddp_cases:average_once", 1, tmp_path)[0]
    assert backend == "gloo"
    assert "only one rank" in explanation
    assert gradient == 1.0


@pytest.mark.slow
def test_a_model_with_a_hook_keeps_it(tmp_path: Path) -> None:
    for explanation in run_ranks("ddp_cases:explain_fallbacks", 2, tmp_path).values():
        assert "communication hook already" in explanation


def test_a_model_without_ddp_is_refused() -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        corewise.collectives.attach(nn.Linear(2, 2))


def test_a_model_that_is_not_in_host_memory_is_refused_with_its_device() -> None:
    model = cast(Any, nn.Linear(2, 2, device="meta"))
    assert _explain_unsupported(model, num_ranks=2) == "parameters are on meta"
