"""Costs and plans are kept for the next start, and a damaged file is as good as none."""

from collections.abc import Callable

import pytest
import torch
from tests.dataflow.made_kept import KEPT
from tests.dataflow.made_models import Wide

from corewise.dataflow import kept_costs
from corewise.dataflow.kept_costs import kept_key, load, save
from corewise.dataflow.malleable import Malleable

Make = Callable[..., Malleable]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_comes_back() -> None:
    save("key", KEPT)
    assert load("key", 2) == KEPT
    assert load("another", 2) is None
    assert load("key", 3) is None  # another program
    assert [path.name for path in kept_costs.folder().iterdir()] == ["key.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 0}', '{"schema": 1, "plan": 3}'])
def test_a_damaged_file_is_ignored_and_written_anew(text: str) -> None:
    save("key", KEPT)
    (kept_costs.folder() / "key.json").write_text(text)
    assert load("key", 2) is None
    save("key", KEPT)
    assert load("key", 2) == KEPT


def test_a_folder_that_cannot_be_written_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    save("key", KEPT)
    assert load("key", 2) is None


def test_the_key_tells_environments_versions_and_programs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept_key("program", 2, "2.0", "python", "")
    assert first == kept_key("program", 2, "2.0", "python", "")
    others = {
        kept_key("other", 2, "2.0", "python", ""),
        kept_key("program", 4, "2.0", "python", ""),
        kept_key("program", 2, "2.1", "python", ""),
        kept_key("program", 2, "2.0", "native", ""),
        kept_key("program", 2, "2.0", "python", "autocast"),
    }
    monkeypatch.setenv("GOMP_SPINCOUNT", "1234")
    others.add(kept_key("program", 2, "2.0", "python", ""))
    assert len(others | {first}) == 7


def test_the_second_start_plans_from_what_was_kept_even_after_damage(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(32, 16)
    with torch.no_grad():
        assert "Costs measured" in planned(model, x, keep=True).explain()
        fast = planned(model, x, keep=True)
        assert "Costs kept" in fast.explain()
        torch.testing.assert_close(fast(x), model(x))
        assert fast.timeline()
        [file] = kept_costs.folder().iterdir()
        file.write_text(file.read_text().replace('"lane": 0', '"lane": 77'))
        torch.testing.assert_close(planned(model, x, keep=True)(x), model(x))
