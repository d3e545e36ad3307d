import json
import re
from dataclasses import replace

import pytest
import typer
from tests.cli.sample_stores import (
    hybrid_records,
    made_record,
    made_run,
    scaling_records,
    unmeasured_records,
    write_store,
)
from typer.testing import CliRunner

from corewise.cli.show import show
from corewise.errors import UserError

app = typer.Typer()
app.command()(show)


def shown(store, *arguments, width=80):
    result = CliRunner().invoke(app, ["--store", str(store.path), *arguments], env={"COLUMNS": str(width)})
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def row_of(text, start):
    """Return the fields of the line that begins so."""
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [start])
    return line.split()


def tables(store, *arguments):
    return json.loads(shown(store, "--json", *arguments))


@pytest.fixture
def scaling(tmp_path):
    return write_store(tmp_path / "store", *scaling_records(), *unmeasured_records())


def test_only_varying_parameters_have_a_column_and_the_rest_stands_above(scaling):
    text = shown(scaling)
    assert "thread-scaling: How many threads?" in text
    assert "resnet50 train" in text
    header = next(line for line in text.splitlines() if "samples/s" in line)
    assert header.split() == ["threads", "samples/s", "interval", "±", "%", "step", "eff.", "memory", "status", "trial"]
    always = text[text.index("always:") : text.index("samples/s")]
    assert "batch=64" in always
    assert "image_size=224" in always
    assert "threads" not in always.splitlines()[0]
    # It has its default value.
    assert "wait_policy" not in always


def test_a_row_has_rate_interval_step_spread_and_memory(scaling):
    assert row_of(shown(scaling), "4") == [
        "4", "27.71", "27.43–27.98", "1.0", "2.31", "s", "0.88", "3.00", "GiB", "ok", "04abcdef",
    ]  # fmt: skip


def test_the_best_row_is_marked_with_its_ties(scaling):
    text = shown(scaling)
    assert "best" in row_of(text, "16")
    assert "≈" in row_of(text, "8")
    assert row_of(text, "4")[-2] == "ok"
    assert "1 other row with no significant difference from the best" in text
    (table,) = tables(scaling)
    assert [row["params"]["threads"] for row in table["rows"] if row["is_best"]] == [16]
    assert [row["params"]["threads"] for row in table["rows"] if row["may_equal_best"]] == [8]


def test_each_size_of_a_workload_has_its_own_best_row(tmp_path):
    records = [
        made_record(f"{size}-{threads}", size / threads, params={"threads": threads, "args.size": size})
        for size in (128, 256)
        for threads in (1, 2)
    ]
    lone = made_record("lone", 9.0, params={"args.size": 512})
    (table,) = tables(write_store(tmp_path / "store", *records, lone))
    assert {row["trial_id"] for row in table["rows"] if row["is_best"]} == {"128-2", "256-2"}


