"""Compile once among ranks: the first rank compiles alone, results of CPU checks are cached."""

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.torch.modules.compile_once import cache_answers, compile_in_turn
from corewise.measured.runtimes.torch.settings import Settings


class VectorUnit:
    """Answers as torch's own classes do, and records each check."""

    answer = True
    checked: list[str]

    def __init__(self, flags: str) -> None:
        self.flags = flags

    def build_arch_flags(self) -> str:
        return self.flags

    def check_build(self, code: str) -> bool:
        self.checked.append(f"{self.flags} {code}")
        return self.answer


@pytest.fixture
def unit() -> type[VectorUnit]:
    return type("Fresh", (VectorUnit,), {"checked": []})


def test_a_positive_result_is_checked_once_by_all_processes(unit: type[VectorUnit], tmp_path: Path) -> None:
    # This class stands for a later process.
    another = type("Another", (VectorUnit,), {"checked": []})
    for each in (unit, another):
        cache_answers(each, tmp_path / "answers")
        assert each("-mavx2").check_build("code")
    assert unit.checked == ["-mavx2 code"]
    assert another.checked == []


def test_other_flags_and_other_code_are_other_questions(unit: type[VectorUnit], tmp_path: Path) -> None:
    cache_answers(unit, tmp_path)
    for flags, code in (("-mavx2", "a"), ("-mavx512f", "a"), ("-mavx2", "b")):
        assert unit(flags).check_build(code)
    assert unit.checked == ["-mavx2 a", "-mavx512f a", "-mavx2 b"]


def test_a_negative_result_is_checked_again(unit: type[VectorUnit], tmp_path: Path) -> None:
    cache_answers(unit, tmp_path)
    unit.answer = False
    assert not unit("-mamx").check_build("code")
    unit.answer = True
    assert unit("-mamx").check_build("code")


def test_results_that_cannot_be_cached_are_returned(unit: type[VectorUnit], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache_answers(unit, tmp_path / "file" / "answers")
    assert unit("-mavx2").check_build("code")


@pytest.fixture
def compiled() -> Settings:
    return Settings(torch.device("cpu"), "float32", "contiguous", "compile", training=False)


def rank(number: int, folder: Path) -> RankContext:
    (folder / "rendezvous").mkdir(exist_ok=True)
    return RankContext(number, 2, str(folder / "rendezvous"), 1, cache=str(folder / "cache"))


@pytest.mark.parametrize("fails", [False, True])
def test_the_other_ranks_wait_for_the_first_also_when_it_fails(compiled: Settings, tmp_path: Path, fails: bool) -> None:
    order: list[str] = []
    never = threading.Event()

    def second() -> None:
        with compile_in_turn(compiled, rank(1, tmp_path)):
            order.append("second")

    other = threading.Thread(target=second)
    try:
        with compile_in_turn(compiled, rank(0, tmp_path)):
            other.start()
            never.wait(0.2)
            order.append("first")
            if fails:
                raise RuntimeError("no space left")
    except RuntimeError:
        pass
    other.join(60)
    assert order == ["first", "second"]
    assert (tmp_path / "cache" / "compiled").exists() is not fails


def test_where_the_code_is_there_already_nobody_waits(compiled: Settings, tmp_path: Path) -> None:
    with compile_in_turn(compiled, rank(0, tmp_path)):
        pass
    # Otherwise it would wait for minutes.
    with compile_in_turn(compiled, rank(1, tmp_path)):
        assert (tmp_path / "cache" / "compiled").exists()
