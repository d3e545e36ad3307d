"""Points of several workloads in one table."""

from corewise.cli.render.plan_points import split_constants

ENSEMBLE = {"workload": "lstm_ensemble", "threads": 1, "huge_pages": "default", "args.hidden": 10}
ENCODER = {"workload": "transformer", "threads": 1, "huge_pages": "default", "args.width": 512}


def test_a_parameter_that_only_one_workload_has_does_not_vary() -> None:
    constant, varying = split_constants([ENSEMBLE, ENCODER])
    assert varying == ["workload"]
    assert constant == "threads=1 args.hidden=10 args.width=512"


def test_it_varies_when_the_points_that_have_it_differ() -> None:
    _, varying = split_constants([ENSEMBLE, {**ENSEMBLE, "args.hidden": 20}, ENCODER])
    assert varying == ["workload", "args.hidden"]


def test_a_default_that_few_studies_touch_is_shown_only_if_it_differs() -> None:
    assert "huge_pages" not in split_constants([ENSEMBLE])[0]
    assert "huge_pages=transparent" in split_constants([{**ENSEMBLE, "huge_pages": "transparent"}])[0]
