"""`corewise compare`: what a person and a CI system see of it."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from tests.analysis.comparison.sample_sides import disturbed, failed, over_threads, store_of, trial
from typer.testing import CliRunner, Result

from corewise.cli.compare import compare, parse_threshold
from corewise.errors import UserError

app = typer.Typer()
app.command()(compare)
STEPS_S = {1: 1.0, 2: 0.5, 4: 0.3}


@pytest.fixture
def stores(tmp_path):
    a = store_of(tmp_path / "a", *over_threads("a", STEPS_S))
    b = store_of(tmp_path / "b", *over_threads("b", {1: 1.2, 2: 0.4, 4: 0.3}, versions={"torch": "2.14"}))
    return [str(a), str(b)]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, UserError):
        raise result.exception
    return result


def test_what_differs_comes_before_the_sentence_and_the_sentence_before_the_table(stores):
    done = run(*stores)
    assert done.exit_code == 0, done.output
    places = [
        done.stdout.index(text)
        for text in ("versions torch", "B is faster in 1 of 3 trials and slower in 1", "resnet50 train threads=1")
    ]
    assert places == sorted(places)
    assert "slower !" in done.stdout
    assert "●" in done.stdout


def test_json_is_all_that_is_printed(stores):
    output = json.loads(run(*stores, "--json").stdout)
    assert [each["verdict"] for each in output["trials"]] == ["slower", "faster", "same"]
    assert output["summary"]["num_regressions"] == 1


def test_without_a_gate_a_slowdown_is_no_failure(stores):
    assert run(*stores).exit_code == 0


def test_a_gate_fails_on_a_slowdown_beyond_the_threshold_only(stores):
    done = run(*stores, "--fail-on", "slower")
    assert done.exit_code == 1
    assert "1 trial slower by more than 5 %" in done.stderr
    assert run(*stores, "--fail-on", "slower", "--threshold", "30%").exit_code == 0
    swapped = run(stores[1], stores[0], "--fail-on", "slower", "--threshold", "0.3")
    assert swapped.exit_code == 0


def test_a_gate_fails_on_a_trial_that_broke(tmp_path):
    a = store_of(tmp_path / "a", trial("a1"))
    b = store_of(tmp_path / "b", failed("b1"))
    done = run(str(a), str(b), "--fail-on", "slower")
    assert done.exit_code == 1
    assert "1 trial measured in A failed in B" in done.stderr
    assert "rank 0 ran out of memory" in done.stdout


def test_a_gate_can_fail_on_missing_and_undecided_trials(tmp_path):
    a = store_of(tmp_path / "a", trial("a1", [0.5]), trial("a2", params={"threads": 2}))
    b = store_of(tmp_path / "b", trial("b1", [0.5]))
    assert run(str(a), str(b), "--fail-on", "slower").exit_code == 0
    done = run(str(a), str(b), "--fail-on", "slower,missing,undecided")
    assert done.exit_code == 1
    assert "1 trial measured in A, not in B" in done.stderr
    assert "1 trial undecided: too little data" in done.stderr


def test_junit_and_a_page_are_written_in_addition_to_the_output(stores, tmp_path):
    xml, page = tmp_path / "compare.xml", tmp_path / "compare.html"
    done = run(*stores, "--fail-on", "slower", "--junit", str(xml), "-o", str(page))
    assert done.exit_code == 1
    assert ElementTree.parse(xml).getroot().get("failures") == "1"
    assert page.stat().st_size > 100_000


def test_two_parts_of_one_store_are_compared(tmp_path):
    records = [trial(f"{math}", params={"math": math}) for math in ("vendor", "vanilla")]
    done = run(str(store_of(tmp_path / "s", *records)), "--by", "math=vendor,vanilla")
    assert "(math=vendor)" in done.stdout
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a second store"),
        (["--by", "math"], "--by 'math' is not NAME=VALUE_A,VALUE_B"),
        (["B", "--fail-on", "slow"], "--fail-on 'slow' is unknown: did you mean 'slower'"),
        (["B", "--threshold", "5"], "--threshold '5' is not a fraction"),
        (["B", "-o", "compare.htm"], "did you mean 'html'"),
        (["B", "--where", "threads"], "--where 'threads' is not NAME=VALUE"),
        (["B"], "does not exist: name another, or create one with"),
        (
            ["B", "--junit", "/nosuch/j.xml"],
            "folder /nosuch does not exist; create it, or choose another file with --junit",
        ),
        (["B", "-o", "/nosuch/c.html"], "folder /nosuch does not exist; create it, or choose another file with -o"),
    ],
)
def test_mistakes_are_reported_before_anything_is_read(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        run(str(tmp_path / "nowhere"), *arguments)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), (" 2.5 % ", 0.025), ("0.1", 0.1), ("0", 0.0), ("150%", 1.5)])
def test_a_threshold_is_a_share_or_per_cent(text, share):
    assert parse_threshold(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "five", "-1%", "nan", "inf%", "1"])
def test_what_is_no_threshold_is_refused(text):
    with pytest.raises(UserError, match="is not a fraction"):
        parse_threshold(text)


def test_many_trials_are_cut_with_the_command_to_see_the_rest(tmp_path):
    a, b = (
        store_of(tmp_path / name, *(trial(f"{name}{n:02d}", params={"batch": n}) for n in range(1, 31)))
        for name in "ab"
    )
    cut, whole = run(str(a), str(b)).stdout, run(str(a), str(b), "--all").stdout
    assert "… and 10 more: --all shows them here" in cut
    assert (cut.count("resnet50 train batch="), whole.count("resnet50 train batch=")) == (20, 30)


def test_names_cannot_steer_the_terminal(tmp_path):
    evil = {"workload": "net\x1b]0;owned\x07\x1b[2J[red]"}
    a = store_of(tmp_path / "a", trial("a1", params=evil), trial("a\x1b[1m", params={"batch": 2}))
    b = store_of(tmp_path / "b", trial("b1", params=evil, versions={"torch\x1b[5m": "\x1b[2J"}))
    done = run(str(a), str(b))
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "\\x1b" in done.stdout


def test_a_narrow_terminal_still_shows_the_verdicts(stores, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = run(*stores)
    assert "slower" in done.stdout
    assert "●" not in done.stdout


def test_damage_is_reported(stores):
    [path] = (Path(stores[1]) / "records").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert "1 place of" in run(*stores).stdout


def test_an_interval_that_leaves_the_plot_ends_in_arrows(tmp_path):
    a = store_of(tmp_path / "a", trial("a1", [0.001, 1000.0]))
    b = store_of(tmp_path / "b", trial("b1", [0.002, 2000.0]))
    [row] = [line for line in run(str(a), str(b)).stdout.splitlines() if "◂" in line]
    assert "▸" in row
    assert len(row) < 200


def test_a_gate_names_a_slowdown_that_others_may_have_caused(tmp_path):
    a = store_of(tmp_path / "a", trial("a", 0.5))
    b = store_of(tmp_path / "b", disturbed("b", 0.8, num=3))
    done = run(str(a), str(b), "--fail-on", "slower")
    assert done.exit_code == 1
    assert "1 trial slower by more than 5 %; it is in doubt: other processes disturbed runs of B" in done.stderr
    assert "slower ! ~" in done.stdout
    output = done.stdout.index("1 of 1 trial of B had disturbed runs.")
    assert output < done.stdout.index("B is slower in 1 of 1 trial")


def test_a_gate_can_ignore_what_others_disturbed(tmp_path):
    a = store_of(tmp_path / "a", trial("a", 0.5))
    b = store_of(tmp_path / "b", disturbed("b", 0.8, num=3))
    arguments = [str(a), str(b), "--ignore-disturbed"]
    done = run(*arguments, "--fail-on", "slower")
    assert done.exit_code == 0
    assert "cannot tell ~" in done.stdout
    assert run(*arguments, "--fail-on", "slower,undecided").exit_code == 1


def test_a_file_that_cannot_be_written_keeps_back_neither_the_verdict_nor_the_other_file(stores, tmp_path):
    full = tmp_path / "full.json"
    full.symlink_to("/dev/full")
    xml = tmp_path / "compare.xml"
    done = run(*stores, "-o", str(full), "--junit", str(xml))
    assert done.exit_code == 2
    assert "B is faster in 1 of 3 trials" in done.stdout
    assert f"{full} cannot be written: the disk is full; free space, or name another file with -o" in done.stderr
    assert ElementTree.parse(xml).getroot().get("failures") == "1"
    assert run(*stores, "-o", str(full), "--fail-on", "slower").exit_code == 1


@pytest.mark.parametrize("arguments", [[], ["--json"]])
@pytest.mark.parametrize(("gated", "code"), [([], 0), (["--fail-on", "slower"], 1)])
def test_a_reader_that_leaves_changes_neither_the_exit_code_nor_the_files(stores, tmp_path, arguments, gated, code):
    xml = tmp_path / "compare.xml"
    command = [sys.executable, "-m", "corewise", "compare", *stores, *arguments, *gated, "--junit", str(xml)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        output = process.stderr.read()
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert "ignored" not in output
    assert xml.is_file()