def test_failed_and_skipped_trials_stand_below_with_their_reasons(scaling):
    text = shown(scaling)
    below = text[text.index("failed 1") :]
    assert "rank 0 was killed for want of memory\n    threads=16 batch=4096 (f00dface)" in below
    assert "skipped 6\n  more threads than the allocation has cores (16)" in below
    assert "threads=24" in below
    assert "and 2 more" in below
    assert "threads=128" not in below
    assert "threads=128" in shown(scaling, "--status", "skipped")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(tmp_path, width):
    store = write_store(tmp_path / "store", *hybrid_records(), *scaling_records(), *unmeasured_records())
    lines = shown(store, width=width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width


def test_columns_that_are_dropped_in_a_narrow_terminal_are_named(tmp_path):
    store = write_store(tmp_path / "store", *hybrid_records())
    narrow, wide = shown(store, width=80), shown(store, width=140)
    assert "columns hidden for lack of width: interval, step, trial" in narrow
    assert "106.7" in narrow
    assert "not shown" not in wide
    assert "interval" in wide


def test_each_workload_and_mode_has_its_own_table_under_its_study(tmp_path):
    other = [
        replace(r, trial_id=f"x{r.trial_id}", params={**r.params, "workload": "alexnet"}) for r in scaling_records()
    ]
    store = write_store(tmp_path / "store", *scaling_records(), *hybrid_records(), *other)
    found = [(t["study"], t["workload"], t["mode"]) for t in tables(store)]
    assert found == [
        ("thread-scaling", "resnet50", "train"),
        ("thread-scaling", "alexnet", "train"),
        ("hybrid", "resnet50", "infer"),
    ]
    assert shown(store).count("thread-scaling") == 1


def test_disturbed_rows_are_marked_and_set_aside_runs_counted(tmp_path):
    kept = made_record("d1", 0.5, runs=(made_run(0.5, disturbances=["steal"]),), params={"threads": 3})
    repaired = made_record("d2", 0.4, disturbed=(made_run(0.7, disturbances=["steal"]),) * 2, params={"threads": 4})
    text = shown(write_store(tmp_path / "store", kept, repaired))
    assert "disturbed" in row_of(text, "3")
    assert row_of(text, "4")[-2] == "best"
    assert "disturbed by other load: d1" in text
    assert "2 disturbed runs were discarded and repeated." in text


def test_hosts_and_versions_that_differ_get_a_column(tmp_path):
    one, two = scaling_records()[:2]
    two = replace(two, machine={"hostname": "node2", "host_class": "other"}, versions={"torch": "2.14.0"})
    (table,) = tables(write_store(tmp_path / "store", one, two))
    assert table["varying"] == ["threads", "host", "version"]
    assert [(r["params"]["host"], r["params"]["version"]) for r in table["rows"]] == [
        ("node1", "2.13.0"),
        ("node2", "2.14.0"),
    ]


def test_the_versions_of_different_frameworks_get_no_column(tmp_path):
    one, two = scaling_records()[:2]
    versions = {"torch": "2.13.0", "numpy": "2.4.6"}
    two = replace(two, params={**two.params, "runtime": "numpy"}, versions=versions)
    (table,) = tables(write_store(tmp_path / "store", replace(one, versions=versions), two))
    assert set(table["varying"]) == {"threads", "runtime"}


def test_rows_are_in_the_order_of_their_parameters_unless_sorted(tmp_path):
    records = scaling_records()
    store = write_store(tmp_path / "store", *records[3:], *records[:3])

    def threads(*arguments):
        return [row["params"]["threads"] for row in tables(store, *arguments)[0]["rows"]]

    assert threads() == [1, 2, 4, 8, 16]
    assert threads("--sort", "samples_per_s") == [16, 8, 4, 2, 1]
    assert threads("--sort", "step_s") == [16, 8, 4, 2, 1]
    with pytest.raises(UserError, match="cannot sort by 'sample_per_s': did you mean 'samples_per_s'"):
        threads("--sort", "sample_per_s")


def test_filters_choose_and_unknown_values_name_the_nearest(tmp_path):
    store = write_store(tmp_path / "store", *scaling_records(), *hybrid_records(), *unmeasured_records())
    assert {t["study"] for t in tables(store, "--study", "hybrid")} == {"hybrid"}
    (failed,) = tables(store, "--status", "failed")
    assert failed["rows"] == []
    assert [u["status"] for u in failed["unmeasured"]] == ["failed"]
    assert tables(store, "--workload", "resnet50") == tables(store)
    for arguments, message in (
        (("--study", "hybird"), "no study 'hybird' in this store: did you mean 'hybrid'"),
        (("--workload", "resnet18"), "did you mean 'resnet50'"),
        (("--status", "great"), "known: failed, ok, skipped"),
    ):
        with pytest.raises(UserError, match=message):
            shown(store, *arguments)


def test_one_trial_is_shown_in_full_by_the_start_of_its_id(tmp_path):
    command = "A='1  2' python worker.pyz run"
    noisy = made_run(0.7, disturbances=["another process used 0.9 CPUs"])
    store = write_store(
        tmp_path / "store",
        made_record("ab12", 0.5, command=command, disturbed=(noisy,), notes=("a note",)),
        *scaling_records(),
    )
    text = shown(store, "--trial", "ab")
    assert "trial ab12  ok" in text
    assert "image_size 224" in text
    assert "peak_memory_bytes 3.00 GiB" in text
    assert re.search(r"1 +10 +500 ms +495 ms +505 ms +[▁▂▃▄▅▆▇█]{10}", text)
    assert "run 1 disturbed: another process used 0.9 CPUs" in text
    assert "distribution of 30 samples" in text
    assert sum(int(n) for n in re.findall(r"█ (\d+)$", text, re.M)) == 30
    assert f"\n  {command}\n" in text
    assert "a note" in text


def test_a_failed_trial_shows_its_reason_in_full(tmp_path):
    failed = made_record(
        "f1",
        status="failed",
        kind="factory",
        reason="line one\n  line two",
        metrics={},
        runs=({"status": "failed", "reason": "boom"},),
    )
    text = shown(write_store(tmp_path / "store", failed), "--trial", "f1")
    assert "trial f1  failed" in text
    assert "line one" in text
    assert "line two (factory)" in text
    assert "boom" in text
    assert "distribution" not in text


def test_a_trial_in_json_is_its_whole_record(scaling):
    record = json.loads(shown(scaling, "--trial", "16", "--json"))
    assert (record["trial_id"], len(record["samples_s"])) == ("16abcdef01", 30)


def test_a_trial_that_is_not_there_or_not_alone_is_the_users_mistake(tmp_path):
    store = write_store(tmp_path / "store", made_record("aa1"), made_record("aa"), made_record("ab"))
    with pytest.raises(UserError, match="3 trials begin with 'a'"):
        shown(store, "--trial", "a")
    with pytest.raises(UserError, match="no trial 'aa2' in this store: did you mean 'aa"):
        shown(store, "--trial", "aa2")
    assert "trial aa  ok" in shown(store, "--trial", "aa")


def test_markup_and_escape_codes_in_names_are_printed_not_obeyed(tmp_path):
    evil = "[red]x[/red]\x1b[31m\x07"
    params = {"workload": evil, "args.[bold]": evil, "threads": 1}
    record = made_record("e1", study=evil, question=evil, params=params, notes=(evil,), command=evil)
    bad = replace(record, trial_id="e2", status="failed", reason=evil, params={**params, "threads": 2})
    store = write_store(tmp_path / "store", record, bad)
    for text in (shown(store), shown(store, "--trial", "e1"), shown(store, "--trial", "e2")):
        assert "[red]x[/red]\\x1b[31m\\x07" in text
        assert "\x1b" not in text
        assert "\x07" not in text


def test_an_empty_store_says_what_to_do(tmp_path):
    assert "run a study with `corewise run STUDY" in shown(write_store(tmp_path / "store"))
    assert tables(write_store(tmp_path / "store")) == []


def test_a_missing_store_is_the_users_mistake(tmp_path):
    result = CliRunner().invoke(app, ["--store", str(tmp_path / "none")])
    assert isinstance(result.exception, UserError)


def test_damage_is_mentioned_with_where_to_look(scaling):
    (path,) = scaling.records_folder.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert "1 place of the store could not be read: see `corewise status" in shown(scaling)


def test_a_single_trial_without_interval_or_memory_is_shown(tmp_path):
    record = made_record("a1", metrics={"samples_per_s": 0.0123, "step_s": 81.3})
    text = shown(write_store(tmp_path / "store", record))
    assert "0.01230" in text
    assert "81.3 s" in text
    assert "best" not in text


def test_a_very_long_table_is_cut_to_its_fastest_rows_and_says_how_to_see_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("corewise.cli.show._MAX_ROWS", 4)
    monkeypatch.setattr("corewise.analysis.result_tables.NUM_ROWS_OF_MANY", 2)
    store = write_store(tmp_path / "store", *scaling_records())
    text = shown(store)
    assert [row_of(text, threads)[0] for threads in ("16", "8")] == ["16", "8"]
    assert "… and 3 more rows: --sort NAME sorts by another column, `corewise export -o FILE.csv` writes all" in text
    assert "best" in row_of(text, "16")
    assert "≈" in row_of(text, "8")
    # The base is the row with one thread, although it is not shown.
    assert "0.77" in row_of(text, "8")
    assert "\n      1 " not in text
    by_threads = shown(store, "--sort", "threads")
    assert "best" not in row_of(by_threads, "1")
    assert [row["params"]["threads"] for row in tables(store)[0]["rows"]] == [1, 2, 4, 8, 16]
    assert tables(store)[0]["num_left_out"] == 0


def test_one_trial_is_shown_whole_with_its_samples(tmp_path):
    store = write_store(tmp_path / "store", *scaling_records())
    shown_trial = json.loads(shown(store, "--trial", "04", "--json"))
    assert len(shown_trial["samples_s"]) == 30
    assert shown_trial["env"] == {"OMP_NUM_THREADS": "4"}
    assert "taskset" in shown(store, "--trial", "04")


def test_the_share_of_the_ceiling_has_a_column_where_it_is_known(tmp_path):
    fast, *others = scaling_records()
    metrics = {**fast.metrics, "gflop_per_s": 80.0, "fraction_of_ceiling": 0.4213}
    text = shown(write_store(tmp_path / "store", replace(fast, metrics=metrics), *others), width=200)
    assert "ceiling" in text
    assert "42.1" in text
    assert "% of ceiling: of the attainable rate at these flops per byte" in text
    assert "lets later trials say" not in text


def test_ceilings_of_a_busy_machine_are_said_to_be_too_low(tmp_path):
    fast, *others = scaling_records()
    for busy, expected in ((1.0, True), (0.0, False)):
        metrics = {**fast.metrics, "fraction_of_ceiling": 0.9, "ceilings_busy": busy}
        text = shown(write_store(tmp_path / f"{busy}", replace(fast, metrics=metrics), *others), width=200)
        assert ("measured on a busy machine: they are too low" in text) is expected


def test_without_ceilings_it_is_said_once_how_to_have_them(tmp_path):
    records = [replace(r, metrics={**r.metrics, "gflop_per_s": 80.0}) for r in scaling_records()]
    text = shown(write_store(tmp_path / "store", *records), width=200)
    assert text.count("corewise doctor --ceilings") == 1


def test_a_reason_that_points_at_a_mistake_keeps_its_lines(tmp_path):
    reasons = ("unknown entry 'xh'\n  ic3xh5\n     ^", "line one\n  line two")
    skipped = [
        made_record(f"s{n}", status="skipped", reason=reason, metrics={}, params={"args.n": n})
        for n, reason in enumerate(reasons)
    ]
    text = shown(write_store(tmp_path / "store", *skipped))
    pointing = [line.rstrip() for line in text.splitlines()]
    start = pointing.index("  unknown entry 'xh'")
    assert pointing[start + 1 : start + 3] == ["    ic3xh5", "       ^"]
    assert "  line one line two" in pointing


def test_messages_have_columns_for_latency_and_both_bandwidths(tmp_path):
    figures = {"latency_s": 2.5e-5, "gbyte_per_s": 4.5, "bus_gbyte_per_s": 6.75}
    records = [replace(r, metrics={**r.metrics, **figures}) for r in scaling_records()]
    text = shown(write_store(tmp_path / "store", *records), width=200)
    for expected in ("latency", "bus GB/s", "25.0 µs", "6.750"):
        assert expected in text
    assert "Gflop/s" not in text


def with_counters(trial_id, threads, notes=(), **counters):
    record = made_record(trial_id, params={"threads": threads})
    return replace(record, metrics={**record.metrics, **counters}, notes=notes)


def test_counters_have_columns_that_name_their_source(tmp_path):
    counted = {"perf_instructions_per_sample": 2.5e8, "perf_ipc": 1.75, "cachegrind_mpki": 0.5}
    store = write_store(tmp_path / "store", with_counters("aaaa", 1, **counted), with_counters("bbbb", 2))
    text = shown(store, width=160)
    assert {"250.0", "1.750", "0.5000"} <= set(row_of(text, "1"))
    assert row_of(text, "2").count("-") >= 3
    assert "perf: hardware counters" in text
    assert "cachegrind: one rank on one thread, at most AVX2" in text
    [table] = tables(store)
    assert [row["counters"] for row in table["rows"]] == [counted, {}]


def test_tables_without_counters_do_not_mention_them(scaling):
    text = shown(scaling)
    assert "perf" not in text
    assert "cachegrind" not in text


def test_counts_that_the_study_asked_for_are_missed_once_with_the_reason(tmp_path):
    notes = ("no counts by perf: perf_event_paranoid is 4", "another note")
    store = write_store(tmp_path / "store", with_counters("aaaa", 1, notes), with_counters("bbbb", 2, notes))
    text = shown(store, width=160)
    assert text.count("no counts by perf: perf_event_paranoid is 4") == 1
    assert "another note" not in text
    assert tables(store)[0]["missing_counts"] == [notes[0]]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"counters": "none", "counters_reason": "no PMU"}, "perf: none: no PMU"),
        (
            {"counters": "perf", "counters_scope": "user", "perf_miss_event": "MISS", "perf_running_share": 0.5},
            "perf: scope: user; misses: MISS; counted in 50",
        ),
    ],
)
def test_a_trial_says_how_it_was_counted(tmp_path, facts, line):
    record = made_record("aaaa", runs=(made_run(0.5, ranks=[{"rank": 0, "cpus": [0], **facts}]),))
    store = write_store(tmp_path / "store", record)
    assert line in shown(store, "--trial", "aaaa", width=160)
