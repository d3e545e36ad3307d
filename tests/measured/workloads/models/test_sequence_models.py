"""The LSTM ensemble and the transformer: sizes and work, computed by hand."""

from typing import Any

import pytest

from corewise.measured.workloads.base import Traits, describe_traits
from corewise.measured.workloads.custom import CustomWorkload
from corewise.measured.workloads.registry import find_workload

SMALL: dict[str, Any] = {"time_steps": 6, "features": 3, "hidden": 4, "members": 2, "num_classes": 5}


def test_the_ensemble_has_the_sizes_of_the_published_study() -> None:
    model = find_workload("lstm_ensemble")
    assert dict(model.parameters) == {
        "time_steps": 400,
        "features": 10,
        "hidden": 10,
        "members": 4,
        "num_classes": 1000,
    }
    assert model.concurrent
    assert model.count_work("infer", {}).num_parameters == 8 * (4 * 10 * (10 + 10) + 2 * 40) + 20 * 1000 + 1000


def test_the_ensembles_work_is_that_of_its_gates_and_its_head() -> None:
    model = find_workload("lstm_ensemble")
    infer, train = (model.count_work(mode, SMALL) for mode in ("infer", "train"))
    gates, head = 4 * 6 * (4 * 4 * (3 + 4)), 8 * 5
    assert infer.flops_per_sample == 2 * (gates + head)
    to_earlier_states = 4 * 5 * (4 * 4 * 4)
    assert train.flops_per_sample == 2 * (2 * gates + to_earlier_states + 3 * head)
    lstms = 4 * 6 * (3 + 4)
    joined = 2 * (2 * 6 * 8) + 3 * 6 * 8
    ending = (6 * 8 + 8) + (8 + 5)
    assert infer.bytes_per_sample == 4 * (lstms + joined + ending)
    saved = 4 * 6 * (3 + 6 * 4) + 8
    no_gradient_of_the_input = 4 * 6 * 3
    assert train.bytes_per_sample == 2 * infer.bytes_per_sample + 4 * (saved - no_gradient_of_the_input)


def test_the_transformer_has_the_parameters_of_torchs_encoder_and_a_head() -> None:
    attention, widened, norms = (512 * 3 * 512 + 3 * 512 + 512 * 512 + 512, 2 * 512 * 2048 + 2048 + 512, 4 * 512)
    work = find_workload("transformer").count_work("infer", {})
    assert work.num_parameters == 6 * (attention + widened + norms) + 512 * 1000 + 1000


def test_the_transformers_work_includes_its_attention() -> None:
    model = find_workload("transformer")
    args = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 16, "tokens": 5, "num_classes": 3}
    products, attention, head = 5 * (8 * 24 + 8 * 8 + 8 * 16 + 16 * 8), 2 * 5 * 5 * 8, 8 * 3
    assert model.count_work("infer", args).flops_per_sample == 2 * (products + attention + head)
    # This is the gradient of the input.
    without = 5 * 8 * 24
    assert model.count_work("train", args).flops_per_sample == 2 * (3 * (products + attention + head) - without)


def test_twice_the_tokens_are_more_than_twice_the_work() -> None:
    model = find_workload("transformer")
    short, long = (model.count_work("infer", {"tokens": n}) for n in (128, 256))
    assert long.num_parameters == short.num_parameters
    assert 2.02 * short.flops_per_sample < long.flops_per_sample < 2.2 * short.flops_per_sample


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("lstm_ensemble", {"members": 0}, "lstm_ensemble: members must be a whole number of at least 1"),
        ("lstm_ensemble", {"hiden": 3}, "lstm_ensemble has no parameter 'hiden'; it has features, hidden"),
        ("transformer", {"heads": 7}, "transformer: 512 features cannot be divided among 7 heads"),
        ("transformer", {"dropout": 1.0}, "transformer: dropout must be a number from 0 to below 1, not 1.0"),
        ("transformer", {"dropout": True}, "transformer: dropout must be a number"),
        ("transformer", {"layers": 2.5}, "transformer: layers must be a whole number"),
    ],
)
def test_impossible_sizes_are_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_workload(name).count_work("infer", args)


@pytest.mark.parametrize(
    ("name", "args", "traits"),
    [
        ("resnet50", {}, Traits(True, has_batch_norm=True, has_dropout=False, has_fast_kernels=True)),
        ("alexnet", {}, Traits(True, has_batch_norm=False, has_dropout=True, has_fast_kernels=True)),
        ("resnext50_32x4d", {}, Traits(True, has_batch_norm=True, has_dropout=False, has_fast_kernels=False)),
        ("lstm_ensemble", {}, Traits(False, False, False, "script", has_fast_kernels=True)),
        ("transformer", {}, Traits(False, has_batch_norm=False, has_dropout=False, has_fast_kernels=False)),
        ("transformer", {"dropout": 0.1}, Traits(False, False, has_dropout=True, has_fast_kernels=False)),
        ("matmul", {}, Traits()),
    ],
)
def test_a_workload_says_what_its_layers_imply(name: str, args: dict[str, Any], traits: Traits) -> None:
    assert describe_traits(find_workload(name), args) == traits


def test_what_depends_on_the_batch_follows_from_the_layers() -> None:
    names = ("resnet18", "alexnet", "lstm_ensemble", "transformer", "matmul")
    depends = {name: describe_traits(find_workload(name), {}).depends_on_batch for name in names}
    assert depends == {"resnet18": True, "alexnet": True, "lstm_ensemble": False, "transformer": False, "matmul": None}
    assert describe_traits(CustomWorkload("mine.py:make"), {}).depends_on_batch is None
