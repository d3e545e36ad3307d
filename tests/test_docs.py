"""What the documents promise is executed: links, studies, commands, examples, and tables against the code."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from corewise.cli.app import build_app
from corewise.launch.environment import CONTROLLED_NAMES, CONTROLLED_PREFIXES
from corewise.measured.probes.disturbances import (
    CO_RUNNER_FRACTION,
    MAX_OTHER_CPU_FRACTION,
    MAX_OTHER_WALL_FRACTION,
    MAX_STEAL_FRACTION,
)
from corewise.measured.trial import Protocol
from corewise.measured.workloads.registry import find_workload, list_workloads
from corewise.run.run_collector import FAILURE_ORDER
from corewise.run.study_runner import CANARY_LIMIT
from corewise.store.store import Store
from corewise.study.axes import AXES, COUNT_KEYWORDS, Axis, Keyword
from corewise.study.planning.expansion import expand_study
from corewise.study.planning.feasibility import MachineView
from corewise.study.record import Record
from corewise.study.study import AXES_OF_VARIABLES, PRESETS, StudyFile, load_study
from corewise.study.syntax.expressions import Expression

APP = build_app()

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TINY = (
    *("--set", "threads=1", "--set", "batch=4", "--set", "args.width=16"),
    *("--set", "protocol.min_runs=2", "--set", "protocol.max_runs=2", "--set", "protocol.min_samples=3"),
    *("--set", "protocol.min_sample_s=0.01", "--set", "protocol.max_warmup_s=0.2"),
)
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


class Block(NamedTuple):
    """A fenced block: its language, and its text."""

    language: str
    text: str

    @property
    def file_name(self) -> str:
        """The name its first line gives in a comment, or nothing."""
        named = re.match(r"# (\S+\.(?:py|yaml))\n", self.text)
        return named[1] if named else ""


# Calls that take the category of a failure, and names bound to one.
FAILURE = re.compile(
    r'(?:[Ff]ailed|[Ff]ailure|kill(?:_all)?)\((?:[\w.]+,\s*)*\s*"(\w+)"'
    r'|\b(?:kind|category)(?:, text)? ?= ?"(\w+)"'
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[Block]:
    found = [Block(*match) for match in FENCE.findall(document.read_text())]
    return [block for block in found if block.language == language]


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())


def write_files(document: Path, folder: Path) -> list[Path]:
    """Write the studies and Python files of a document to a folder; return the studies."""
    for block in blocks(document, "python"):
        if block.file_name:
            (folder / block.file_name).write_text(block.text)
    studies = [b for b in blocks(document, "yaml") if re.search(r"^workload:", b.text, re.MULTILINE)]
    paths = [folder / (b.file_name or f"study-{i}.yaml") for i, b in enumerate(studies)]
    for path, block in zip(paths, studies, strict=True):
        path.write_text(block.text)
    return paths


def commands(document: Path) -> list[list[str]]:
    """Return the arguments of every `corewise` line in a shell block."""
    lines = [line for block in blocks(document, "sh") for line in block.text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("corewise ")]


def mentions(document: Path) -> list[list[str]]:
    """Return the arguments of `corewise` wherever it stands between backquotes."""
    return [text.split() for text in re.findall(r"`corewise\s([^`]+)`", prose(document))]


def table(document: str, first: str) -> list[list[str]]:
    """The rows of the table whose first column is headed so."""
    lines = iter((ROOT / "docs" / document).read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in _until_blank(lines)]
    raise AssertionError(f"{document} has no table of {first}")


def _until_blank(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def code(value: object) -> str:
    return f"`{value}`"


@each_document
def test_every_study_in_a_document_can_be_read(document: Path, tmp_path: Path) -> None:
    for path in write_files(document, tmp_path):
        study = load_study(path)
        assert study.question.endswith("?"), f"{document.name}: {path.name}"


@each_document
def test_every_command_has_a_verb_and_options_that_exist(document: Path) -> None:
    group = typer.main.get_command(APP)
    assert isinstance(group, TyperGroup)
    named = mentions(document)
    assert {args[0] for args in named} <= {*group.commands, "--help", "--version"}
    for verb, *args in [*commands(document), *(args for args in named if len(args) > 1)]:
        assert verb in group.commands
        # This parses the arguments and executes nothing.
        group.commands[verb].make_context(verb, args)


def test_the_cheap_commands_of_the_readme_end_well(tmp_path: Path) -> None:
    shown = [args for args in commands(ROOT / "README.md") if args[0] in ("doctor", "list", "plan")]
    cheap = [args for args in shown if "--ceilings" not in args]
    assert [args[0] for args in cheap] == ["doctor", "list", "plan"]
    for args in cheap:
        done = corewise(args, tmp_path)
        assert done.returncode == 0, done.stderr


def test_the_tutorials_plan_is_what_its_study_means_on_two_cores(tmp_path: Path) -> None:
    tutorial = ROOT / "docs/tutorial.md"
    layout = next(path for path in write_files(tutorial, tmp_path) if path.name == "layout.yaml")
    expansion = expand_study(load_study(layout), MachineView(num_cores=2, num_cpus=2))
    [shown] = [b.text for b in blocks(tutorial, "") if b.text.startswith("layout: ") and "CPUs" in b.text]
    names = ("mode", "threads", "memory_format")
    rows = [tuple(line.split()[:3]) for line in shown.splitlines() if line.startswith(("infer", "train"))]
    assert rows == [tuple(str(point.params[n]) for n in names) for point in expansion.points]
    [reason] = {point.reason for point in expansion.skipped}
    assert f"skipped {len(expansion.skipped)}: {reason}" in shown


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the example of docs/own-workload.md with a small budget and return its folder."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("own")
    [study] = write_files(ROOT / "docs/own-workload.md", folder)
    done = corewise(["run", study.name, *TINY], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def corewise(args: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return python(["-m", "corewise", *args], folder)


def python(args: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run([sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def records(folder: Path) -> tuple[Record, ...]:
    return Store.open(folder / "corewise-store", create=False).read_records().records


def test_the_example_of_an_own_workload_trains_and_infers(own_run: Path) -> None:
    ended = {(record.params["mode"], record.status) for record in records(own_run)}
    assert ended == {("train", "ok"), ("infer", "ok")}


def test_the_store_is_read_without_corewise_as_the_document_says(own_run: Path) -> None:
    [block] = blocks(ROOT / "docs/store-format.md", "python")
    assert "corewise." not in block.text
    done = python(["-c", block.text], own_run)
    rates = {line.split()[-1] for line in done.stdout.splitlines()}
    assert rates == {str(record.metrics["samples_per_s"]) for record in records(own_run)}, done.stderr


def test_the_query_of_the_tutorial_is_answered(own_run: Path) -> None:
    [block] = [b for b in blocks(ROOT / "docs/tutorial.md", "python") if "query(" in b.text]
    done = python(["-c", block.text], own_run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "('memory_format', 'best', 'threads')"


def test_every_key_of_a_record_and_of_its_machine_is_explained(own_run: Path) -> None:
    rows = table("store-format.md", "key")
    keys = {key for row in rows for key in quoted(row[0])}
    assert keys == {"schema", "crc", *(field.name for field in dataclasses.fields(Record))}
    [machine] = [row for row in rows if row[0] == "`machine`"]
    assert quoted(machine[1]) == list(records(own_run)[0].machine)


def test_every_metric_of_a_record_is_explained(own_run: Path) -> None:
    explained = {name for row in table("how-it-measures.md", "metric") for name in quoted(row[0])}
    measured = {name for record in records(own_run) for name in record.metrics}
    assert measured - explained == set()
    assert {"loss", "step_s_low", "window_samples"} <= measured


def test_every_failure_category_is_explained() -> None:
    explained = {name for row in table("how-it-measures.md", "kind") for name in quoted(row[0])}
    sources = tuple(f"measured/worker/{name}.py" for name in ("rank", "zygote", "command_loop", "held_ranks"))
    sources += ("run/warm_parent.py",)
    text = "".join((ROOT / "src/corewise" / source).read_text() for source in sources)
    written = {first or second for first, second in FAILURE.findall(text)}
    assert {*FAILURE_ORDER, *written} == explained


def test_the_table_of_axes_is_that_of_the_code() -> None:
    shown = [(quoted(row[0])[0], row[1], row[2]) for row in table("study-files.md", "axis")]
    assert shown == [(axis.name, _values(axis), _default(axis)) for axis in AXES.values()]


def _values(axis: Axis) -> str:
    if axis.value_type == "choice":
        return ", ".join(map(code, axis.choices))
    if axis.value_type != "count":
        return {"flag": "`true`, `false`", "folder": "`synthetic`, `labelled` or a folder"}[axis.value_type]
    keywords = [*axis.keywords, *(["null"] if axis.takes_null else [])]
    return ", ".join([f"whole number ≥ {axis.minimum}", *map(code, keywords)])


def _default(axis: Axis) -> str:
    if isinstance(axis.default, Expression):
        return code(f"= {axis.default.text}")
    return code(axis.default if isinstance(axis.default, str) else json.dumps(axis.default))


def test_the_table_of_the_protocol_is_that_of_the_code() -> None:
    shown = [row[:4] for row in table("study-files.md", "field")]
    presets = [PRESETS[name] for name in ("normal", "quick", "thorough")]
    assert presets[0] == Protocol()
    assert len(presets) == len(PRESETS)
    names = [field.name for field in dataclasses.fields(Protocol)]
    assert shown == [[code(name), *(code(getattr(p, name)) for p in presets)] for name in names]


def test_the_table_of_keys_is_that_of_the_code() -> None:
    assert [quoted(row[0])[0] for row in table("study-files.md", "key")] == list(StudyFile.model_fields)


def test_the_table_of_keywords_is_that_of_the_code() -> None:
    rows = table("study-files.md", "keyword")
    shown = {quoted(row[0])[0]: tuple(map(int, row[2].split(", "))) for row in rows}
    assert shown == {name: Keyword(name).resolve(12) for name in COUNT_KEYWORDS}


def test_the_tables_of_workload_parameters_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corewise.measured.workloads.kernels.stream.read_last_level_cache_bytes", lambda: None)
    shown: dict[str, dict[str, float]] = {}
    names: list[str] = []
    for workloads, parameter, default in (*table("study-files.md", "workload"), *table("kernels.md", "workload")):
        # The cell may read "the same".
        names = quoted(workloads) or names
        for name in names:
            shown.setdefault(name, {})[quoted(parameter)[0].removeprefix("args.")] = json.loads(default)
    built_in = {info.name: find_workload(info.name) for info in list_workloads()}
    assert shown == {name: dict(workload.parameters) for name, workload in built_in.items()}


def test_every_variable_that_a_trial_controls_is_named() -> None:
    section = (ROOT / "docs/study-files.md").read_text().partition("## Environment")[2].partition("## ")[0]
    named = set(quoted(section))
    assert {*CONTROLLED_PREFIXES, *CONTROLLED_NAMES, *AXES_OF_VARIABLES} <= named


def test_the_thresholds_of_disturbance_are_those_of_the_code() -> None:
    limits = (MAX_OTHER_WALL_FRACTION, MAX_OTHER_CPU_FRACTION, CO_RUNNER_FRACTION, MAX_STEAL_FRACTION)
    text = (ROOT / "docs/how-it-measures.md").read_text()
    section = text.partition("## Disturbed runs")[2].partition("\n## ")[0]
    assert [f"{100 * limit:g} %" for limit in limits] == re.findall(r"[\d.]+ %", section)
    assert f"more than {CANARY_LIMIT:g} times" in section


def test_the_tolerances_of_the_check_are_those_of_the_code() -> None:
    pytest.importorskip("torch")
    from corewise.measured.runtimes.torch.modules.numerical_check import TOLERANCES

    shown = {
        name.lower(): (float(outputs), float(gradients))
        for names, outputs, gradients in table("how-it-measures.md", "precision")
        for name in names.split(", ")
    }
    assert shown == dict(TOLERANCES)
