"""Numbers that scripts print, held to those of the default."""

import math
from pathlib import Path

import pytest

from corewise.spec.errors import UserError
from corewise.tuner.arena import Rejected
from corewise.tuner.heard import ANY_NUMBER, Printed, read_pattern
from corewise.tuner.script_check import NUM_COMPARED, Number, Reference


def numbers(*texts: str) -> list[Number]:
    return [Number.of(text) for text in texts]


def reference(*texts: str, scatter: float = 0.0) -> Reference:
    return Reference(numbers(*texts), scatter)


def test_the_same_numbers_have_no_error() -> None:
    assert reference("2.3026", "2.1").judge(numbers("2.3026", "2.1"), num_processes=1) == 0.0


def test_what_printing_rounds_off_is_no_error() -> None:
    assert reference("0.01").judge(numbers("0.02"), num_processes=1) == 0.0
    assert Number.of("1.5e-3").unit == pytest.approx(1e-4)
    assert Number.of("12").unit == 1.0


def test_another_number_is_rejected_with_both() -> None:
    with pytest.raises(Rejected, match=r"number 2 that it printed is 2\.4, the default's 2\.1") as caught:
        reference("2.3000", "2.1000").judge(numbers("2.3000", "2.4000"), num_processes=1)
    assert caught.value.kind == "check"


@pytest.mark.parametrize("text", ["nan", "-inf", "NaN"])
def test_what_is_not_finite_is_rejected_wherever_it_stands(text: str) -> None:
    late = [*["1.0"] * (NUM_COMPARED + 3), text]
    with pytest.raises(Rejected, match="it printed"):
        reference(*["1.0"] * 20).judge(numbers(*late), num_processes=1)


def test_only_the_first_numbers_are_compared_for_later_ones_drift() -> None:
    same = ["1.0000"] * NUM_COMPARED
    assert reference(*same, "1.0000").judge(numbers(*same, "3.0000"), num_processes=1) == 0.0


def test_processes_that_train_together_may_differ_more_and_so_may_a_restless_default() -> None:
    with pytest.raises(Rejected):
        reference("2.0000").judge(numbers("2.1000"), num_processes=1)
    assert 0.04 < reference("2.0000").judge(numbers("2.1000"), num_processes=2) < 0.05
    assert reference("2.0000", scatter=0.05).judge(numbers("2.1000"), num_processes=1) > 0


def test_numbers_are_read_as_they_are_printed_of_one_rank_alone(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_text("[0] loss 2.30\n[1] loss 9.99\n[0] loss nan\n[0] lo")
    printed = Printed(path, read_pattern("loss {}", "--check", ANY_NUMBER), only="[0] ")
    assert printed.new_texts() == ["2.30", "nan"]
    with path.open("a") as file:
        file.write("ss 1e-3\n")
    assert printed.new() == [1e-3]


def test_a_pattern_of_a_check_that_is_none_is_told_by_its_option() -> None:
    with pytest.raises(UserError, match="--check loss: put the number in parentheses"):
        read_pattern("loss", "--check", ANY_NUMBER)
    assert math.isnan(Number.of("").value)
