"""Methods of a wrapped module use its plans, and the explanation counts calls with and without one."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from corewise.accelerate.malleable.call_counts import CallCounts
from corewise.accelerate.malleable.module_wrapper import Malleable

Make = Callable[..., Malleable]


class Predictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.left(x) + self.right(x)
        return result

    def predict(self, x: torch.Tensor, num: int = 2) -> torch.Tensor:
        """Call the module as `generate` of language models does."""
        for _ in range(num):
            x = self(x)
        return x

    def stream(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield self(x)

    def chain(self) -> "Predictor":
        return self

    def fail(self) -> None:
        raise KeyError("expected")


def test_a_method_uses_the_plan_of_the_module_s_calls(planned: Make) -> None:
    model, x = Predictor().eval(), torch.randn(8, 16)
    with torch.no_grad():
        fast = planned(model, x)
        torch.testing.assert_close(fast.predict(x, num=3), model.predict(x, num=3))
    assert fast.timeline()
    assert "Calls so far: 3 used a plan, 0 ran the module itself." in fast.explain()
    assert "forward" not in vars(model)
    assert fast.predict.__doc__ == Predictor.predict.__doc__


def test_a_method_makes_no_plan_for_inputs_that_it_sees_once(planned: Make) -> None:
    model = Predictor().eval()
    with torch.no_grad():
        fast = planned(model)
        for _ in range(3):
            for num_rows in range(1, 13):
                x = torch.randn(num_rows, 16)
                torch.testing.assert_close(fast.predict(x, num=1), model(x))
    assert not fast._plans
    assert "0 used a plan, 36 ran the module itself (36: inputs of this size were too rare" in fast.explain()


def test_a_method_that_repeats_its_inputs_gets_a_plan(planned: Make) -> None:
    model, x = Predictor().eval(), torch.randn(8, 16)
    with torch.no_grad():
        fast = planned(model)
        fast.predict(x, num=8)
    assert len(fast._plans) == 1
    assert fast.timeline()


def test_sizes_that_grow_from_call_to_call_are_not_planned_one_by_one(planned: Make) -> None:
    model = Predictor().eval()
    with torch.no_grad():
        fast = planned(model)
        for _ in range(3):
            for num_rows in range(1, 21):
                fast(torch.randn(num_rows, 16))
    # The first inputs of all are planned at once.
    assert len(fast._plans) == 1


def test_after_an_error_the_module_is_as_before(planned: Make) -> None:
    model = Predictor().eval()
    fast = planned(model)
    with pytest.raises(KeyError, match="expected"):
        fast.fail()
    assert "forward" not in vars(model)
    assert fast.chain() is fast


def test_generators_run_the_module_itself(planned: Make) -> None:
    model, x = Predictor().eval(), torch.randn(8, 16)
    with torch.no_grad():
        fast = planned(model, x)
        torch.testing.assert_close(next(iter(fast.stream(x))), model(x))
    assert fast.timeline() == []


def test_hooks_run_once_for_each_call_of_the_module(planned: Make) -> None:
    model, x, calls = Predictor().eval(), torch.randn(8, 16), []
    with torch.no_grad():
        fast = planned(model, x)
        model.register_forward_hook(lambda *_: calls.append(1))
        fast.predict(x, num=3)
    assert len(calls) == 3


def test_other_threads_that_call_the_module_meanwhile_get_its_results(planned: Make) -> None:
    model, x = Predictor().eval(), torch.randn(8, 16)
    wrong: list[Any] = []
    with torch.no_grad():
        fast = planned(model, x)
        wanted, chained = model(x), model.predict(x, num=5)

    def call(run: Callable[[], torch.Tensor], expected: torch.Tensor) -> None:
        with torch.no_grad():
            for _ in range(50):
                try:
                    torch.testing.assert_close(run(), expected)
                except Exception as problem:
                    wrong.append(problem)

    threads = [
        threading.Thread(target=call, args=(lambda: model(x), wanted)),
        threading.Thread(target=call, args=(lambda: fast.predict(x, num=5), chained)),
        threading.Thread(target=call, args=(lambda: fast.predict(x, num=5), chained)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert "forward" not in vars(model)


class SetsAttributes(Predictor):
    """Many modules note sizes in their first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_rows = len(x)
        return super().forward(x)


def test_attributes_that_only_the_first_call_changes_do_not_prevent_a_plan(planned: Make) -> None:
    model, x = SetsAttributes().eval(), torch.randn(8, 16)
    with torch.no_grad():
        fast = planned(model, x)
        assert "its forward changes attributes (num_rows)" in fast.explain()
        for _ in range(3):
            torch.testing.assert_close(fast(x), Predictor.forward(model, x))
        assert fast.timeline()
        assert "2 used a plan, 1 ran the module itself" in fast.explain()
        other = torch.randn(5, 16)
        torch.testing.assert_close(fast(other), Predictor.forward(model, other))
        assert model.num_rows == 5
        fast(x)
        assert model.num_rows == 8


def test_counts_name_the_most_frequent_reasons() -> None:
    counts = CallCounts()
    assert counts.describe() == ""
    counts.add()
    assert counts.describe() == "Calls so far: 1 used a plan, 0 ran the module itself."
    for number in range(6):
        for _ in range(6 - number):
            counts.add(f"reason {number}")
    assert counts.describe() == (
        "Calls so far: 1 used a plan, 21 ran the module itself "
        "(6: reason 0; 5: reason 1; 4: reason 2; 3: reason 3; 3: other reasons)."
    )


@pytest.fixture
def language_model() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).eval()


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_language_model_generates_the_same_tokens(planned: Make, language_model: Any, use_cache: bool) -> None:
    fast, ids = planned(language_model), torch.randint(2, 100, (1, 5))
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 1, "max_new_tokens": 6, "do_sample": False}
    for _ in range(2):
        wanted = language_model.generate(ids, use_cache=use_cache, **options)
        assert torch.equal(fast.generate(ids, use_cache=use_cache, **options), wanted)
    # Every token lengthens the sequence, so none of the lengths is worth a plan.
    assert not fast._plans
    reason = "an input holds a DynamicCache" if use_cache else "inputs of this size were too rare"
    assert f"12 ran the module itself (12: {reason}" in fast.explain()


def test_generate_uses_a_plan_that_was_prepared(planned: Make, language_model: Any) -> None:
    fast, ids = planned(language_model), torch.randint(2, 100, (1, 5))
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 1, "max_new_tokens": 3, "do_sample": False}
    seen: list[dict[str, Any]] = []
    handle = language_model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    wanted = language_model.generate(ids, use_cache=False, **options)
    handle.remove()
    with torch.no_grad():
        fast.prepare(**seen[0])
        assert torch.equal(fast.generate(ids, use_cache=False, **options), wanted)
    assert "1 used a plan, 2 ran the module itself" in fast.explain()


def test_a_returned_cache_continues_the_sequence(planned: Make, language_model: Any) -> None:
    fast, ids, more = planned(language_model), torch.randint(2, 100, (1, 5)), torch.tensor([[7]])
    with torch.no_grad():
        fast.prepare(ids)
        got, wanted = fast(ids), language_model(ids)
        assert fast.timeline()
        assert type(got.past_key_values) is type(wanted.past_key_values)
        torch.testing.assert_close(got.logits, wanted.logits)
        following = fast(more, past_key_values=got.past_key_values)
        torch.testing.assert_close(
            following.logits, language_model(more, past_key_values=wanted.past_key_values).logits
        )
