import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.cli.render.sparklines import count_histogram, draw_sparkline
from corewise.text_format import (
    clean_text,
    format_duration,
    format_memory,
    format_number,
    format_parameters,
    format_percent,
    replace_unprintable,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18.3, "18.30"), (1234.5, "1,234"), (123456.0, "123,456"), (0.0123, "0.01230"), (1, "1.000"),
        (3.2e-9, "3.2e-09"), (0, "0"), (None, "-"), (float("nan"), "-"), (-18.3, "-18.30"),
    ],
)  # fmt: skip
def test_a_number_has_four_significant_digits(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.2345, "1.23 s"), (0.432, "432 ms"), (5.67e-6, "5.67 µs"), (2e-9, "2 ns"), (0.99996, "1.00 s"),
        (600.0, "600 s"), (0.0, "0 ns"), (None, "-"),
    ],
)  # fmt: skip
def test_a_duration_has_three_significant_digits_and_its_unit(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(3 * 2**30, "3.00 GiB"), (1536, "1.50 KiB"), (12, "12 B"), (0, "0 B"), (None, "-")]
)
def test_memory_has_its_binary_unit(num_bytes, text):
    assert format_memory(num_bytes) == text


def test_shares_and_points_read_as_people_write_them():
    assert (format_percent(0.0123), format_percent(None)) == ("1.2", "-")
    assert format_parameters({"threads": 4, "smt": True, "interop_threads": None, "args.size": 3}) == (
        "threads=4 smt=yes interop_threads=- size=3"
    )


def test_a_sparkline_follows_the_values_in_their_order():
    assert draw_sparkline([1, 2, 3, 4, 5, 6, 7, 8], 20) == "▁▂▃▄▅▆▇█"
    assert draw_sparkline([1.0] * 5, 20) == "▁▁▁▁▁"
    assert draw_sparkline([1.0] * 50 + [2.0] * 50, 4) == "▁▁██"
    assert draw_sparkline([], 4) == ""


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=150))
def test_a_histogram_counts_every_value_once(values):
    bins = count_histogram(values)
    assert sum(count for *_, count in bins) == len(values)
    assert bins[0][0] == min(values)


def test_a_few_very_slow_samples_do_not_flatten_the_histogram():
    bins = count_histogram([1 + i / 1000 for i in range(990)] + [50.0] * 10)
    assert bins[-1][1:] == (50.0, 10 + 9)
    assert max(count for *_, count in bins) < 120


@given(st.text())
def test_nothing_that_does_not_print_is_left_in_clean_text(text):
    assert clean_text(text).isprintable()
    assert replace_unprintable(text).isprintable()
