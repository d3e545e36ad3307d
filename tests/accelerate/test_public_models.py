"""Public architectures compute the same when they are frozen: small sizes, random weights, keyword inputs."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import corewise

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import zoo
import zoo_models

pytestmark = [
    pytest.mark.slow,
    # Models of other packages warn for their own reasons.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def need_transformers(need: Callable[[bool, str], None]) -> None:
    need(importlib.util.find_spec("transformers") is not None, "transformers is not installed")


@pytest.fixture(autouse=True)
def ignore_times(prepare_all_layers: None) -> None:
    """No test of this file depends on timing."""


def build(name: str) -> tuple[Any, zoo_models.MakeInputs]:
    return zoo_models.list_models()[name]()


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet", "t5"])
def test_a_model_of_transformers_computes_the_same_when_frozen(name: str) -> None:
    module, make_inputs = build(name)
    frozen: Any = corewise.freeze(module, make_inputs(0, 2))
    assert "a captured graph" in frozen.explain()
    assert frozen.config is not None
    with torch.no_grad():
        for seed, batch in ((0, 2), (1, 2), (2, 3), (3, 3), (4, 3)):
            wanted, got = module(**make_inputs(seed, batch)), frozen(**make_inputs(seed, batch))
            assert type(got) is type(wanted)
            assert list(got.keys()) == list(wanted.keys())
            assert zoo.compute_error(wanted, got) < 1e-4


def test_a_frozen_model_generates_the_same_tokens() -> None:
    module, make_inputs = build("llama_lm")
    given = make_inputs(0, 2)
    frozen: Any = corewise.freeze(module, given)
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    assert torch.equal(frozen.generate(**given, **options), module.generate(**given, **options))


@pytest.mark.parametrize("name", ["longformer", "funnel"])
def test_a_model_that_cannot_be_captured_runs_its_code_on_prepared_layers(name: str) -> None:
    module, make_inputs = build(name)
    frozen: Any = corewise.freeze(module, make_inputs(0, 2))
    assert "the module's code runs for one input signature: " in frozen.explain()
    with torch.no_grad():
        for seed, batch in ((0, 2), (1, 2), (2, 3)):
            assert zoo.compute_error(module(**make_inputs(seed, batch)), frozen(**make_inputs(seed, batch))) < 1e-4
