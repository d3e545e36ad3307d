"""Ceilings as values: what bounds a trial, and files that outlive damage."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.sample_ceilings import build_ceiling, build_ceilings

from corewise.errors import UserError
from corewise.machine.ceilings.cache import build_cache_path, read_cached_ceilings, save_ceilings
from corewise.machine.ceilings.table import BUSY_NOTE, Ceilings, Roof, find_effective_value, interpolate_curve

SHAPE = [[4, 4], [4, 4]]


def read_cache(cache: Path, runtime: str = "torch", version: str = "2.13.0+cpu") -> Any:
    return read_cached_ceilings(cache, "aaaa1111bbbb", SHAPE, runtime, version)


def test_the_json_has_the_names_others_rely_on() -> None:
    data = json.loads(json.dumps(build_ceilings().to_json()))
    assert set(data) == {
        "schema", "measured_at", "took_s", "runtime", "version", "hostname", "cpu_model", "host_class",
        "allocation", "bandwidth", "peak", "notes",
    }  # fmt: skip
    shared = {"kind", "dtype", "device", "gpu", "threads", "placement", "nodes", "spread", "num_samples"}
    shared |= {"measured_at", "busy"}
    assert set(data["bandwidth"][0]) == shared | {"gbyte_per_s", "median_gbyte_per_s", "array_bytes"}
    assert set(data["peak"][0]) == shared | {"gflop_per_s", "median_gflop_per_s", "size"}
    assert data["bandwidth"][0]["spread"] == pytest.approx(0.1)


def test_ceilings_come_back_from_their_json() -> None:
    made = build_ceilings()
    again = Ceilings.from_json(json.loads(json.dumps(made.to_json())))
    assert set(again.figures) == set(made.figures)
    assert replace(again, figures=(), took_s=0.0) == replace(made, figures=(), took_s=0.0)


@pytest.mark.parametrize(
    ("dtype", "threads", "peak", "bandwidth"),
    [
        ("float32", 1, 50.0, 12.0),
        # Three threads lie between the measured two and four.
        ("float32", 3, 150.0, 31.0),
        ("float64", 8, 200.0, 80.0),
        ("complex128", 8, 200.0, 80.0),
        # Beyond the measured threads, the ceiling does not grow.
        ("float32", 16, 400.0, 80.0),
        ("int8", 8, None, 80.0),
    ],
)
def test_the_roof_over_host_threads(dtype: str, threads: int, peak: float | None, bandwidth: float) -> None:
    assert build_ceilings().find_roof(dtype, "cpu", threads=threads) == Roof(peak, bandwidth)


def test_spread_threads_have_their_own_bandwidth_where_it_was_measured() -> None:
    made = build_ceilings()
    assert made.find_roof("float32", "cpu", threads=2, placement="spread").gbyte_per_s == 24.0
    assert made.find_roof("float32", "cpu", threads=8, placement="spread").gbyte_per_s == 80.0
    assert made.find_roof("float32", "cpu", threads=2).gbyte_per_s == 22.0


def test_gpus_have_their_own_roof_and_no_more_of_them_than_there_are() -> None:
    made = build_ceilings()
    assert made.find_roof("tf32", "cuda", threads=1) == Roof(380e3, 4300.0)
    assert made.find_roof("float16", "cuda", threads=1, gpus=4) == Roof(790e3, 4300.0)
    assert made.find_roof("float64", "cuda", threads=1).gflop_per_s is None


def test_what_limits_changes_at_the_ridge() -> None:
    roof = Roof(100.0, 10.0)
    below, above = roof.compute_attainable(9.0, 1.0), roof.compute_attainable(11.0, 1.0)
    assert below is not None
    assert above is not None
    assert (below.limit, above.limit) == ("memory", "compute")
    assert below.seconds == pytest.approx(1e-10)
    assert above.seconds == pytest.approx(1.1e-10)


def test_work_without_flops_is_bound_by_memory_alone() -> None:
    result = Roof(None, 10.0).compute_attainable(0.0, 5e9)
    assert result is not None
    assert (result.limit, result.seconds) == ("memory", 0.5)


def test_an_unknown_peak_or_bandwidth_is_no_roof() -> None:
    assert Roof(None, 10.0).compute_attainable(1.0, 1.0) is None
    assert Roof(10.0, None).compute_attainable(1.0, 1.0) is None
    assert Roof(10.0, None).compute_attainable(1.0, 0.0) is not None
    assert Roof(10.0, 10.0).compute_attainable(0.0, 0.0) is None


@given(st.dictionaries(st.integers(1, 256), st.floats(0.1, 1e6), min_size=1), st.integers(1, 512), st.integers(1, 512))
def test_more_threads_never_have_a_lower_ceiling(curve: dict[int, float], a: int, b: int) -> None:
    low, high = interpolate_curve(curve, min(a, b)), interpolate_curve(curve, max(a, b))
    assert low is not None
    assert high is not None
    assert 0 < low <= high * (1 + 1e-9) <= max(curve.values()) * (1 + 1e-8)


def test_saved_ceilings_are_read_back(tmp_path: Path) -> None:
    assert read_cache(tmp_path).ceilings is None
    path = save_ceilings(tmp_path, build_ceilings())
    assert path == build_cache_path(tmp_path, build_ceilings())
    result = read_cache(tmp_path)
    assert result.ceilings is not None
    assert result.problems == ()
    assert result.ceilings.version == "2.13.0+cpu"
    assert os.listdir(path.parent) == [path.name]


def test_another_machine_or_allocation_has_other_ceilings(tmp_path: Path) -> None:
    save_ceilings(tmp_path, build_ceilings())
    assert read_cached_ceilings(tmp_path, "cccc", SHAPE).ceilings is None
    assert read_cached_ceilings(tmp_path, "aaaa1111bbbb", [[4, 4]]).ceilings is None


def test_this_frameworks_ceilings_come_before_others_and_torchs_before_numpys(tmp_path: Path) -> None:
    save_ceilings(tmp_path, build_ceilings(runtime="numpy", version="2.4.6"))
    save_ceilings(tmp_path, build_ceilings())
    save_ceilings(tmp_path, build_ceilings(version="2.14.0", measured_at="2027-01-01T00:00:00.000Z"))
    for runtime, version, expected in (
        ("numpy", "2.4.6", "2.4.6"),
        ("torch", "2.13.0+cpu", "2.13.0+cpu"),
        # Without ceilings of this version, the newest ones of torch are used.
        ("torch", "2.99", "2.14.0"),
        ("jax", "0.10", "2.14.0"),
    ):
        result = read_cache(tmp_path, runtime, version).ceilings
        assert result is not None
        assert result.version == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"x"', "null", '{"schema": 1}', '{"schema": 99}', "\x00\xff", "[[[[", "[" * 100_000],
    ids=lambda text: text[:15],
)
def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    path = save_ceilings(tmp_path, build_ceilings())
    path.write_text(text, encoding="latin-1")
    result = read_cache(tmp_path)
    assert result.ceilings is None
    [problem] = result.problems
    assert str(path) in problem


@pytest.mark.parametrize("value", [-1, "fast", None, float("inf"), 0])
def test_a_figure_that_cannot_be_is_damage(tmp_path: Path, value: Any) -> None:
    data = build_ceilings().to_json()
    data["peak"][0]["gflop_per_s"] = value
    save_ceilings(tmp_path, build_ceilings()).write_text(json.dumps(data))
    assert read_cache(tmp_path).ceilings is None


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
def test_nonsense_in_a_file_is_damage_that_a_new_measurement_repairs(tmp_path: Path, name: str, value: Any) -> None:
    data = build_ceilings().to_json()
    data["bandwidth"][0][name] = value
    path = save_ceilings(tmp_path, build_ceilings())
    path.write_text(json.dumps(data))
    result = read_cache(tmp_path)
    assert result.ceilings is None
    assert str(path) in result.problems[0]
    save_ceilings(tmp_path, build_ceilings())
    assert read_cache(tmp_path).problems == ()
    assert read_cache(tmp_path).ceilings is not None


@pytest.mark.parametrize(
    "foreign", [{"host_class": "cccc"}, {"allocation": ((2, 2),)}, {"runtime": "numpy"}, {"version": "1.0"}], ids=str
)
def test_ceilings_of_another_machine_are_neither_used_nor_merged(tmp_path: Path, foreign: dict[str, Any]) -> None:
    path = save_ceilings(tmp_path, build_ceilings())
    high = tuple(replace(each, best=9e9) for each in build_ceilings().figures)
    path.write_text(json.dumps(build_ceilings(figures=high, **foreign).to_json()))
    result = read_cache(tmp_path)
    assert result.ceilings is None
    assert "holds the ceilings of" in result.problems[0]
    save_ceilings(tmp_path, build_ceilings())
    assert set(read_cache(tmp_path).ceilings.figures) == set(build_ceilings().figures)


def test_a_file_without_dates_of_its_figures_has_that_of_the_whole(tmp_path: Path) -> None:
    data = build_ceilings().to_json()
    for each in (*data["bandwidth"], *data["peak"]):
        del each["measured_at"], each["busy"]
    save_ceilings(tmp_path, build_ceilings()).write_text(json.dumps(data))
    assert set(read_cache(tmp_path).ceilings.figures) == set(build_ceilings().figures)


def build_later_ceilings(times: float, is_busy: bool, **changes: Any) -> Ceilings:
    """Build the same ceilings measured a day later, all `times` as high."""
    when = "2026-11-16T10:00:00.000Z"
    figures = [
        replace(each, best=times * each.best, median=times * each.median, measured_at=when, is_busy=is_busy)
        for each in build_ceilings().figures
    ]
    notes = (BUSY_NOTE,) if is_busy else ()
    made: Ceilings = build_ceilings(**{"figures": tuple(figures), "notes": notes, "measured_at": when, **changes})
    return made


def test_measuring_on_a_busy_machine_lowers_nothing_that_was_reached(tmp_path: Path) -> None:
    save_ceilings(tmp_path, build_ceilings())
    save_ceilings(tmp_path, build_later_ceilings(0.5, is_busy=True))
    result = read_cache(tmp_path).ceilings
    assert set(result.figures) == set(build_ceilings().figures)
    assert result.measured_at == "2026-11-16T10:00:00.000Z"
    assert not result.is_busy()
    assert BUSY_NOTE not in result.notes


def test_each_figure_is_the_higher_one_with_its_own_date(tmp_path: Path) -> None:
    first = build_ceilings()
    new = build_later_ceilings(0.5, is_busy=False)
    raised = replace(new.figures[3], best=1e5, median=9e4)
    save_ceilings(tmp_path, first)
    save_ceilings(tmp_path, replace(new, figures=(raised, *new.figures[5:])))
    result = {each.identity: each for each in read_cache(tmp_path).ceilings.figures}
    assert result.pop(raised.identity) == raised
    assert set(result.values()) == {each for each in first.figures if each.identity != raised.identity}


def test_ceilings_only_ever_measured_busy_are_marked_until_a_quiet_measuring(tmp_path: Path) -> None:
    save_ceilings(tmp_path, build_later_ceilings(0.5, is_busy=True))
    save_ceilings(tmp_path, build_later_ceilings(0.6, is_busy=True))
    busy = read_cache(tmp_path).ceilings
    assert busy.is_busy("cpu")
    assert busy.notes[0] == BUSY_NOTE
    save_ceilings(tmp_path, build_later_ceilings(0.55, is_busy=False))
    quiet = read_cache(tmp_path).ceilings
    assert not quiet.is_busy()
    assert {each.identity: each.best for each in quiet.figures} == {e.identity: e.best for e in busy.figures}


def test_asked_to_measure_again_lower_figures_replace_higher_ones(tmp_path: Path) -> None:
    save_ceilings(tmp_path, build_ceilings())
    save_ceilings(tmp_path, build_later_ceilings(0.5, is_busy=False), again=True)
    assert set(read_cache(tmp_path).ceilings.figures) == set(build_later_ceilings(0.5, is_busy=False).figures)


def test_the_value_used_where_more_threads_were_slower_is_that_of_fewer() -> None:
    figures = [build_ceiling("triad", best, threads=n) for n, best in ((1, 10.0), (2, 18.1), (4, 9.7))]
    assert [find_effective_value(each, figures) for each in figures] == [10.0, 18.1, 18.1]
    node = build_ceiling("triad", 5.0, threads=4, placement="node")
    assert find_effective_value(node, [*figures, node]) == 5.0


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "ceilings").write_text("a file blocks the folder")
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        save_ceilings(tmp_path, build_ceilings())
    assert read_cache(tmp_path).ceilings is None


def test_ceilings_of_someone_else_are_named_and_left_out(tmp_path: Path, give_away: Callable[..., Path]) -> None:
    path = give_away(save_ceilings(tmp_path, build_ceilings()))
    assert read_cache(tmp_path).ceilings is None
    [problem] = read_cache(tmp_path).problems
    assert f"{path} belongs to uid 65534" in problem
    save_ceilings(tmp_path, build_ceilings())
    assert set(read_cache(tmp_path).ceilings.figures) == set(build_ceilings().figures)
    give_away(path.parent)
    with pytest.raises(UserError, match=r"belongs to uid 65534.*XDG_CACHE_HOME"):
        save_ceilings(tmp_path, build_ceilings())
