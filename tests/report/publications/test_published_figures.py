"""Published figures: those that ship are whole, files of one's own are checked, and nothing is passed off."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.report.sample_trials import around, group_of, scaling, trial

from corewise.analysis.ranking import rank_trials
from corewise.errors import UserError
from corewise.report.charts.overlay import build_grid_chart
from corewise.report.publications.comparison_tables import PublishedComparison, compare_with_published
from corewise.report.publications.published_figures import (
    Publication,
    Published,
    find_shipped_folder,
    is_comparable,
    load_publication,
    load_publications,
)
from corewise.report.report_model import Chart
from corewise.study.record import Record

GOOD: dict[str, Any] = {
    "title": "A paper",
    "authors": ["Ada B. Lovelace", "Charles Babbage"],
    "year": 1984,
    "figures": [
        {
            "key": "gain", "what": "a gain", "quantity": "ratio", "axes": ["math"],
            "values": [{"machine": "engine", "low": 1.5, "high": 2.5}],
        },
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def shipped() -> dict[str, Publication]:
    files = sorted(find_shipped_folder().glob("*.yaml"))
    return {path.stem: load_publication(path) for path in files}


def figure(publication: Publication, key: str) -> Published:
    [found] = [each for each in publication.figures if each.key == key]
    return found


def laid(*records: Record, publications: list[Publication]) -> PublishedComparison:
    group = group_of(*records)
    return compare_with_published(group, rank_trials(group), publications)


def test_all_five_publications_ship_with_who_when_and_where(shipped: dict[str, Publication]) -> None:
    assert {(p.authors[0].split()[-1], p.year) for p in shipped.values()} == {
        ("Ramirez-Gargallo", 2020), ("Chien", 2019), ("Chheda", 2023), ("Font", 2023), ("Pont", 2021),
    }  # fmt: skip
    for publication in shipped.values():
        assert publication.protocol
        for published in publication.figures:
            assert published.where
            machines = {each.machine for each in (*published.lines, *published.values)} - {""}
            assert machines <= set(publication.machines)


def test_the_efficiency_over_nodes_is_that_of_the_paper(shipped: dict[str, Publication]) -> None:
    lines = figure(shipped["tensorflow-hpc-clusters-2020"], "node-efficiency").lines
    assert len(lines) == 12
    assert all(line.x == [1, 2, 4, 8, 16] and line.y[0] == 1 for line in lines)
    at_16 = {(line.workload, line.machine, line.setting): line.y[-1] for line in lines}
    assert at_16["resnet50", "Skylake", "real images"] == 0.43
    assert at_16["alexnet", "Power9", "real images"] == 0.98


def test_the_grids_of_threads_are_those_of_the_thesis(shipped: dict[str, Publication]) -> None:
    publication = shipped["dynamic-threading-2023"]
    for key, best, place in (("static-grid", 25.61, (2, 24)), ("dynamic-grid", 22.97, (4, 48))):
        grid = figure(publication, key).grid
        assert grid is not None
        cells = {
            (row, column): seconds
            for row, line in zip(grid.rows.values, grid.cells, strict=True)
            for column, seconds in zip(grid.columns.values, line, strict=True)
        }
        assert len(cells) == 45
        assert min(cells, key=lambda cell: cells[cell]) == place
        assert cells[place] == best


def test_megapixels_add_up(shipped: dict[str, Publication]) -> None:
    publication = shipped["size-and-shape-2021"]
    parts = [figure(publication, f"{name}-megapixels").values for name in ("informative", "padding", "total")]
    for informative, padding, total in zip(*parts, strict=True):
        assert informative.value is not None
        assert padding.value is not None
        assert total.value == pytest.approx(informative.value + padding.value, abs=0.11)


def test_a_citation_names_the_first_author(shipped: dict[str, Publication]) -> None:
    assert shipped["dynamic-threading-2023"].short_citation == "Llopart Font 2023"
    assert shipped["tensorflow-doing-hpc-2019"].short_citation == "Chien et al. 2019"
    assert Publication(**GOOD).citation == "Ada B. Lovelace et al., “A paper”, 1984"


def test_efficiency_over_nodes_lies_under_ones_own_and_says_that_it_is_another_quantity(
    shipped: dict[str, Publication],
) -> None:
    [chart] = laid(*scaling(), publications=list(shipped.values())).charts
    assert len({row["series"] for row in chart.spec["datasets"]["published"]}) == 6
    assert {row["series"] for row in chart.spec["datasets"]["rows"]} == {"yours, threads"}
    assert all(row["low"] is not None for row in chart.spec["datasets"]["rows"])
    assert "These are different quantities" in chart.caption
    assert "the unit is 1 thread of one machine" in chart.caption
    assert "one of its nodes, and no intervals were given" in chart.caption
    assert "Ramirez-Gargallo" in chart.caption
    assert "threads (yours) · nodes (published)" in str(chart.spec["layer"])


def test_processes_are_compared_with_nodes_rather_than_threads_where_they_vary(shipped: dict[str, Publication]) -> None:
    records = [trial(9.0 * p * t**0.8, params={"processes": p, "threads": t}) for p in (1, 2) for t in (1, 2)]
    [chart] = laid(*records, publications=list(shipped.values())).charts
    assert "processes (yours) · nodes (published)" in str(chart.spec["layer"])


def test_no_curve_is_laid_under_another_workload_or_inference(shipped: dict[str, Publication]) -> None:
    for params in ({"workload": "resnet18"}, {"mode": "infer"}):
        assert laid(*scaling(params=params), publications=list(shipped.values())).charts == []


def test_the_gain_of_a_vendors_library_is_listed_with_ones_own(shipped: dict[str, Publication]) -> None:
    records = [
        trial((3.0 if math == "vendor" else 1.0) * t, params={"math": math, "threads": t})
        for math in ("vendor", "vanilla")
        for t in (1, 2)
    ]
    made = laid(*records, publications=list(shipped.values()))
    [table] = made.tables
    values = [(row[1], row[3]) for row in table.rows]
    assert values[0] == ("this machine", "3.00 to 3.00×")
    assert ("Skylake", "1.7 to 6.9×") in values
    assert ("ThunderX2", "1.5 to 2.3×") in values
    assert not table.best_rows
    assert len(made.sources) == 1


def test_published_shapes_are_listed_with_the_users_fastest(shipped: dict[str, Publication]) -> None:
    rates = {(1, 16): 20.0, (4, 4): 32.0}
    records = [trial(r, params={"processes": p, "threads": t}) for (p, t), r in rates.items()]
    [table] = laid(*records, publications=list(shipped.values())).tables
    figures = [(row[0], row[1], row[3]) for row in table.rows]
    assert figures[0][2] == "4×4"
    assert figures[1][2].startswith("1.60× (")
    assert ("fastest processes × threads with all cores of a node", "ThunderX2", "16×4") in figures


def test_a_grid_of_inter_and_intra_threads_is_drawn_as_the_speed_up_it_is(shipped: dict[str, Publication]) -> None:
    publication = shipped["dynamic-threading-2023"]
    chart = build_grid_chart(group_of(*scaling()), publication, figure(publication, "static-grid"))
    assert isinstance(chart, Chart)
    best = [row for row in chart.spec["datasets"]["rows"] if row["best"]]
    assert [(row["y"], row["x"], row["text"]) for row in best] == [("2", "24", "9.3×")]
    assert "Speed-up over 1 × 1 (238.72 s)" in chart.caption


def test_a_figure_matches_by_workload_mode_and_axes() -> None:
    published = Publication(**GOOD).figures[0]
    assert is_comparable(published, "resnet50", "train", ("math", "threads"))
    assert not is_comparable(published, "resnet50", "train", ("threads",))
    only = published.model_copy(update={"workloads": ["alexnet"], "mode": "infer"})
    assert is_comparable(only, "alexnet", "infer", ("math",))
    assert not is_comparable(only, "alexnet", "train", ("math",))
    assert not is_comparable(only, "resnet50", "infer", ("math",))


def one(**changes: Any) -> dict[str, Any]:
    return {"figures": [{**GOOD["figures"][0], **changes}]}


def write(folder: Path, value: Any, name: str = "own.yaml") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False))
    return path


def test_a_users_file_is_read(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "notes.txt").write_text("not a publication")
    [publication] = load_publications(tmp_path)
    assert publication.title == "A paper"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"year": "soon"}, r"own\.yaml:5: year: must be a valid integer"),
        ({"yaer": 2020}, r"own\.yaml:\d+: unknown key 'yaer'; did you mean 'year'\?"),
        ({"figures": []}, r"figures: List should have at least 1 item"),
        ({"title": None}, r"own\.yaml:1: title: must be a valid string"),
        (one(values=[]), "give one of lines, values and grid"),
        (one(quantity="speed"), r"quantity: must be 'efficiency', 'ratio'"),
        (one(values=[{"low": 3, "high": 1}]), r"low \(3\) is above high \(1\)"),
        (one(values=[{"machine": "x"}]), "give a value, low and high, or a text"),
        (one(values=[{"vlaue": 3}]), "unknown key 'vlaue'; did you mean 'value'"),
        ({"figures": GOOD["figures"] * 2}, "two figures have the key 'gain'"),
        (
            {"figures": [{"key": "a", "what": "x", "quantity": "efficiency", "x": "nodes",
                          "lines": [{"x": [1, 2], "y": [1.0]}]}]},
            "x has 2 values and y has 1",
        ),
        (
            {"figures": [{"key": "a", "what": "x", "quantity": "time", "grid": {
                "rows": {"name": "r", "values": [1, 2]}, "columns": {"name": "c", "values": [1]},
                "cells": [[1]]}}]},
            "2 rows are named, but 1 are given",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_reported_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_publication(write(tmp_path, {**GOOD, **change}))
    assert re.search(message, str(error.value)), str(error.value)


@pytest.mark.parametrize("text", ["- a list\n", "just words\n", "title: [\n", "title: !!python/object:os.system x\n"])
def test_what_is_no_publication_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"own\.yaml:\d+"):
        load_publication(write(tmp_path, text))


def test_a_folder_that_is_missing_empty_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_publications(tmp_path / "none")
    with pytest.raises(UserError, match=r"holds no \.yaml file"):
        load_publications(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load_publications(write(tmp_path, GOOD))


def test_ones_own_highest_shape_is_not_called_fastest_where_it_ties(shipped: dict[str, Publication]) -> None:
    shapes = {(1, 16): 20.0, (2, 8): 21.0, (4, 4): 22.0}
    records = [
        trial(around(rate, 1.0), params={"processes": p, "threads": t, "batch_scope": "global"})
        for (p, t), rate in shapes.items()
    ]
    made = laid(*records, publications=list(shipped.values()))
    own = {row[0]: row[3] for table in made.tables for row in table.rows if row[1] == "this machine"}
    assert own["highest rate, processes × threads"] == "4×4, no significant difference from 1×16 and 2×8"
    assert own["throughput of that shape over one process"].endswith("), no significant difference")
