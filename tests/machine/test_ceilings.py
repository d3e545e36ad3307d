"""Ceilings as values: what bounds a trial, and files that outlive damage."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_ceilings import ceiling, made_ceilings

from corewise.machine.ceilings import BUSY, Ceilings, Roof, interpolated, value_used
from corewise.machine.kept_ceilings import keep, kept_path, read_kept
from corewise.spec.errors import UserError

SHAPE = [[4, 4], [4, 4]]


def kept(cache: Path, runtime: str = "torch", version: str = "2.13.0+cpu") -> Any:
    return read_kept(cache, "aaaa1111bbbb", SHAPE, runtime, version)


def test_the_json_has_the_names_others_rely_on() -> None:
    told = json.loads(json.dumps(made_ceilings().to_json()))
    assert set(told) == {
        "schema", "measured_at", "took_s", "runtime", "version", "hostname", "cpu_model", "host_class",
        "allocation", "bandwidth", "peak", "notes",
    }  # fmt: skip
    shared = {"kind", "dtype", "device", "gpu", "threads", "placement", "nodes", "spread", "num_samples"}
    shared |= {"measured_at", "busy"}
    assert set(told["bandwidth"][0]) == shared | {"gbyte_per_s", "median_gbyte_per_s", "array_bytes"}
    assert set(told["peak"][0]) == shared | {"gflop_per_s", "median_gflop_per_s", "size"}
    assert told["bandwidth"][0]["spread"] == pytest.approx(0.1)


def test_ceilings_come_back_from_their_json() -> None:
    made = made_ceilings()
    again = Ceilings.from_json(json.loads(json.dumps(made.to_json())))
    assert set(again.figures) == set(made.figures)
    assert replace(again, figures=(), took_s=0.0) == replace(made, figures=(), took_s=0.0)


@pytest.mark.parametrize(
    ("dtype", "threads", "peak", "bandwidth"),
    [
        ("float32", 1, 50.0, 12.0),
        ("float32", 3, 150.0, 31.0),  # between 2 and 4 threads
        ("float64", 8, 200.0, 80.0),
        ("complex128", 8, 200.0, 80.0),
        ("float32", 16, 400.0, 80.0),  # beyond what was measured: no more than that
        ("int8", 8, None, 80.0),
    ],
)
def test_the_roof_over_host_threads(dtype: str, threads: int, peak: float | None, bandwidth: float) -> None:
    assert made_ceilings().roof(dtype, "cpu", threads=threads) == Roof(peak, bandwidth)


def test_spread_threads_have_their_own_bandwidth_where_it_was_measured() -> None:
    made = made_ceilings()
    assert made.roof("float32", "cpu", threads=2, placement="spread").gbyte_per_s == 24.0
    assert made.roof("float32", "cpu", threads=8, placement="spread").gbyte_per_s == 80.0
    assert made.roof("float32", "cpu", threads=2).gbyte_per_s == 22.0


def test_gpus_have_their_own_roof_and_no_more_of_them_than_there_are() -> None:
    made = made_ceilings()
    assert made.roof("tf32", "cuda", threads=1) == Roof(380e3, 4300.0)
    assert made.roof("float16", "cuda", threads=1, gpus=4) == Roof(790e3, 4300.0)
    assert made.roof("float64", "cuda", threads=1).gflop_per_s is None


def test_what_limits_changes_at_the_ridge() -> None:
    roof = Roof(100.0, 10.0)
    below, above = roof.attainable(9.0, 1.0), roof.attainable(11.0, 1.0)
    assert below is not None
    assert above is not None
    assert (below.limit, above.limit) == ("memory", "compute")
    assert below.seconds == pytest.approx(1e-10)
    assert above.seconds == pytest.approx(1.1e-10)


def test_work_without_flops_is_bound_by_memory_alone() -> None:
    found = Roof(None, 10.0).attainable(0.0, 5e9)
    assert found is not None
    assert (found.limit, found.seconds) == ("memory", 0.5)


def test_an_unknown_peak_or_bandwidth_is_no_roof() -> None:
    assert Roof(None, 10.0).attainable(1.0, 1.0) is None
    assert Roof(10.0, None).attainable(1.0, 1.0) is None
    assert Roof(10.0, None).attainable(1.0, 0.0) is not None
    assert Roof(10.0, 10.0).attainable(0.0, 0.0) is None


@given(
    st.dictionaries(st.integers(1, 256), st.floats(0.1, 1e6), min_size=1),
    st.integers(1, 512),
    st.integers(1, 512),
)
def test_more_threads_never_have_a_lower_ceiling(curve: dict[int, float], a: int, b: int) -> None:
    low, high = interpolated(curve, min(a, b)), interpolated(curve, max(a, b))
    assert low is not None
    assert high is not None
    assert 0 < low <= high * (1 + 1e-9) <= max(curve.values()) * (1 + 1e-8)


def test_kept_ceilings_are_found_again(tmp_path: Path) -> None:
    assert kept(tmp_path).ceilings is None
    path = keep(tmp_path, made_ceilings())
    assert path == kept_path(tmp_path, made_ceilings())
    found = kept(tmp_path)
    assert found.ceilings is not None
    assert found.damage == ()
    assert found.ceilings.version == "2.13.0+cpu"
    assert os.listdir(path.parent) == [path.name]  # nothing is left beside it


def test_another_machine_or_allocation_has_other_ceilings(tmp_path: Path) -> None:
    keep(tmp_path, made_ceilings())
    assert read_kept(tmp_path, "cccc", SHAPE).ceilings is None
    assert read_kept(tmp_path, "aaaa1111bbbb", [[4, 4]]).ceilings is None


def test_this_frameworks_ceilings_come_before_others_and_torchs_before_numpys(tmp_path: Path) -> None:
    keep(tmp_path, made_ceilings(runtime="numpy", version="2.4.6"))
    keep(tmp_path, made_ceilings())
    keep(tmp_path, made_ceilings(version="2.14.0", measured_at="2027-01-01T00:00:00.000Z"))
    for runtime, version, expected in (
        ("numpy", "2.4.6", "2.4.6"),
        ("torch", "2.13.0+cpu", "2.13.0+cpu"),
        ("torch", "2.99", "2.14.0"),  # the newest of torch
        ("jax", "0.10", "2.14.0"),
    ):
        found = kept(tmp_path, runtime, version).ceilings
        assert found is not None
        assert found.version == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"x"', "null", '{"schema": 1}', '{"schema": 99}', "\x00\xff", "[[[[", "[" * 100_000],
    ids=lambda text: text[:15],
)
def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    path = keep(tmp_path, made_ceilings())
    path.write_text(text, encoding="latin-1")
    found = kept(tmp_path)
    assert found.ceilings is None
    [damage] = found.damage
    assert str(path) in damage


@pytest.mark.parametrize("value", [-1, "fast", None, float("inf"), 0])
def test_a_figure_that_cannot_be_is_damage(tmp_path: Path, value: Any) -> None:
    told = made_ceilings().to_json()
    told["peak"][0]["gflop_per_s"] = value
    keep(tmp_path, made_ceilings()).write_text(json.dumps(told))
    assert kept(tmp_path).ceilings is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "squad"),
        ("device", "tpu"),
        ("placement", "gpu"),
        ("placement", "somewhere"),
        ("gpu", 0),
        ("threads", float("inf")),
        ("threads", 1e300),
        ("threads", 0),
        ("threads", True),
        ("threads", "2"),
        ("num_samples", 0),
        ("array_bytes", float("nan")),
        ("nodes", [float("inf")]),
        ("nodes", 3),
        ("gbyte_per_s", float("nan")),
        ("median_gbyte_per_s", float("-inf")),
    ],
)
def test_nonsense_in_a_file_is_damage_that_measuring_again_mends(
    tmp_path: Path, name: str, value: Any
) -> None:
    told = made_ceilings().to_json()
    told["bandwidth"][0][name] = value
    path = keep(tmp_path, made_ceilings())
    path.write_text(json.dumps(told))
    found = kept(tmp_path)
    assert found.ceilings is None
    assert str(path) in found.damage[0]
    keep(tmp_path, made_ceilings())
    assert kept(tmp_path).damage == ()
    assert kept(tmp_path).ceilings is not None


@pytest.mark.parametrize(
    "foreign",
    [{"host_class": "cccc"}, {"allocation": ((2, 2),)}, {"runtime": "numpy"}, {"version": "1.0"}],
    ids=str,
)
def test_what_belongs_elsewhere_is_not_believed_nor_kept_on(tmp_path: Path, foreign: dict[str, Any]) -> None:
    path = keep(tmp_path, made_ceilings())
    high = tuple(replace(each, best=9e9) for each in made_ceilings().figures)
    path.write_text(json.dumps(made_ceilings(figures=high, **foreign).to_json()))
    found = kept(tmp_path)
    assert found.ceilings is None
    assert "holds the ceilings of" in found.damage[0]
    keep(tmp_path, made_ceilings())
    assert set(kept(tmp_path).ceilings.figures) == set(made_ceilings().figures)


def test_a_file_without_dates_of_its_figures_has_that_of_the_whole(tmp_path: Path) -> None:
    told = made_ceilings().to_json()
    for each in (*told["bandwidth"], *told["peak"]):
        del each["measured_at"], each["busy"]
    keep(tmp_path, made_ceilings()).write_text(json.dumps(told))
    assert set(kept(tmp_path).ceilings.figures) == set(made_ceilings().figures)


def later(times: float, is_busy: bool, **changes: Any) -> Ceilings:
    """The same ceilings measured a day later, all so many times as high."""
    when = "2026-11-16T10:00:00.000Z"
    figures = [
        replace(each, best=times * each.best, median=times * each.median, measured_at=when, is_busy=is_busy)
        for each in made_ceilings().figures
    ]
    notes = (BUSY,) if is_busy else ()
    made: Ceilings = made_ceilings(
        **{"figures": tuple(figures), "notes": notes, "measured_at": when, **changes}
    )
    return made


def test_measuring_on_a_busy_machine_lowers_nothing_that_was_reached(tmp_path: Path) -> None:
    keep(tmp_path, made_ceilings())
    keep(tmp_path, later(0.5, is_busy=True))
    found = kept(tmp_path).ceilings
    assert set(found.figures) == set(made_ceilings().figures)  # with their own date, and not busy
    assert found.measured_at == "2026-11-16T10:00:00.000Z"
    assert not found.is_busy()
    assert BUSY not in found.notes


def test_each_figure_is_the_higher_one_with_its_own_date(tmp_path: Path) -> None:
    first = made_ceilings()
    new = later(0.5, is_busy=False)
    raised = replace(new.figures[3], best=1e5, median=9e4)
    keep(tmp_path, first)
    keep(tmp_path, replace(new, figures=(raised, *new.figures[5:])))
    found = {each.what: each for each in kept(tmp_path).ceilings.figures}
    assert found.pop(raised.what) == raised
    assert set(found.values()) == {each for each in first.figures if each.what != raised.what}


def test_ceilings_only_ever_measured_busy_are_marked_until_a_quiet_measuring(tmp_path: Path) -> None:
    keep(tmp_path, later(0.5, is_busy=True))
    keep(tmp_path, later(0.6, is_busy=True))
    busy = kept(tmp_path).ceilings
    assert busy.is_busy("cpu")
    assert busy.notes[0] == BUSY
    keep(tmp_path, later(0.55, is_busy=False))
    quiet = kept(tmp_path).ceilings
    assert not quiet.is_busy()
    assert {each.what: each.best for each in quiet.figures} == {e.what: e.best for e in busy.figures}


def test_asked_to_measure_again_lower_figures_replace_higher_ones(tmp_path: Path) -> None:
    keep(tmp_path, made_ceilings())
    keep(tmp_path, later(0.5, is_busy=False), again=True)
    assert set(kept(tmp_path).ceilings.figures) == set(later(0.5, is_busy=False).figures)


def test_the_value_used_where_more_threads_were_slower_is_that_of_fewer() -> None:
    figures = [ceiling("triad", best, threads=n) for n, best in ((1, 10.0), (2, 18.1), (4, 9.7))]
    assert [value_used(each, figures) for each in figures] == [10.0, 18.1, 18.1]
    node = ceiling("triad", 5.0, threads=4, placement="node")
    assert value_used(node, [*figures, node]) == 5.0  # its own CPUs, no wider place


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "ceilings").write_text("a file stands in the way")
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        keep(tmp_path, made_ceilings())
    assert kept(tmp_path).ceilings is None
