"""What the built-in studies mean on made-up machines, held by golden files.

After a wanted change run this file with UPDATE_GOLDEN=1 in the environment, then read the difference.
"""

import os
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.study.axes import AXES
from corewise.study.planning.expansion import Expansion, MachineView, expand_study
from corewise.study.study import list_studies, load_study
from corewise.study.syntax.expressions import Expression

GOLDEN = Path(__file__).parent / "golden"
# As many as the study of a paper needs.
MANY_NODES = 128
NAMES = tuple(study.name for study in list_studies())


@pytest.fixture(autouse=True)
def set_cache_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """STREAM's arrays follow the caches of the machine that plans."""
    monkeypatch.setattr("corewise.measured.workloads.kernels.stream.read_last_level_cache_bytes", lambda: 2**27)


def as_lines(expansion: Expansion) -> list[str]:
    """One line for each point: its workload, mode and what is not default."""
    lines = [f"{len(expansion.points)} points, {len(expansion.skipped)} skipped, {expansion.num_excluded} excluded"]
    for point in expansion.points:
        shown = [f"{point.params['workload']} {point.params['mode']}"]
        for name, value in point.params.items():
            default = AXES[name].default if name in AXES else None
            if name.startswith("args.") or (name in AXES and (value != default or isinstance(default, Expression))):
                shown.append(f"{name}={value}")
        lines.append(" ".join(shown))
    return lines + [f"skipped: {point.reason}" for point in expansion.skipped]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_cores", [1, 2, 12])
def test_a_ready_made_study_means_the_same_points_as_before(name: str, num_cores: int) -> None:
    machine = MachineView(num_cores=num_cores, num_cpus=2 * num_cores, num_nodes=MANY_NODES)
    text = "\n".join(as_lines(expand_study(load_study(name), machine))) + "\n"
    golden = GOLDEN / f"{name.replace('/', '-')}-{num_cores}-cores.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(text)
    assert text == golden.read_text()


def test_ready_made_studies_are_listed_with_their_questions() -> None:
    listed = list_studies()
    assert {"quick", "hybrid", "thread-scaling", "stream", "gemm", "papers/dynamic-threads"} <= set(NAMES)
    with_golden = {path.name.removesuffix("-2-cores.txt") for path in GOLDEN.glob("*-2-cores.txt")}
    assert {name.replace("/", "-") for name in NAMES} == with_golden
    assert all(study.question.endswith("?") and "\n" not in study.question for study in listed)
    assert all(study.path.is_file() for study in listed)


# Messages need two processes, and a transform of 2^22 values is only shared by a power of two of them. Which backends
# exist differs between machines.
UNAVOIDABLE = ("need 2 cores", "cannot share a signal", "nccl", "need a GPU")


def test_only_what_cannot_run_is_skipped_whatever_the_number_of_cores() -> None:
    for name in NAMES:
        study = load_study(name)
        for num_cores in (1, 2, 3, 7, 16, 48):
            expansion = expand_study(study, MachineView(num_cores=num_cores, num_cpus=num_cores, num_nodes=MANY_NODES))
            assert expansion.points or (name == "communication" and num_cores == 1)
            reasons = {skipped.reason for skipped in expansion.skipped}
            assert all(any(part in reason for part in UNAVOIDABLE) for reason in reasons), (name, num_cores, reasons)


def test_the_hybrid_study_uses_every_core_at_one_global_batch() -> None:
    points = expand_study(load_study("hybrid"), MachineView(num_cores=48, num_cpus=96)).points
    assert {point.params["processes"] * point.params["threads"] for point in points} == {48}
    assert {(point.params["batch"], point.params["batch_scope"]) for point in points} == {(192, "global")}


def test_a_name_that_is_not_ready_made_gives_the_nearest_and_all() -> None:
    with pytest.raises(UserError, match=r"'thread-scalin'; did you mean 'thread-scaling'\? known: .*hybrid, papers/"):
        load_study("thread-scalin")
    with pytest.raises(UserError, match=f"'zzz'; known: {', '.join(sorted(NAMES))}"):
        load_study("zzz")


def test_a_file_in_place_of_a_name_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("workload: alexnet\n")
    with pytest.raises(UserError, match=r"for the file mine, write \./mine"):
        load_study("mine")
    assert load_study("./mine").workloads == ("alexnet",)


def test_a_path_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: no such file; check the path"):
        load_study(tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"no such file; .*the built-in study is called quick"):
        load_study(tmp_path / "quick.yaml")
    with pytest.raises(UserError, match="not a file"):
        load_study(str(tmp_path) + "/")
