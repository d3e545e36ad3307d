"""A tuned file comes back as it was written, and every mistake in one is reported with its line."""

import dataclasses
from pathlib import Path
from textwrap import dedent

import pytest

from corewise.errors import UserError
from corewise.study.tuned_file import (
    _SECTION_READERS,
    MachineFingerprint,
    MeasuredSpeedup,
    TunedSettings,
    TuningSubject,
    read_tuned,
    write_tuned,
)

MACHINE = MachineFingerprint(
    cpu_model="Some Xeon", num_sockets=2, nodes=((8, 16), (8, 16)), memory_bytes=128 << 30, hostname="node1"
)
MEASURED = MeasuredSpeedup(
    throughput=39.2, interval=(38.5, 39.9), default_throughput=18.1, default_interval=(17.9, 18.4), speedup=2.17
)
TUNED = TunedSettings(
    subject=TuningSubject(workload="resnet50", mode="train", runtime="torch"),
    params={"processes": 4, "threads": 4, "memory_format": "channels_last", "smt": False, "args.depth": 50},
    machine=MACHINE,
    measured=MEASURED,
    environment={"DNNL_VERBOSE": "0"},
    corewise_version="0.1.0",
    date="2026-11-15T12:00:00Z",
)
SMALL = """\
    schema: 1
    subject: {command: [python, train.py]}
    params:
      processes: 2
      threads: 4
    machine:
      cpu_model: Some Xeon
      num_sockets: 1
      nodes: [[8, 8]]
      memory_bytes: 1000
    """


def write_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tuned.yaml"
    path.write_text(dedent(text))
    return path


def read_error(tmp_path: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        read_tuned(write_file(tmp_path, text))
    return str(caught.value)


@pytest.mark.parametrize(
    "tuned",
    [
        TUNED,
        dataclasses.replace(TUNED, measured=None, environment={}, corewise_version="", date=""),
        dataclasses.replace(TUNED, subject=TuningSubject(command=("python", "a b.py", "--x=on"))),
        dataclasses.replace(TUNED, machine=dataclasses.replace(TUNED.machine, core_classes=(8, 0))),
        dataclasses.replace(TUNED, measured=dataclasses.replace(MEASURED, speedup_interval=(2.1, 2.2))),
    ],
)
def test_what_is_written_is_read_back(tuned: TunedSettings, tmp_path: Path) -> None:
    write_tuned(tmp_path / "tuned.yaml", tuned)
    assert read_tuned(tmp_path / "tuned.yaml") == tuned
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_a_person_can_write_one(tmp_path: Path) -> None:
    tuned = read_tuned(write_file(tmp_path, SMALL))
    assert tuned.params == {"processes": 2, "threads": 4}
    assert str(tuned.subject) == "python train.py"
    assert (tuned.machine.num_cores, tuned.machine.num_cpus) == (8, 8)


def test_the_table_of_keys_is_that_of_the_dataclasses() -> None:
    for made, keys in _SECTION_READERS.items():
        assert [each.name for each in dataclasses.fields(made)] == list(keys)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("processes: 2", "proceses: 2", "4: unknown axis 'proceses'; did you mean 'processes'?"),
        ("processes: 2", "processes: two", "4: unknown keyword 'two' for processes"),
        ("processes: 2", "processes: powers-of-two", "4: processes must be a plain value in a tuned file"),
        ("processes: 2", "processes: '= cores'", "4: processes must be a plain value in a tuned file"),
        ("threads: 4", "placement: nuna", "5: unknown value 'nuna' of placement; did you mean 'numa'?"),
        ("cpu_model:", "cpu_modell:", "7: unknown key 'cpu_modell'; did you mean 'cpu_model'?"),
        ("num_sockets: 1", "num_sockets: 0", "8: num_sockets: needs a whole number of at least 1, not 0"),
        ("[[8, 8]]", "[8, 8]", "9: nodes: needs [cores, CPUs] of each NUMA node"),
        ("params:", "parameters:", "3: unknown key 'parameters'; did you mean 'params'?"),
        ("schema: 1", "schema: 2", "1: schema 2 is newer than this Corewise reads (1): update Corewise"),
        ("schema: 1", "workload: resnet50", "1: no `schema: 1`; pass a file that `corewise tune` wrote"),
        ("{command: [python, train.py]}", "python", "2: subject needs `name: value` lines, not 'python'"),
    ],
)
def test_a_mistake_is_reported_with_its_line(old: str, new: str, what: str, tmp_path: Path) -> None:
    assert old in SMALL
    assert f"tuned.yaml:{what}" in read_error(tmp_path, SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", ":1: the file is empty; tune again"),
        ("- a\n- b\n", ":1: a tuned file consists of `key: value` lines"),
        ("schema: 1\nparams: {", "not valid YAML"),
        ("schema: 1\nparams: {}\nsubject: {}\n", "machine is missing"),
        ("\x00", "YAML does not allow this character"),
    ],
)
def test_a_damaged_file_is_reported(text: str, what: str, tmp_path: Path) -> None:
    assert what in read_error(tmp_path, text)


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    text = SMALL.replace("processes: 2", "proceses: 2").replace("nodes:", "node:")
    text = text.rstrip(" ") + "    environment: {1x: a}\n"
    assert read_error(tmp_path, text).startswith("4 mistakes:")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml: cannot be read: No such file"):
        read_tuned(tmp_path / "none.yaml")


def test_a_file_that_cannot_be_written_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written: No such file.*--output"):
        write_tuned(tmp_path / "no" / "tuned.yaml", TUNED)
    assert list(tmp_path.iterdir()) == []


def test_an_execution_under_its_old_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    write_tuned(path, dataclasses.replace(TUNED, params={"threads": 1, "execution": "fast-kernels"}))
    path.write_text(path.read_text().replace("fast-kernels", "quickened"))
    assert read_tuned(path).params["execution"] == "fast-kernels"


@pytest.mark.parametrize("number", ["1" + "0" * 400, ".nan", "1e999", "[1]", "null"])
def test_a_figure_that_is_no_number_is_a_mistake_with_its_line(tmp_path: Path, number: str) -> None:
    text = dedent(SMALL) + f"measured: {{throughput: {number}, interval: [1, 2]}}\n"
    assert "tuned.yaml:11: " in read_error(tmp_path, text)
