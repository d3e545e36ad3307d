"""Printed numbers of scripts, compared with those of the default."""

import math
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.tuning.scripts.output_check import NUM_COMPARED, PrintedNumber, ReferenceNumbers
from corewise.tuning.scripts.throughput_parser import ANY_NUMBER, PrintedTexts, read_pattern
from corewise.tuning.search.arena import Rejection


def parse_numbers(*texts: str) -> list[PrintedNumber]:
    return [PrintedNumber.parse(text) for text in texts]


def build_reference(*texts: str, scatter: float = 0.0) -> ReferenceNumbers:
    return ReferenceNumbers(parse_numbers(*texts), scatter)


def test_the_same_numbers_have_no_error() -> None:
    assert build_reference("2.3026", "2.1").judge(parse_numbers("2.3026", "2.1"), num_processes=1) == 0.0


def test_print_rounding_is_no_error() -> None:
    assert build_reference("0.01").judge(parse_numbers("0.02"), num_processes=1) == 0.0
    assert PrintedNumber.parse("1.5e-3").unit == pytest.approx(1e-4)
    assert PrintedNumber.parse("12").unit == 1.0


def test_a_different_number_is_rejected_with_both_values() -> None:
    with pytest.raises(Rejection, match=r"printed number 2 is 2\.4, but 2\.1 for the default") as caught:
        build_reference("2.3000", "2.1000").judge(parse_numbers("2.3000", "2.4000"), num_processes=1)
    assert caught.value.category == "check"


@pytest.mark.parametrize("text", ["nan", "-inf", "NaN"])
def test_a_number_that_is_not_finite_is_rejected_at_any_position(text: str) -> None:
    late = [*["1.0"] * (NUM_COMPARED + 3), text]
    with pytest.raises(Rejection, match="it printed"):
        build_reference(*["1.0"] * 20).judge(parse_numbers(*late), num_processes=1)


def test_only_the_first_numbers_are_compared() -> None:
    equal = ["1.0000"] * NUM_COMPARED
    assert build_reference(*equal, "1.0000").judge(parse_numbers(*equal, "3.0000"), num_processes=1) == 0.0


def test_distributed_training_and_a_noisy_default_have_larger_tolerances() -> None:
    with pytest.raises(Rejection):
        build_reference("2.0000").judge(parse_numbers("2.1000"), num_processes=1)
    assert 0.04 < build_reference("2.0000").judge(parse_numbers("2.1000"), num_processes=2) < 0.05
    assert build_reference("2.0000", scatter=0.05).judge(parse_numbers("2.1000"), num_processes=1) > 0


def test_numbers_are_read_as_they_are_printed_of_one_rank_alone(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_text("[0] loss 2.30\n[1] loss 9.99\n[0] loss nan\n[0] lo")
    printed = PrintedTexts(path, read_pattern("loss {}", "--check", ANY_NUMBER), prefix="[0] ")
    assert printed.read_new_texts() == ["2.30", "nan"]
    with path.open("a") as file:
        file.write("ss 1e-3\n")
    assert printed.read_new_texts() == ["1e-3"]


def test_an_invalid_check_pattern_is_reported_with_its_option() -> None:
    with pytest.raises(UserError, match="--check loss: mark the number"):
        read_pattern("loss", "--check", ANY_NUMBER)
    assert math.isnan(PrintedNumber.parse("").value)
