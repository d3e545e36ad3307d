"""Points of several workloads in one table."""

from corewise.cli.points import constant_and_varying

ENSEMBLE = {"workload": "lstm_ensemble", "threads": 1, "huge_pages": "default", "args.hidden": 10}
ENCODER = {"workload": "transformer", "threads": 1, "huge_pages": "default", "args.width": 512}


def test_a_parameter_that_only_one_workload_has_does_not_vary() -> None:
    constant, varying = constant_and_varying([ENSEMBLE, ENCODER])
    assert varying == ["workload"]
    assert constant == "threads=1 args.hidden=10 args.width=512"


def test_it_varies_when_the_points_that_have_it_differ() -> None:
    _, varying = constant_and_varying([ENSEMBLE, {**ENSEMBLE, "args.hidden": 20}, ENCODER])
    assert varying == ["workload", "args.hidden"]


def test_a_default_that_few_studies_touch_is_told_only_where_it_is_not() -> None:
    assert "huge_pages" not in constant_and_varying([ENSEMBLE])[0]
    assert "huge_pages=transparent" in constant_and_varying([{**ENSEMBLE, "huge_pages": "transparent"}])[0]
