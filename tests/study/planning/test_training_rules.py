"""Rules on data-parallel training: the batch of each process, `collectives` and the learning rate."""

from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.study.planning.training_rules import explain_training

TRAINED = {"workload": "resnet18", "mode": "train", "processes": 2}


def explain(is_kernel: bool = False, **values: Any) -> list[str]:
    return list(explain_training(TrialParameters.from_mapping({**TRAINED, **values}), is_kernel=is_kernel))


@pytest.mark.parametrize("backend", ["default", "gloo", "shared", "mpi", "horovod"])
def test_ranks_that_train_together_may_use_any_backend_for_host_memory(backend: str) -> None:
    assert explain(collectives=backend) == []


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"collectives": "gloo", "mode": "infer"}, "replicas infer independently"),
        ({"collectives": "shared", "processes": 1}, "there is one process"),
        ({"collectives": "nccl"}, "nccl connects GPUs"),
        ({"collectives": "shared", "device": "cuda"}, "is for device: cpu; use nccl"),
        ({"learning_rate_rule": "linear", "processes": 1}, "there is one process"),
        ({"batch": 15, "batch_scope": "global"}, "set batch: 14 or 16, or batch_scope: process"),
    ],
)
def test_a_setting_without_effect_is_refused(values: dict[str, Any], reason: str) -> None:
    [given] = explain(**values)
    assert reason in given


def test_one_process_on_each_of_two_nodes_trains_together() -> None:
    assert explain(collectives="shared", processes=1, nodes=2) == []


def test_a_kernel_checks_its_own_backend() -> None:
    assert explain(is_kernel=True, collectives="mpi", mode="infer") == []
