"""Race and fresh runs: a claim that only one of them supports is not made."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tuning.confirm.test_confirmation_runs import record
from tests.tuning.test_interrupted_tuning import BEST, DEFAULT, JUDGEMENTS, TWO, StoppedTuning, Target

from corewise.store.store import Store
from corewise.study.record import Record
from corewise.tuning import session
from corewise.tuning.confirm.confirmation_runs import Confirmation
from corewise.tuning.confirm.race_agreement import describe_disagreement
from corewise.tuning.result.result_text import build_conclusion, format_headline
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.judgements import Judgement, SearchState
from corewise.tuning.silent_progress import SilentProgress

Rates = tuple[float, float]


def build_records(default: float, best: float) -> dict[tuple[int, ...], Record]:
    return {each: record([rate, 1.01 * rate, 0.99 * rate]) for each, rate in ((DEFAULT, default), (BEST, best))}


def describe(default: float, best: float, score: float = math.log(2.0)) -> str:
    judgements = (
        Judgement(DEFAULT, "default", throughput=100.0),
        Judgement(BEST, "won", score=score, half_width=0.02, throughput=100.0 * math.exp(score)),
    )
    state = SearchState(BEST, {each.setting: each for each in judgements})
    return describe_disagreement(TWO, state, Confirmation(build_records(default, best)))


def test_runs_that_agree_within_the_noise_are_not_mentioned() -> None:
    assert describe(100.0, 200.0) == ""
    assert describe(80.0, 150.0) == ""


def test_another_gain_is_described_with_both_figures() -> None:
    assert describe(100.0, 106.0).startswith("a 1 was 2.00× the default in the search, but 1.06× (")


def test_the_same_gain_from_runs_that_are_many_times_slower_is_described_too() -> None:
    text = describe(100.0 / 31, 200.0 / 31)
    assert "default gave 100 samples/s in the search and 3.23 in fresh runs" in text
    assert "a 1 gave 200 samples/s in the search and 6.45 in fresh runs" in text


class RepeatingTuning(StoppedTuning):
    """A tuning whose fresh runs have given rates."""

    phase = "never"
    first: Rates = (1.0, 2.0)
    second: Rates = (1.0, 2.0)
    num_repeats = 0

    def _confirm(self) -> Any:
        return Confirmation(build_records(*self.first))

    def _run_fresh(self, roles: Mapping[Any, Any], protocols: Any, generation: str) -> Confirmation:
        self.num_repeats += 1
        return Confirmation(build_records(*self.second))


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float = 600.0, **rates: Rates) -> TuneResult:
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: 0.0))
    tunable: Any = Target()
    tuning = RepeatingTuning(tunable, Store.open(tmp_path / "s", create=True), SilentProgress(), budget_s=budget_s)
    for name, pair in rates.items():
        setattr(tuning, name, pair)
    assert JUDGEMENTS[1].score == 0.7
    return tuning.run()


def test_a_repeat_that_agrees_with_the_race_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch, first=(1.0, 1.0))
    assert (result.verdict, result.disagreement) == ("faster", "")
    assert any("were repeated" in each for each in result.cautions)


def test_a_setting_whose_fresh_runs_are_not_faster_is_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, monkeypatch, first=(1.0, 1.0), second=(1.0, 0.98))
    assert (result.verdict, result.best.label) == ("no difference", "default")
    headline = format_headline(result)
    assert headline.startswith(
        "No recommendation, because the figures disagree: a 1 was 2.01× the default in the search"
    )
    assert "0.98×" in headline
    assert build_conclusion(result)["Type"].startswith("no change")


def test_a_gain_that_only_repeated_fresh_runs_show_is_claimed_with_their_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, monkeypatch, first=(1.0, 1.3), second=(1.0, 1.3))
    assert result.verdict == "faster"
    assert result.speedup == pytest.approx(1.3, rel=0.01)
    assert "measured twice. The search disagrees: a 1 was 2.01×" in format_headline(result)
    assert any("disagree: a 1 was 2.01×" in each for each in result.cautions)


def test_without_time_for_a_repeat_nothing_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch, budget_s=0.1, first=(0.03, 0.3), second=(1.0, 2.0))
    assert (result.verdict, result.best.label) == ("no difference", "default")
    assert format_headline(result).startswith("No recommendation")


def test_fresh_runs_that_agree_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, second=(1.0, 1.0)).verdict == "faster"
