"""Units next to printed numbers."""

import pytest

from corewise.tuning.scripts.rate_units import find_unit


@pytest.mark.parametrize(
    ("before", "after", "rate_of_two", "noun"),
    [
        ("", " img/s", 2.0, "images"),
        ("", " images per second", 2.0, "images"),
        ("", "it/s]", 2.0, "steps"),
        ("", "k tokens/s", 2000.0, "tokens"),
        ("", "ktokens/s", 2000.0, "tokens"),
        ("", " kernels/s", 2.0, "samples"),
        ("time ", "ms, mfu 3%", 500.0, "steps"),
        ("", "s/it", 0.5, "steps"),
        ("", " us", 500_000.0, "steps"),
        ("", "ms/sample", 500.0, "samples"),
        ("lr 20.00 | ms/batch ", " | loss 5", 500.0, "steps"),
        ("'train_samples_per_second': '", "', 'x'", 2.0, "samples"),
        ("tok/sec: ", " | dt", 2.0, "tokens"),
        ("Time ", " ( 3.2)", 0.5, "steps"),
        ("time (ms): ", "", 500.0, "steps"),
    ],
)
def test_a_number_is_converted_to_a_rate_by_its_unit(before: str, after: str, rate_of_two: float, noun: str) -> None:
    unit = find_unit(before, after)
    assert unit is not None
    assert unit.convert_to_rate(2.0) == pytest.approx(rate_of_two)
    assert unit.noun == noun


@pytest.mark.parametrize(("before", "after"), [("loss ", ", acc 3"), ("speed=", ""), ("epoch ", " samples"), ("", "x")])
def test_other_numbers_have_no_unit(before: str, after: str) -> None:
    assert find_unit(before, after) is None
