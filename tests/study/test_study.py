import dataclasses
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.measured.runtimes import registry
from corewise.measured.trial import Protocol
from corewise.study.axes import Keyword
from corewise.study.study import PRESETS, ProtocolFile, _list_runtimes, load_study
from corewise.study.syntax.expressions import Expression

FULL = """\
question: How does it scale,
  and where does it stop paying?
workload: [resnet50, alexnet]
mode: [train, infer]
runtime: torch
python: env/bin/python
prefix: apptainer exec 'my image.sif'
axes:
  threads: [1, powers-of-two, "= allocation // processes"]
  batch: 64
fixed:
  memory_format: channels_last
  smt: true
  data: images
  args.image_size: 64
constraints:
  - processes * threads <= allocation
protocol: {min_runs: 7, target_interval: 1e-2}
environment: {SOME_VAR: value, NUMBER: 3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_error(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_study(write(folder, text), list(overrides))
    return str(caught.value)


def test_a_whole_study_is_read(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, FULL))
    assert study.name == "study"
    assert study.path == tmp_path / "study.yaml"
    assert study.question == "How does it scale, and where does it stop paying?"
    assert study.workloads == ("resnet50", "alexnet")
    assert study.modes == ("train", "infer")
    assert study.runtimes == ("torch",)
    assert study.python == str(tmp_path / "env/bin/python")
    assert study.prefix == ("apptainer", "exec", "my image.sif")
    one, keyword, expression = study.axes["threads"]
    assert (one, keyword) == (1, Keyword("powers-of-two"))
    assert isinstance(expression, Expression)
    assert expression.text == "allocation // processes"
    assert study.axes["batch"] == (64,)
    assert study.fixed == {
        "memory_format": "channels_last",
        "smt": True,
        "data": str(tmp_path / "images"),
        "args.image_size": 64,
    }
    (constraint,) = study.constraints
    assert constraint.condition.text == "processes * threads <= allocation"
    assert constraint.origin == f"{study.path}:17"
    assert study.protocol == Protocol(min_runs=7, target_interval=0.01)
    assert study.environment == {"SOME_VAR": "value", "NUMBER": "3"}
    assert study.find_origin("threads") == f"{study.path}:9"
    assert study.find_origin("alexnet") == f"{study.path}:3"


def test_a_workload_alone_makes_a_study(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, "workload: alexnet\naxes:\nconstraints:\nenvironment:\nprotocol:\n"))
    assert (study.workloads, study.modes, study.runtimes) == (("alexnet",), ("infer",), ("torch",))
    assert (study.python, study.prefix, study.axes, study.fixed) == (None, (), {}, {})
    assert study.protocol == Protocol()


def test_an_interpreter_without_a_slash_is_left_to_the_path(tmp_path: Path) -> None:
    assert load_study(write(tmp_path, "workload: a\npython: python3\n")).python == "python3"


def test_one_constraint_needs_no_list(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, "workload: a\nconstraints: threads > 1\n"))
    assert [c.condition.text for c in study.constraints] == ["threads > 1"]


def test_the_protocol_section_has_every_field_of_the_protocol() -> None:
    fields = {field.name for field in dataclasses.fields(Protocol)}
    assert set(ProtocolFile.model_fields) - {"preset"} == fields


@pytest.mark.parametrize("written", ["protocol: thorough", "protocol: {preset: thorough}"])
def test_a_preset_is_given_by_name(tmp_path: Path, written: str) -> None:
    assert load_study(write(tmp_path, f"workload: a\n{written}\n")).protocol == PRESETS["thorough"]


@pytest.mark.parametrize(("given", "bounds"), [("min_runs: 20", (20, 20)), ("max_runs: 2", (2, 2))])
def test_one_bound_alone_takes_the_other_with_it(tmp_path: Path, given: str, bounds: tuple[int, int]) -> None:
    protocol = load_study(write(tmp_path, f"workload: a\nprotocol: {{{given}}}\n")).protocol
    assert (protocol.min_runs, protocol.max_runs) == bounds


def test_a_custom_workload_is_found_next_to_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(): ...\n")
    study = load_study(write(tmp_path, "workload: mine.py:make\n"))
    assert study.workloads == (f"{tmp_path}/mine.py:make",)


# What follows the line `workload: a`, the line of the mistake, and a part of the message.
MISTAKES_AFTER_WORKLOAD = {
    "unknown key": ("workloads: b", 2, "unknown key 'workloads'; did you mean 'workload'?"),
    "axis at the margin": ("threads: 4", 2, "threads is an axis: put it under `axes:`"),
    "unknown axis": ("axes:\n  batch: 4\n  thread: 4", 4, "unknown axis 'thread'; did you mean 'threads'?"),
    "unknown fixed axis": ("fixed:\n  bacth: 4", 3, "unknown axis 'bacth'; did you mean 'batch'?"),
    "key among axes": ("axes:\n  mode: train", 3, "'mode' is not an axis"),
    "unknown value": (
        "axes:\n  memory_format:\n    - contiguous\n    - chanels_last",
        5,
        "unknown value 'chanels_last' of memory_format; did you mean 'channels_last'?",
    ),
    "empty axis": ("axes:\n  batch: []", 3, "the axis batch is empty"),
    "axis without value": ("axes:\n  batch:", 3, "the axis batch is empty"),
    "zero threads": ("axes:\n  threads: [1,\n    0]", 4, "threads must be at least 1, not 0"),
    "negative threads": ("fixed:\n  threads: -2", 3, "threads must be at least 1, not -2"),
    "text for a number": ("fixed:\n  batch: many", 3, "batch needs a whole number, not 'many'"),
    "list in fixed": ("fixed:\n  batch: [1, 2]", 3, "fixed takes one value of batch"),
    "several in fixed": ("fixed:\n  threads: powers-of-two", 3, "move threads to axes"),
    "axes no mapping": ("axes: [threads]", 2, "axes: needs `name: value` lines"),
    "question no text": ("question: 3", 2, "question: needs a text, not 3"),
    "unknown mode": ("mode: [infer, trian]", 2, "unknown mode 'trian'; did you mean 'train'?"),
    "unknown runtime": ("runtime: tourch", 2, "unknown runtime 'tourch'; did you mean 'torch'?"),
    "one unknown of several runtimes": ("runtime: [torch, jaxx]", 2, "unknown runtime 'jaxx'; did you mean 'jax'?"),
    "no runtime": ("runtime: []", 2, "runtime is empty"),
    "constraint syntax": ("constraints:\n  - threads >\n", 3, "cannot read 'threads >'"),
    "constraint name": (
        "constraints:\n  - threads > 1\n  - proceses > 1",
        4,
        "unknown name 'proceses' in 'proceses > 1'; did you mean 'processes'?",
    ),
    "constraint without quotes": ("constraints:\n  - dtype == float32", 3, "put the value in quotes: 'float32'"),
    "constraint compares nothing": ("constraints:\n  - threads", 3, "neither true nor false"),
    "constraint no text": ("constraints:\n  - 3", 3, "constraints: needs a text, not 3"),
    "constraints mapping": ("constraints: {a: b}", 2, "constraints: needs a text"),
    "expression syntax": ("axes:\n  threads: = 4 +", 3, "threads: cannot read '4 +'"),
    "expression name": ("axes:\n  threads: = coers", 3, "did you mean 'cores'?"),
    "circle": ("axes:\n  batch: = 4 * threads\n  threads: = batch // 4", 3, "give one of them plain values"),
    "circle with a default": ("axes:\n  processes: = allocation // threads", 3, "processes needs threads"),
    "unknown preset": ("protocol: quik", 2, "unknown preset 'quik'; did you mean 'quick'?"),
    "unknown protocol field": (
        "protocol:\n  min_run: 3",
        3,
        "unknown protocol field 'min_run'; did you mean 'min_runs'?",
    ),
    "protocol out of range": ("protocol:\n  confidence: 1.5", 3, "protocol.confidence: must be less"),
    "protocol type": ("protocol:\n  min_runs: five", 3, "protocol.min_runs: needs a whole number"),
    "protocol start": ("protocol:\n  start: frok", 3, "unknown start 'frok'; did you mean 'fork'?"),
    "protocol bounds": ("protocol:\n  max_runs: 2\n  min_runs: 3", 4, "min_runs 3 is more than max_runs 2"),
    "protocol no mapping": ("protocol: 3", 2, "protocol: needs `name: value` lines"),
    "prefix quotes": ("prefix: a 'b", 2, "prefix cannot be split into arguments: No closing quotation"),
    "environment name": ("environment:\n  A: x\n  B=C: x", 4, "'B=C' is not a valid name"),
    "environment value": ("environment:\n  A: true", 3, "put it in quotes"),
    "environment governed": ("environment:\n  OMP_NUM_THREADS: 3", 3, "use the axis threads"),
    "duplicate key": ("mode: train\nworkload: b", 3, "'workload' is given twice, on lines 1 and 3"),
    "duplicate axis": ("axes:\n  batch: 1\n  batch: 2", 4, "'batch' is given twice, on lines 3 and 4"),
    "tag": ("question: !!python/object/apply:os.getcwd []", 2, "the tag !!python/object/apply:os.getcwd"),
    "syntax": ("axes: {threads: 1\n", 3, "not valid YAML"),
}
MISTAKES = {
    "workload missing": ("question: why", 1, "workload is missing"),
    "workload null": ("workload:", 1, "workload: needs a value"),
    "workload empty": ("workload: []", 1, "workload is empty"),
    "workload no text": ("workload:\n  - a\n  - 3", 3, "workload: needs a text, not 3"),
    "own file missing": ("workload: no.py:f", 1, "no such file: "),
    "own without factory": ("workload: no.py", 1, "write no.py:FACTORY"),
    "own with odd factory": ("workload: no.py:a-b", 1, "neither the name of a workload nor path.py:FACTORY"),
    "list": ("- workload: a", 1, "a study consists of `key: value` lines, not a list"),
    "scalar": ("workload", 1, "a study consists of `key: value` lines, not a str"),
    "empty": ("", 1, "the file is empty"),
    **{
        what: ("workload: a\n" + rest, line, expected)
        for what, (rest, line, expected) in MISTAKES_AFTER_WORKLOAD.items()
    },
}


@pytest.mark.parametrize(("text", "line", "expected"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_names_file_line_and_remedy(tmp_path: Path, text: str, line: int, expected: str) -> None:
    message = read_error(tmp_path, text)
    matching = [part.strip() for part in message.splitlines() if expected in part]
    assert matching, message
    assert matching[0].startswith(f"{tmp_path}/study.yaml:{line}: ")


def test_an_axis_both_varied_and_fixed_names_both_lines(tmp_path: Path) -> None:
    message = read_error(tmp_path, "workload: a\naxes:\n  batch: [1, 2]\nfixed:\n  batch: 3\n")
    file = f"{tmp_path}/study.yaml"
    assert message == f"{file}:5: batch is in both axes and fixed ({file}:3 and {file}:5); keep one"


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(b"workload: a\nquestion: caf\xe9\n")
    with pytest.raises(UserError, match=r"study\.yaml:2: not UTF-8 text; save the file as UTF-8"):
        load_study(path)


def test_all_mistakes_of_a_file_are_reported_together(tmp_path: Path) -> None:
    message = read_error(
        tmp_path,
        "workload: a\nmode: trian\naxes:\n  thread: 1\n  batch: []\n  dtype: flaot32\nmode: infer\n"
        "constraints:\n  - cors > 1\nprotcol: quick\n",
        "nothing=1",
    )
    lines = message.splitlines()
    assert lines[0] == "8 mistakes:"
    assert [line.split("study.yaml:")[1].split(":")[0] for line in lines[1:-1]] == ["2", "4", "5", "6", "7", "9", "10"]
    assert lines[-1].startswith("  --set nothing=1: ")


def test_runtimes_of_other_packages_are_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(registry, "list_runtimes", lambda: calls.append(None) or ("torch",))
    _list_runtimes.cache_clear()
    path = tmp_path / "study.yaml"
    path.write_text(f"workload: matmul\nruntime: [{', '.join(f'r{number}' for number in range(200))}]\n")
    with pytest.raises(UserError, match="200 mistakes"):
        load_study(path)
    _list_runtimes.cache_clear()
    assert len(calls) == 1
