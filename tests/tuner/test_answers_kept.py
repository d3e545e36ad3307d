"""What a tuning leaves behind: files, answers of stopped searches, refusals of what cannot be compared."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise.cli.tune import all_written, subject_of
from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.spec.study import PRESETS
from corewise.spec.tuned import Fingerprint, Measured, Subject, Tuned, read_tuned, write_tuned
from corewise.store.store import Store
from corewise.tuner.api import tune
from corewise.tuner.confirm import require_same_shapes
from corewise.tuner.files import Files
from corewise.tuner.found import Judged
from corewise.tuner.journal import Journal
from corewise.tuner.output import tuned_of
from corewise.tuner.progress import Told, outcome
from corewise.tuner.question import Tunable, make_question
from corewise.tuner.result import Side, Tried, TuneResult
from corewise.tuner.session import Interrupted, kept_answer
from corewise.tuner.space import Knob, Space
from corewise.tuner.words import answer_text, headline

SIDE = Side(params={}, words="default", throughput=10.0)
RESULT = TuneResult(
    name="own infer", mode="infer", batch=4, machine="2 cores", verdict="unconfirmed", default=SIDE, best=SIDE
)
BETTER = replace(RESULT, best=replace(SIDE, words="8×2"), speedup=2.0, finished=False)
MACHINE = Fingerprint(cpu_model="A CPU", num_sockets=1, nodes=((2, 2),), memory_bytes=1)
TUNED = Tuned(subject=Subject(workload="own", mode="infer"), params={"threads": 2}, machine=MACHINE)
MEASURED = Measured(
    throughput=2.0, interval=(1.9, 2.1), default_throughput=1.0, default_interval=(0.9, 1.1), speedup=2.0
)


def made(result: TuneResult) -> Tuned:
    return TUNED


def raiser(result: TuneResult) -> Callable[[], TuneResult]:
    def stopped() -> TuneResult:
        raise Interrupted(result)

    return stopped


def record(*shapes: str) -> Record:
    runs = tuple({"status": "ok", "ranks": [{"rank": 0, "shapes": each}]} for each in shapes)
    return Record(trial_id="0" * 16, study="tune own", status="ok", params={}, runs=runs)


def test_a_factory_whose_shapes_change_from_start_to_start_is_refused() -> None:
    require_same_shapes([record("a", "a"), record("a")])
    with pytest.raises(UserError, match=r"other shapes at every start \(a, then b\)"):
        require_same_shapes([record("a"), record("a", "b")])


def test_a_stopped_tuning_leaves_its_settings_and_says_so(tmp_path: Path) -> None:
    stopped = raiser(BETTER)
    with pytest.raises(Interrupted) as caught:
        Files(tmp_path / "tuned.yaml").after(stopped, made)
    assert read_tuned(tmp_path / "tuned.yaml").params == {"threads": 2}
    assert caught.value.result.output == str(tmp_path / "tuned.yaml")


def test_a_tuning_stopped_before_anything_better_leaves_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("earlier")
    with pytest.raises(Interrupted) as caught:
        Files(file).after(raiser(RESULT), made)
    assert file.read_text() == "earlier"
    text = answer_text(caught.value.result)
    assert f"{file} was not written" in text
    assert "corewise launch" not in text


def test_a_stopped_tuning_keeps_the_file_of_a_finished_one_beside_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    for name in ("tuned.yaml.old", "tuned.yaml.old2"):
        write_tuned(file, replace(TUNED, measured=MEASURED))
        with pytest.raises(Interrupted) as caught:
            Files(file).after(raiser(BETTER), made)
        assert read_tuned(file).measured is None
        assert read_tuned(tmp_path / name).measured == MEASURED
        assert name in caught.value.result.notes[-1]
    with pytest.raises(Interrupted) as caught:
        Files(file).after(raiser(BETTER), made)  # over that of a stopped one: nothing is lost
    assert caught.value.result.notes == ()


FINISHED = replace(BETTER, verdict="faster", finished=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"subject": Subject(workload="alexnet", mode="train")}, "the settings of alexnet train"),
        ({"subject": Subject(workload="own", mode="infer", runtime="jax")}, "the settings of own infer"),
        ({"subject": Subject(command=("python", "train.py"))}, "the settings of python train.py"),
        ({"params": {"threads": 2, "batch": 64}}, "the settings of other work of that name"),
        ({"params": {"threads": 2, "args.size": 3}}, "the settings of other work of that name"),
        ({"machine": replace(MACHINE, nodes=((16, 32),), hostname="node7")}, "of another machine, node7"),
    ],
)
def test_a_finished_tuning_keeps_the_settings_of_another_question_beside_its_own(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    file = tmp_path / "tuned.yaml"
    other = replace(TUNED, measured=MEASURED, **change)
    write_tuned(file, other)
    result = Files(file).after(lambda: FINISHED, made)
    assert read_tuned(file) == TUNED
    assert read_tuned(tmp_path / "tuned.yaml.old") == other
    assert told in result.notes[-1]
    assert "tuned.yaml.old" in result.notes[-1]


def test_a_finished_tuning_replaces_its_own_earlier_answer(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    renamed = replace(MACHINE, hostname="node2", memory_bytes=2)
    write_tuned(file, replace(TUNED, params={"threads": 1}, machine=renamed, measured=MEASURED))
    assert Files(file).after(lambda: FINISHED, made).notes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_a_tuning_that_goes_on_replaces_what_it_left_when_it_was_stopped(
    tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    tunable = Tunable.of(make_question("resnet18", batch=8, fixed={"args.image_size": 64}))
    space = tunable.space
    [trial] = tunable.plan(space.default, PRESETS["quick"]).trials
    raced = replace(BETTER, best=replace(BETTER.best, params=space.params(space.default)))
    measured = replace(FINISHED, best=replace(SIDE, params=trial.params))  # as records tell them
    files = Files(tmp_path / "tuned.yaml")
    with pytest.raises(Interrupted):
        files.after(raiser(raced), lambda result: tuned_of(tunable, result))
    assert files.after(lambda: measured, lambda result: tuned_of(tunable, result)).notes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_settings_that_were_changed_by_hand_and_cannot_be_read_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    write_tuned(file, TUNED)
    file.write_text(file.read_text() + "mine: 3\n")
    [note] = Files(file).after(lambda: FINISHED, made).notes
    assert "changed by hand" in note
    assert "mine: 3" in (tmp_path / "tuned.yaml.old").read_text()


def test_a_stopped_tuning_writes_its_page(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    result = kept_answer(Journal(store, "a" * 16, Space({}, ())), replace(BETTER, store=str(store.path)))
    with pytest.raises(Interrupted) as caught:
        Files(report=tmp_path / "page.html").after(raiser(result), made)
    assert "Stopped. Best so far: 8×2" in (tmp_path / "page.html").read_text()
    assert caught.value.result.report == str(tmp_path / "page.html")


def test_whoever_stops_twice_still_gets_the_answer(tmp_path: Path) -> None:
    def hurried(result: TuneResult) -> Tuned:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        Files(tmp_path / "tuned.yaml").after(lambda: BETTER, hurried)
    assert "the same command writes them" in caught.value.result.notes[-1]


def test_a_file_that_no_tuning_wrote_is_not_replaced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with pytest.raises(UserError, match=r"train\.py exists and is no file of `corewise tune`"):
        Files(script).require()
    with pytest.raises(UserError, match="no plain file"):
        Files(Path("/dev/null")).require()
    write_tuned(tmp_path / "tuned.yaml", TUNED)
    (tmp_path / "empty").touch()
    Files(tmp_path / "tuned.yaml").require()
    Files(tmp_path / "empty").require()


@pytest.mark.parametrize(
    ("subject", "options", "told"),
    [
        ([], {}, "nothing to tune"),
        ("", {}, "nothing to tune"),
        (3, {}, "a list of the words"),
        (made, {}, r'write it to a file and name it, as in tune\("my.py:made"\)'),
        (["python", 3], {}, "a list of the words"),
        ("resnet18", {"batch": "a"}, "--batch 'a'"),
        (["python", "x.py"], {"batch": "a"}, "--batch 'a'"),
        ("resnet18", {"allow": "batch"}, r'allow=\["lower-precision"\]'),
        ("resnet18", {"fixed": ["threads=4"]}, r'fixed=\{"threads": 4\}'),
        ("resnet18", {"args": "image_size=3"}, "write a dict"),
    ],
)
def test_a_call_of_wrong_kinds_is_told_what_to_write(
    subject: Any, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        tune(subject, **options)


def test_a_page_replaces_neither_the_settings_nor_a_script(tmp_path: Path) -> None:
    script, page = tmp_path / "train.py", tmp_path / "tuned.html"
    script.write_text("print('<html>')")
    page.write_text("\n<!DOCTYPE html><p>of an earlier tuning")
    with pytest.raises(UserError, match=r"train.py exists and is no HTML page.*--report"):
        Files(None, script).require()
    with pytest.raises(UserError, match="cannot hold both"):
        Files(tmp_path / "new", tmp_path / "." / "new").require()
    Files(None, page).require()
    Files(tmp_path / "tuned.yaml", page).require()


def test_a_start_that_only_ties_is_not_called_the_best() -> None:
    tied = Judged((), "won", score=0.002, half_width=0.01)
    assert outcome(tied) == "1.00× the default: no difference, gone on from"
    assert outcome(replace(tied, score=0.7)) == "2.01× the default: the best so far"


def test_whole_runs_are_told_as_such_while_a_tuning_runs() -> None:
    assert outcome(Judged((), "default", throughput=0.25), "runs/s") == "0.25 runs/s"


@pytest.mark.parametrize("option", ["output", "report"])
def test_a_file_that_cannot_be_written_is_told_by_its_option(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match=f"--{option}"):
        Files(**{option: tmp_path / "nowhere" / "file"}).require()


def test_a_search_stopped_early_claims_nothing() -> None:
    assert headline(RESULT) == "Stopped before anything faster than the default was found."
    assert headline(BETTER).startswith("Stopped. Best so far: 8×2, about 2.00× the default")
    assert "cut short by its budget" not in answer_text(BETTER)


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    tried = Tried("bfloat16", {}, "rejected", 0.0, 0.0, 0.0, float("nan"), "wrong numbers")
    told = replace(RESULT, tried=(tried,)).to_json()
    assert told["tried"][0]["check_error"] is None
    json.dumps(told, allow_nan=False)


def test_an_answer_whose_settings_cannot_be_written_is_told_all_the_same(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "tuned.yaml"
    result = Files(gone, gone.with_name("page.html")).after(lambda: replace(BETTER, verdict="faster"), made)
    assert (result.output, result.report) == ("", "")
    assert not all_written(result, gone, None)
    assert not all_written(result, None, gone)
    assert all_written(result, None, None)
    assert f"the settings were not kept: {gone} cannot be written" in answer_text(result)
    assert "the page was not written" in answer_text(result)
    assert "corewise launch --config" not in answer_text(result)


def test_a_folder_that_takes_no_files_is_told_whatever_its_permissions_say() -> None:
    with pytest.raises(UserError, match=r"/proc/tuned.yaml cannot be written; .*--output"):
        Files(Path("/proc/tuned.yaml")).require()


def test_who_stops_a_call_from_python_reads_the_best_so_far() -> None:
    told = str(Interrupted(BETTER))
    assert "Best so far: 8×2, about 2.00× the default" in told
    assert "the same call goes on" in told


def test_fresh_runs_are_told_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()
    told.space = Space({"threads": 1}, (Knob("allocator", ({}, {"allocator": "retain"})),))
    told.num_done, told.num_trials = 0, 2
    ran = replace(record(), params={"threads": 1, "allocator": "retain"}, metrics={"samples_per_s": 12.5})
    told.finished(ran)
    assert capsys.readouterr().err == "  [1/2] allocator retain: 12.5 samples/s\n"


def test_fresh_starts_of_a_script_are_told_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()
    told.space, told.unit = Space({}, (Knob("allocator", ({}, {"allocator": "retain"})),)), "runs/s"
    told.rated((1,), 0.25)
    assert capsys.readouterr().err == "  allocator retain, started afresh: 0.25 runs/s\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["resnet18"], "resnet18"),
        (["resnet18", "--"], "resnet18"),
        (["sh", "-c"], ["sh", "-c"]),
        (["--", "a", "b"], ["a", "b"]),
    ],
)
def test_a_name_and_the_words_of_a_command_are_told_apart(
    words: list[str], found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["corewise", "tune", *words])
    assert subject_of([word for word in words if word != "--"]) == found


def test_two_workloads_are_not_taken_for_a_command() -> None:
    with pytest.raises(UserError, match="resnet18 alexnet: tune one workload at a time"):
        subject_of(["resnet18", "alexnet"])


def test_a_workload_and_a_command_at_once_are_told_apart_for_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["corewise", "tune", "resnet18", "--", "python", "train.py"])
    with pytest.raises(
        UserError, match=r"resnet18 before -- .* tune resnet18\. A script: .* -- python train"
    ):
        subject_of(["resnet18", "python", "train.py"])
