"""From stores to a report: all of it, whatever the stores are like."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.report.sample_trials import MACHINE, PARAMS, PROTOCOL, REAL_STORE, failed, scaling, trial, write_store

from corewise.analysis.groups import RecordSource
from corewise.errors import UserError
from corewise.report.report_builder import MAX_GROUPS_WITH_CHARTS, build_report, build_report_from
from corewise.report.report_model import Report, StudyPart, Table
from corewise.store.store import Store
from corewise.study.record import Record


def part(report: Report) -> StudyPart:
    [found] = report.studies
    return found


def cells(table: Table, title: str) -> list[Any]:
    at = [column.title for column in table.columns].index(title)
    return [row[at] for row in table.rows]


def check_whole(report: Report) -> None:
    """What the page relies on."""
    orjson.dumps(report)
    names = [p.key for p in report.studies] + [c.key for p in report.studies for c in p.charts]
    tables = [*(t for p in report.studies for t in p.tables), *report.machines, *report.versions]
    assert len(set(names)) == len(names)
    assert len({table.key for table in tables}) == len(tables)
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(0 <= row < len(table.rows) for row in table.best_rows)
        for row in table.rows:
            assert all(value is None or isinstance(value, (str, int, float, bool)) for value in row)


def test_the_real_store_makes_a_whole_report() -> None:
    report = build_report([REAL_STORE])
    check_whole(report)
    assert [study.title for study in report.studies] == ["thread-scaling", "hybrid"]
    assert all(study.question.endswith("?") for study in report.studies)
    assert len(report.findings) >= 5
    assert report.notices == []
    assert report.sources == [str(REAL_STORE)]
    assert report.refresh_s is None


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    report = build_report([write_store(tmp_path / "store")])
    check_whole(report)
    assert report.studies == []
    assert report.summary == [
        f"There are no records yet. Run a study with `corewise run STUDY --store {tmp_path / 'store'}`."
    ]
    assert report.title == "Corewise: nothing measured yet"


def test_a_missing_store_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        build_report([tmp_path / "none"])


def test_one_trial_with_one_sample_makes_a_report(tmp_path: Path) -> None:
    record = trial([20.0])
    record = replace(record, runs=({**record.runs[0], "samples_s": [0.8]},))
    report = build_report([write_store(tmp_path / "store", record)])
    check_whole(report)
    assert part(report).charts == []
    assert "(a single run, no interval)" in part(report).answers[0]


def test_where_all_trials_failed_the_reasons_are_grouped(tmp_path: Path) -> None:
    records = [failed(params={"batch": b}) for b in (1, 2, 4)]
    records += [replace(failed("no room", params={"batch": 8}), status="skipped", kind="infeasible")]
    report = build_report([write_store(tmp_path / "store", *records)])
    check_whole(report)
    assert [(u.status, u.num_trials, list(u.points)) for u in part(report).unmeasured] == [
        ("failed", 3, ["batch 1", "batch 2", "batch 4"]),
        ("skipped", 1, ["batch 8"]),
    ]
    assert part(report).tables == []
    assert part(report).answers[0].startswith("No measurements of ResNet-50 training")


def test_results_have_only_what_varies_their_interval_and_their_standing() -> None:
    report = build_report_from([RecordSource(label="s", records=scaling())])
    [results] = part(report).tables
    titles = [column.title for column in results.columns]
    assert titles[:4] == ["threads", "images/s", "95 % interval", "95 % interval, high"]
    assert {"±", "step", "efficiency", "memory", "runs", "standing", "trial"} <= set(titles)
    assert not {"set aside", "disturbed", "p99"} & set(titles)
    assert cells(results, "threads") == [1, 2, 4, 8, 16]
    assert cells(results, "standing")[-1] == "best"
    assert results.best_rows == [4]
    assert cells(results, "efficiency")[0] == 1.0
    assert "threads=4" not in results.caption
    assert "batch=16" in results.caption


def test_tables_of_several_workloads_keep_apart() -> None:
    report = build_report_from(
        [RecordSource(label="s", records=[*scaling(), *scaling(params={"workload": "alexnet"})])]
    )
    check_whole(report)
    assert [table.title for table in part(report).tables] == [
        "ResNet-50 training: results",
        "AlexNet training: results",
    ]


def test_the_method_is_described() -> None:
    protocol = {**PROTOCOL, "max_warmup_s": 30.0, "min_samples": 10, "max_repeats_disturbed": 2}
    metrics = {"canary_s": 0.004, "check_error": 1e-6, "steal_s": 0.0, "between_process_cv": 0.02}
    method = dict(
        part(build_report_from([RecordSource(label="s", records=scaling(protocol=protocol, metrics=metrics))])).method
    )
    assert method["trials"] == "5 ok"
    assert method["runs per trial"] == "5"
    assert "Student's t on the logarithms" in method["interval"]
    assert method["numerical check"].endswith("in 5 of 5 trials; largest error 1e-06")
    assert method["stolen by the hypervisor"] == "never"
    assert "2.0 %" in method["noise between runs"]
    # The number of runs was fixed, so there were no interim looks.
    assert method["interval"].endswith("of the runs' values")
    assert method["canary"] == "a fixed loop took 4.00 ms (median)"
    assert method["disturbed runs"] == (
        "set aside and repeated, at most 2 times per trial and no longer than the study's estimated duration"
    )
    assert method["set aside"] == "0 runs; 0 trials still include disturbed runs"


def test_looks_and_repeats_are_described_where_there_were_some() -> None:
    protocol = {**PROTOCOL, "max_runs": 9, "max_repeats_disturbed": 0}
    method = dict(part(build_report_from([RecordSource(label="s", records=scaling(protocol=protocol))])).method)
    assert method["runs per trial"] == "5 to 9, until the interval is within ±5 %"
    assert "Pocock" in method["interval"]
    assert method["disturbed runs"] == "marked, not repeated"


def test_trials_are_said_to_take_turns_only_where_their_times_say_so() -> None:
    def runs_of(*sources: Sequence[Record]) -> str:
        made = [RecordSource(label=f"s{i}", name=f"s{i}", records=each) for i, each in enumerate(sources)]
        return dict(part(build_report_from(made)).method)["runs"]

    day = "2026-11-15T"
    later = [
        replace(record, started_at=f"{day}1{i}:30:00.000Z", finished_at=f"{day}1{i}:30:09.000Z")
        for i, record in enumerate(scaling())
    ]
    assert runs_of(scaling()).endswith(", trials interleaved so that drift affects all of them equally")
    assert "in 2 batches; the trials of a batch are interleaved" in runs_of(scaling(), scaling())
    assert runs_of(later).endswith(", one trial after another")
    assert "in 2 batches" in runs_of(
        [
            *scaling()[:3],
            *(replace(r, started_at=f"{day}12:00:00.000Z", finished_at=f"{day}12:01:00.000Z") for r in scaling()[3:]),
        ]
    )


def test_machines_and_versions_are_listed_with_what_ranks_read_back(tmp_path: Path) -> None:
    report = build_report([write_store(tmp_path / "store", *scaling())])
    [machine] = report.machines
    assert ["memory", "64.0 GiB"] in machine.rows
    [versions] = report.versions
    assert ["torch", "2.13.0"] in versions.rows
    assert ["onednn", "3.10.2"] in versions.rows


def test_many_machines_have_a_row_each() -> None:
    records = [trial(10.0, machine={**MACHINE, "host_class": f"class{i}", "num_cores": 2**i}) for i in range(6)]
    report = build_report_from([RecordSource(label="s", records=records)])
    check_whole(report)
    assert len(report.machines[0].rows) == 6


def test_stores_of_two_machines_are_laid_side_by_side(tmp_path: Path) -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4"}
    stores = [write_store(tmp_path / "a", *scaling()), write_store(tmp_path / "b", *scaling(machine=other))]
    report = build_report(stores)
    check_whole(report)
    assert cells(part(report).tables[0], "machine").count("zen4, 16 cores") == 5
    assert report.sources == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_one_store_given_twice_counts_once(tmp_path: Path) -> None:
    path = write_store(tmp_path / "a", *scaling())
    assert len(part(build_report([path, path])).tables[0].rows) == 5


def test_the_same_trials_in_two_stores_are_kept_apart(tmp_path: Path) -> None:
    stores = [write_store(tmp_path / name / "store", *scaling()) for name in ("one", "two")]
    report = build_report(stores)
    check_whole(report)
    assert sorted(set(cells(part(report).tables[0], "store"))) == ["one/store", "two/store"]


def test_damage_is_reported_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling())
    [file] = (path / "records").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[2].replace(b"ok", b"OK", 1), *lines[3:]]))
    report = build_report([path])
    check_whole(report)
    [notice] = report.notices
    assert notice.startswith("Left out: ")
    assert "line 3" in notice
    assert len(part(report).tables[0].rows) == 4


def test_a_store_that_is_rubbish_throughout_makes_an_empty_report(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling())
    [file] = (path / "records").iterdir()
    file.write_bytes(b"\x00\xff rubbish\n" * 50)
    report = build_report([path])
    assert report.studies == []
    assert 0 < len(report.notices) < 10


def test_only_the_studies_asked_for_are_shown(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling(), *scaling(study="other"))
    assert [study.title for study in build_report([path], studies=["other"]).studies] == ["other"]
    with pytest.raises(UserError, match=r"no study 'othr' in .*did you mean 'other'\?"):
        build_report([path], studies=["othr"])


def test_records_that_are_not_in_the_store_yet_stand_in_for_it(tmp_path: Path) -> None:
    done, more = scaling()[:2], scaling()[1:4]
    report = build_report(
        [write_store(tmp_path / "store", *done)], extra_records=more, progress="2 of 5 trials", refresh_s=10.0
    )
    check_whole(report)
    assert cells(part(report).tables[0], "threads") == [1, 2, 4, 8]
    assert part(report).progress == "2 of 5 trials"
    assert report.refresh_s == 10.0
    assert any("distribution of samples" in chart.title for chart in part(report).charts)


def test_published_figures_can_be_left_out_and_added(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling())
    keys = [chart.key for chart in part(build_report([path])).charts]
    assert any("published" in key for key in keys)
    assert not any("published" in chart.key for chart in part(build_report([path], published=False)).charts)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own.yaml").write_text(
        "title: Mine\nauthors: [Me]\nyear: 2026\nfigures:\n  - key: own\n    what: my efficiency\n"
        "    quantity: efficiency\n    x: cores\n    lines: [{x: [1, 2], y: [1, 0.5]}]\n"
    )
    report = build_report([path], published=False, published_folders=[folder])
    assert any("published-own" in chart.key for chart in part(report).charts)
    assert ("published figures", "Me, “Mine”, 2026") in part(report).method


def test_many_workloads_have_tables_and_the_first_ones_charts() -> None:
    records = [trial(10.0 * t, params={"workload": f"w{i}", "threads": t}) for i in range(15) for t in (1, 2)]
    report = build_report_from([RecordSource(label="s", records=records)])
    check_whole(report)
    assert len(part(report).tables) == 15
    assert len({chart.title.split()[0] for chart in part(report).charts}) == MAX_GROUPS_WITH_CHARTS
    assert report.notices == ["Charts are shown for the first 12 workloads; the other 3 have tables only."]
    assert len(report.summary) == 8 + 1


@pytest.mark.parametrize(
    "change",
    [
        {"study": "<script>alert('x')</script>"},
        {"study": "模型 \u202e\x1b[31m" + "y" * 3000, "question": "<b>?</b>" * 500},
        {"study": ""},
        {"params": {}},
        {"params": {**PARAMS, "threads": None, "batch": [1, 2], "math": {"a": 1}, "x" * 400: "y" * 4000}},
        {"params": {**PARAMS, "args.huge": 10**30, "args.neg": -1, "args.zero": 0}},
        {"machine": {}, "versions": {}, "protocol": {}, "work": {}},
        {"machine": {"memory_bytes": "lots", "allocation_cpus": 7}},
        {"protocol": {"min_runs": "x", "max_runs": None, "confidence": 2}},
        {"metrics": {"samples_per_s": 1e300, "peak_memory_bytes": -5.0}},
        {"runs": ({}, {"status": "ok"}, {"metrics": None})},
        {"runs": ({"status": "ok", "samples_s": ["x"], "metrics": {"samples_per_s": "y"}},)},
        {"started_at": "yesterday", "finished_at": ""},
        {"notes": ("<i>not steady</i>",), "trial_id": "x"},
    ],
)  # fmt: skip
def test_odd_records_make_a_whole_report(tmp_path: Path, change: dict[str, Any]) -> None:
    odd: list[Record] = []
    for i, record in enumerate(scaling()):
        params = change.get("params")
        extra = {} if params is None else {"params": {**params, **({"threads": 2**i} if params == {} else {"k": i})}}
        identity = {"trial_id": f"{change['trial_id']}{i}"} if "trial_id" in change else {}
        odd.append(replace(record, **{**change, **extra, **identity}))
    store = write_store(tmp_path / "store", *scaling(study="plain")[:2], *odd)
    report = build_report([store])
    check_whole(report)
    for sentence in (*report.summary, *(s for p in report.studies for s in p.answers)):
        assert len(sentence) < 1000
    assert all(re.fullmatch(r"[a-z0-9-]+", chart.key) for p in report.studies for chart in p.charts)


def test_reading_changes_nothing_in_the_store(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling())
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    build_report([path])
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    assert len(Store.open(path, create=False).read_done_ids()) == 5


def test_very_many_reasons_are_cut_and_the_rest_counted() -> None:
    records = [failed(f"reason {i}", params={"batch": i}) for i in range(1, 70)]
    made = part(build_report_from([RecordSource(label="s", records=records)])).unmeasured
    assert len(made) == 51
    assert made[-1].num_trials == 19
    assert made[-1].reason.startswith("19 other reasons")


def test_very_many_points_of_a_reason_are_cut() -> None:
    [made] = part(
        build_report_from([RecordSource(label="s", records=[failed(params={"batch": i}) for i in range(1, 70)])])
    ).unmeasured
    assert (made.num_trials, len(made.points)) == (69, 20)
