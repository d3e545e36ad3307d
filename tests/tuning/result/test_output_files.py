"""The files and messages of finished and stopped tunings, and invalid calls."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise.analysis.tuning_results import RacedSetting, SettingResult
from corewise.cli.tune import has_all_files, parse_subject
from corewise.errors import UserError
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.study.study import PRESETS
from corewise.study.tuned_file import (
    MachineFingerprint,
    MeasuredSpeedup,
    TunedSettings,
    TuningSubject,
    read_tuned,
    write_tuned,
)
from corewise.tuning.api import tune
from corewise.tuning.confirm.confirmation_runs import require_same_shapes
from corewise.tuning.journal import Journal
from corewise.tuning.progress_output import LineProgress, describe_outcome
from corewise.tuning.question import Tunable, build_question
from corewise.tuning.result.output_files import ResultFiles
from corewise.tuning.result.result_text import format_headline, render_text
from corewise.tuning.result.tuned_file_output import build_tuned_file
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.setting_space import Knob, Space
from corewise.tuning.session import Interrupted, record_answer

SIDE = SettingResult(params={}, label="default", throughput=10.0)
RESULT = TuneResult(
    name="own infer", mode="infer", batch=4, machine="2 cores", verdict="unconfirmed", default=SIDE, best=SIDE
)
BETTER = replace(RESULT, best=replace(SIDE, label="8×2"), speedup=2.0, finished=False)
MACHINE = MachineFingerprint(cpu_model="A CPU", num_sockets=1, nodes=((2, 2),), memory_bytes=1)
TUNED = TunedSettings(subject=TuningSubject(workload="own", mode="infer"), params={"threads": 2}, machine=MACHINE)
MEASURED = MeasuredSpeedup(
    throughput=2.0, interval=(1.9, 2.1), default_throughput=1.0, default_interval=(0.9, 1.1), speedup=2.0
)


def build_tuned(result: TuneResult) -> TunedSettings:
    return TUNED


def raise_interrupted(result: TuneResult) -> Callable[[], TuneResult]:
    def stop() -> TuneResult:
        raise Interrupted(result)

    return stop


def record(*shapes: str) -> Record:
    runs = tuple({"status": "ok", "ranks": [{"rank": 0, "shapes": each}]} for each in shapes)
    return Record(trial_id="0" * 16, study="tune own", status="ok", params={}, runs=runs)


def test_a_factory_whose_shapes_change_from_start_to_start_is_refused() -> None:
    require_same_shapes([record("a", "a"), record("a")])
    with pytest.raises(UserError, match=r"different shapes at every start \(a, then b\)"):
        require_same_shapes([record("a"), record("a", "b")])


def test_a_stopped_tuning_leaves_its_settings_and_says_so(tmp_path: Path) -> None:
    stopped = raise_interrupted(BETTER)
    with pytest.raises(Interrupted) as caught:
        ResultFiles(tmp_path / "tuned.yaml").run_and_write(stopped, build_tuned)
    assert read_tuned(tmp_path / "tuned.yaml").params == {"threads": 2}
    assert caught.value.result.output == str(tmp_path / "tuned.yaml")


def test_a_tuning_stopped_before_anything_better_leaves_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("earlier")
    with pytest.raises(Interrupted) as caught:
        ResultFiles(file).run_and_write(raise_interrupted(RESULT), build_tuned)
    assert file.read_text() == "earlier"
    text = render_text(caught.value.result)
    assert f"{file} was not written" in text
    assert "corewise launch" not in text


def test_a_stopped_tuning_keeps_a_copy_of_the_file_of_a_finished_one(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    for name in ("tuned.yaml.old", "tuned.yaml.old2"):
        write_tuned(file, replace(TUNED, measured=MEASURED))
        with pytest.raises(Interrupted) as caught:
            ResultFiles(file).run_and_write(raise_interrupted(BETTER), build_tuned)
        assert read_tuned(file).measured is None
        assert read_tuned(tmp_path / name).measured == MEASURED
        assert name in caught.value.result.notes[-1]
    with pytest.raises(Interrupted) as caught:
        # The file of a stopped tuning is not worth a copy.
        ResultFiles(file).run_and_write(raise_interrupted(BETTER), build_tuned)
    assert caught.value.result.notes == ()


FINISHED = replace(BETTER, verdict="faster", finished=True)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"subject": TuningSubject(workload="alexnet", mode="train")}, "the settings of alexnet train"),
        ({"subject": TuningSubject(workload="own", mode="infer", runtime="jax")}, "the settings of own infer"),
        ({"subject": TuningSubject(command=("python", "train.py"))}, "the settings of python train.py"),
        ({"params": {"threads": 2, "batch": 64}}, "the settings of different work with the same name"),
        ({"params": {"threads": 2, "args.size": 3}}, "the settings of different work with the same name"),
        ({"machine": replace(MACHINE, nodes=((16, 32),), hostname="node7")}, "of another machine, node7"),
    ],
)
def test_a_finished_tuning_keeps_a_copy_of_the_settings_of_another_question(
    tmp_path: Path, change: dict[str, Any], note: str
) -> None:
    file = tmp_path / "tuned.yaml"
    other = replace(TUNED, measured=MEASURED, **change)
    write_tuned(file, other)
    result = ResultFiles(file).run_and_write(lambda: FINISHED, build_tuned)
    assert read_tuned(file) == TUNED
    assert read_tuned(tmp_path / "tuned.yaml.old") == other
    assert note in result.notes[-1]
    assert "tuned.yaml.old" in result.notes[-1]


def test_a_finished_tuning_replaces_its_own_earlier_answer(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    renamed = replace(MACHINE, hostname="node2", memory_bytes=2)
    write_tuned(file, replace(TUNED, params={"threads": 1}, machine=renamed, measured=MEASURED))
    assert ResultFiles(file).run_and_write(lambda: FINISHED, build_tuned).notes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_a_resumed_tuning_replaces_the_file_of_the_stopped_one(
    tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    tunable = Tunable.from_question(build_question("resnet18", batch=8, fixed={"args.image_size": 64}))
    space = tunable.space
    [trial] = tunable.plan(space.default, PRESETS["quick"]).trials
    raced = replace(BETTER, best=replace(BETTER.best, params=space.build_params(space.default)))
    measured = replace(FINISHED, best=replace(SIDE, params=trial.params.to_mapping()))
    files = ResultFiles(tmp_path / "tuned.yaml")
    with pytest.raises(Interrupted):
        files.run_and_write(raise_interrupted(raced), lambda result: build_tuned_file(tunable, result))
    assert files.run_and_write(lambda: measured, lambda result: build_tuned_file(tunable, result)).notes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_settings_that_were_changed_by_hand_and_cannot_be_read_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    write_tuned(file, TUNED)
    file.write_text(file.read_text() + "mine: 3\n")
    [note] = ResultFiles(file).run_and_write(lambda: FINISHED, build_tuned).notes
    assert "edited by hand" in note
    assert "mine: 3" in (tmp_path / "tuned.yaml.old").read_text()


def test_a_stopped_tuning_writes_its_page(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    result = record_answer(Journal(store, "a" * 16, Space({}, ())), replace(BETTER, store=str(store.path)))
    with pytest.raises(Interrupted) as caught:
        ResultFiles(report=tmp_path / "page.html").run_and_write(raise_interrupted(result), build_tuned)
    assert "Stopped. Best so far: 8×2" in (tmp_path / "page.html").read_text()
    assert caught.value.result.report == str(tmp_path / "page.html")


def test_stopping_twice_still_gives_the_answer(tmp_path: Path) -> None:
    def raise_interrupt(result: TuneResult) -> TunedSettings:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        ResultFiles(tmp_path / "tuned.yaml").run_and_write(lambda: BETTER, raise_interrupt)
    assert "run the same command again to write them" in caught.value.result.notes[-1]


def test_a_file_that_no_tuning_wrote_is_not_replaced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with pytest.raises(UserError, match=r"train\.py exists and is not from `corewise tune`"):
        ResultFiles(script).require_writable()
    with pytest.raises(UserError, match="not a regular file"):
        ResultFiles(Path("/dev/null")).require_writable()
    write_tuned(tmp_path / "tuned.yaml", TUNED)
    (tmp_path / "empty").touch()
    ResultFiles(tmp_path / "tuned.yaml").require_writable()
    ResultFiles(tmp_path / "empty").require_writable()


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        ([], {}, "nothing to tune"),
        ("", {}, "nothing to tune"),
        (3, {}, "a command as a list of strings"),
        (build_tuned, {}, r'Write it to a file and name it, as in tune\("my.py:build_tuned"\)'),
        (["python", 3], {}, "a command as a list of strings"),
        ("resnet18", {"batch": "a"}, "--batch 'a'"),
        (["python", "x.py"], {"batch": "a"}, "--batch 'a'"),
        ("resnet18", {"allow": "batch"}, r'allow=\["lower-precision"\]'),
        ("resnet18", {"fixed": ["threads=4"]}, r'fixed=\{"threads": 4\}'),
        ("resnet18", {"args": "image_size=3"}, "pass a dict"),
    ],
)
def test_arguments_of_wrong_types_are_refused_with_an_example(
    subject: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tune(subject, **options)


def test_a_page_replaces_neither_the_settings_nor_a_script(tmp_path: Path) -> None:
    script, page = tmp_path / "train.py", tmp_path / "tuned.html"
    script.write_text("print('<html>')")
    page.write_text("\n<!DOCTYPE html><p>of an earlier tuning")
    with pytest.raises(UserError, match=r"train.py exists and is not an HTML page.*--report"):
        ResultFiles(None, script).require_writable()
    with pytest.raises(UserError, match="cannot hold settings and report"):
        ResultFiles(tmp_path / "new", tmp_path / "." / "new").require_writable()
    ResultFiles(None, page).require_writable()
    ResultFiles(tmp_path / "tuned.yaml", page).require_writable()


def test_a_start_that_only_ties_is_not_called_the_best() -> None:
    tied = Judgement((), "won", score=0.002, half_width=0.01)
    assert describe_outcome(tied) == "1.00× the default: tied, kept as a better start"
    assert describe_outcome(replace(tied, score=0.7)) == "2.01× the default: the best so far"


def test_whole_runs_are_shown_with_their_unit() -> None:
    assert describe_outcome(Judgement((), "default", throughput=0.25), "runs/s") == "0.25 runs/s"


@pytest.mark.parametrize("option", ["output", "report"])
def test_a_file_that_cannot_be_written_is_reported_with_its_option(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match=f"--{option}"):
        ResultFiles(**{option: tmp_path / "nowhere" / "file"}).require_writable()


def test_a_search_stopped_early_claims_nothing() -> None:
    assert format_headline(RESULT) == "Stopped before anything faster than the default was found."
    assert format_headline(BETTER).startswith("Stopped. Best so far: 8×2, about 2.00× the default")
    assert "ended early" not in render_text(BETTER)


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    tried = RacedSetting("bfloat16", {}, "rejected", 0.0, 0.0, 0.0, float("nan"), "wrong results")
    values = replace(RESULT, tried=(tried,)).to_json()
    assert values["tried"][0]["check_error"] is None
    json.dumps(values, allow_nan=False)


def test_an_answer_whose_settings_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "tuned.yaml"
    result = ResultFiles(gone, gone.with_name("page.html")).run_and_write(
        lambda: replace(BETTER, verdict="faster"), build_tuned
    )
    assert (result.output, result.report) == ("", "")
    assert not has_all_files(result, gone, None)
    assert not has_all_files(result, None, gone)
    assert has_all_files(result, None, None)
    assert f"the settings were not written: {gone} cannot be written" in render_text(result)
    assert "the report was not written" in render_text(result)
    assert "corewise launch --config" not in render_text(result)


def test_a_folder_in_which_no_file_can_be_created_is_refused() -> None:
    with pytest.raises(UserError, match=r"/proc/tuned.yaml cannot be written: .*--output"):
        ResultFiles(Path("/proc/tuned.yaml")).require_writable()


def test_stopping_a_call_from_python_shows_the_best_so_far() -> None:
    message = str(Interrupted(BETTER))
    assert "Best so far: 8×2, about 2.00× the default" in message
    assert "the same call resumes" in message


def test_fresh_runs_are_shown_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.space = Space({"threads": 1}, (Knob("allocator", ({}, {"allocator": "retain"})),))
    progress.num_done, progress.num_trials = 0, 2
    ran = replace(record(), params={"threads": 1, "allocator": "retain"}, metrics={"samples_per_s": 12.5})
    progress.report_record(ran)
    assert capsys.readouterr().err == "  [1/2] allocator retain: 12.5 samples/s\n"


def test_fresh_starts_of_a_script_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.space, progress.unit = Space({}, (Knob("allocator", ({}, {"allocator": "retain"})),)), "runs/s"
    progress.report_fresh_run((1,), 0.25)
    assert capsys.readouterr().err == "  allocator retain, fresh start: 0.25 runs/s\n"


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        (["resnet18"], "resnet18"),
        (["resnet18", "--"], "resnet18"),
        (["sh", "-c"], ["sh", "-c"]),
        (["--", "a", "b"], ["a", "b"]),
    ],
)
def test_a_name_and_a_command_are_distinguished(
    arguments: list[str], subject: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["corewise", "tune", *arguments])
    assert parse_subject([each for each in arguments if each != "--"]) == subject


def test_two_workloads_are_not_taken_for_a_command() -> None:
    with pytest.raises(UserError, match="resnet18 alexnet: tune one workload at a time"):
        parse_subject(["resnet18", "alexnet"])


def test_a_workload_together_with_a_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["corewise", "tune", "resnet18", "--", "python", "train.py"])
    with pytest.raises(UserError, match=r"resnet18 before -- .* tune resnet18\. A script: .* -- python train"):
        parse_subject(["resnet18", "python", "train.py"])
