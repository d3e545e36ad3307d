"""Costs and plans are cached for the next run, and damaged files are ignored."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.accelerate.malleable.plan.sample_cached_plan import CACHED_PLAN
from tests.accelerate.sample_models import Wide

from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan import cost_cache
from corewise.accelerate.malleable.plan.cost_cache import compute_cache_key, load_plan, save_plan

Make = Callable[..., Malleable]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_saved_plan_is_loaded() -> None:
    save_plan("key", CACHED_PLAN)
    assert load_plan("key", 2) == CACHED_PLAN
    assert load_plan("another", 2) is None
    # The program has another number of calls.
    assert load_plan("key", 3) is None
    assert [path.name for path in cost_cache.get_cache_folder().iterdir()] == ["key.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 0}', '{"schema": 1, "plan": 3}'])
def test_a_damaged_file_is_ignored_and_rewritten(text: str) -> None:
    save_plan("key", CACHED_PLAN)
    (cost_cache.get_cache_folder() / "key.json").write_text(text)
    assert load_plan("key", 2) is None
    save_plan("key", CACHED_PLAN)
    assert load_plan("key", 2) == CACHED_PLAN


def test_a_folder_that_cannot_be_written_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREWISE_PLANS", "/proc/nowhere")
    save_plan("key", CACHED_PLAN)
    assert load_plan("key", 2) is None


def test_the_key_differs_between_environments_versions_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compute_cache_key("program", 2, "2.0", "python", "")
    assert first == compute_cache_key("program", 2, "2.0", "python", "")
    others = {
        compute_cache_key("other", 2, "2.0", "python", ""),
        compute_cache_key("program", 4, "2.0", "python", ""),
        compute_cache_key("program", 2, "2.1", "python", ""),
        compute_cache_key("program", 2, "2.0", "native", ""),
        compute_cache_key("program", 2, "2.0", "python", "autocast"),
    }
    monkeypatch.setenv("GOMP_SPINCOUNT", "1234")
    others.add(compute_cache_key("program", 2, "2.0", "python", ""))
    assert len(others | {first}) == 7


def test_the_second_run_uses_cached_costs_and_survives_damage(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(32, 16)
    with torch.no_grad():
        assert "Costs measured" in planned(model, x, keep=True).explain()
        fast = planned(model, x, keep=True)
        assert "Costs cached" in fast.explain()
        torch.testing.assert_close(fast(x), model(x))
        assert fast.timeline()
        [file] = cost_cache.get_cache_folder().iterdir()
        file.write_text(file.read_text().replace('"lane": 0', '"lane": 77'))
        torch.testing.assert_close(planned(model, x, keep=True)(x), model(x))


@pytest.mark.parametrize("name", ["key.json", "."])
def test_a_plan_of_someone_else_is_not_read(
    name: str, temporary: Path, give_away: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    save_plan("key", CACHED_PLAN)
    assert load_plan("key", 2) == CACHED_PLAN
    path = give_away(cost_cache.get_cache_folder() / name)
    assert load_plan("key", 2) is None
    assert f"{path} belongs to uid 65534" in caplog.text
    # The next plan is kept all the same.
    save_plan("key", CACHED_PLAN)
    assert load_plan("key", 2) == CACHED_PLAN
