from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.study.axes import Keyword
from corewise.study.study import PRESETS, Study, load_study
from corewise.study.syntax.expressions import Expression

TEXT = """\
workload: resnet50
mode: train
axes:
  threads: [1, 2]
  batch: 16
fixed:
  memory_format: channels_last
protocol: quick
"""


def load(folder: Path, *overrides: str, text: str = TEXT) -> Study:
    path = folder / "study.yaml"
    path.write_text(text)
    return load_study(path, list(overrides))


def test_an_axis_takes_the_values_given(tmp_path: Path) -> None:
    study = load(tmp_path, "threads=4,allocation")
    assert study.axes == {"threads": (4, Keyword("allocation")), "batch": (16,)}
    assert study.find_origin("threads") == "--set threads=4,allocation"


def test_a_fixed_value_becomes_an_axis_when_several_are_given(tmp_path: Path) -> None:
    study = load(tmp_path, "memory_format=contiguous,channels_last")
    assert study.axes["memory_format"] == ("contiguous", "channels_last")
    assert study.fixed == {}


def test_one_value_of_what_the_file_does_not_vary_is_fixed(tmp_path: Path) -> None:
    study = load(tmp_path, "memory_format=blocked", "smt=true", "args.image_size=64", "interop_threads=null")
    assert study.fixed == {"memory_format": "blocked", "smt": True, "args.image_size": 64, "interop_threads": None}


def test_the_last_override_of_a_name_counts(tmp_path: Path) -> None:
    assert load(tmp_path, "threads=4", "threads=8").axes["threads"] == (8,)


def test_a_file_without_axes_can_be_given_some(tmp_path: Path) -> None:
    assert load(tmp_path, "batch=1,2", text="workload: a\naxes:\n").axes == {"batch": (1, 2)}


def test_an_expression_keeps_its_commas(tmp_path: Path) -> None:
    (value,) = load(tmp_path, "threads==min(4, allocation)").axes["threads"]
    assert isinstance(value, Expression)
    assert value.text == "min(4, allocation)"


def test_workload_mode_runtime_and_interpreter_can_be_set(tmp_path: Path) -> None:
    study = load(
        tmp_path, "workload=alexnet,resnet18", "mode=infer", "runtime=numpy,torch", "python=python3", "prefix=env -i"
    )
    assert study.workloads == ("alexnet", "resnet18")
    assert study.find_origin("resnet18") == "--set workload=alexnet,resnet18"
    assert (study.modes, study.runtimes) == (("infer",), ("numpy", "torch"))
    assert (study.python, study.prefix) == ("python3", ("env", "-i"))


def test_fields_of_the_protocol_can_be_set_over_a_preset(tmp_path: Path) -> None:
    study = load(tmp_path, "protocol.min_samples=7", "protocol.target_interval=1e-3")
    assert study.protocol.min_samples == 7
    assert study.protocol.target_interval == 0.001
    assert study.protocol.min_sample_s == PRESETS["quick"].min_sample_s
    assert load(tmp_path, "protocol.preset=thorough").protocol == PRESETS["thorough"]
    assert load(tmp_path, "protocol=normal").protocol == PRESETS["normal"]


def test_paths_on_the_command_line_start_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.py").touch()
    monkeypatch.chdir(here)
    study = load(tmp_path, "data=images", "workload=mine.py:make")
    assert study.fixed["data"] == str(here / "images")
    assert study.workloads == (f"{here}/mine.py:make",)


def test_an_override_fixes_a_mistake_of_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "threads=2", text="workload: a\naxes: {threads: 0}\n").axes == {"threads": (2,)}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("thread=1", "no such axis; did you mean 'threads'?"),
        ("workloads=a", "did you mean 'workload'?"),
        ("protocol.min_run=1", "unknown protocol field 'min_run'; did you mean 'min_runs'?"),
        ("protocol.min_runs=1,2", "protocol.min_runs takes one value, not 2"),
        ("protocol.min_runs=few", "protocol.min_runs: needs a whole number"),
        ("args.=1", "for example args.image_size"),
        ("threads", "write NAME=VALUE"),
        ("threads=", "the axis threads is empty"),
        ("threads=0", "threads must be at least 1, not 0"),
        ("threads=[1", "cannot read '[1' as values"),
        ("threads=1], [2", "cannot read '1], [2' as values"),
        ("threads={a: 1}", "threads takes single values"),
        ("threads=!!python/name:os.system x", "the tag !!python/name:os.system is not allowed"),
        ("dtype=flaot32", "did you mean 'float32'?"),
        ("memory_format=", "memory_format is empty"),
        ("mode=trian", "unknown mode 'trian'; did you mean 'train'?"),
        ("mode=", "mode is empty"),
        ("runtime=torch,nunpy", "unknown runtime 'nunpy'; did you mean 'numpy'?"),
        ("runtime=", "runtime is empty"),
        ("workload=no.py:make", "no such file: "),
    ],
)
def test_a_mistake_names_the_override_and_the_remedy(tmp_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, override)
    assert str(caught.value).startswith(f"--set {override}: ")
    assert expected in str(caught.value)
