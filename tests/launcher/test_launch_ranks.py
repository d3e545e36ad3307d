"""The ranks of a launch are values: what each one gets, and the very line that would start it by hand."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from corewise.launcher.local import launch_command
from corewise.launcher.ranks import (
    OUTSIDE_DEFAULTS,
    RankStart,
    Surroundings,
    changed_variables,
    complete_params,
    plan_ranks,
    start_line,
)
from corewise.machine.model import Cpu, Topology
from corewise.machine.placement import PlacementError
from corewise.spec.axes import AXES

GOLDEN = Path(__file__).resolve().parent / "golden"
COMMAND = ("python", "train.py", "--name", "two words")
TWO_SOCKETS = Topology(tuple(Cpu(n, n, n // 4, n // 4) for n in range(8)))
WITH_SIBLINGS = Topology(tuple(Cpu(n, n % 4, 0, 0) for n in range(8)))
LIBRARIES = {"tcmalloc": Path("/usr/lib/libtcmalloc.so"), "libiomp5": Path("/opt/libiomp5.so")}


def surroundings(**env: str) -> Surroundings:
    cpus = tuple(cpu.number for cpu in TWO_SOCKETS.cpus)
    return Surroundings(topology=TWO_SOCKETS, cpus=cpus, libraries=LIBRARIES, env={"PATH": "/bin", **env})


def planned(around: Surroundings | None = None, **given: Any) -> tuple[RankStart, ...]:
    around = around or surroundings()
    options = {name: given.pop(name) for name in ("port", "keep_env", "extra", "unbuffered") if name in given}
    params = complete_params(given, around.topology, around.cpus)
    return plan_ranks(params, COMMAND, around, **options)


@pytest.mark.parametrize(
    ("name", "given", "outer"),
    [
        ("one-process", {}, {}),
        (
            "two-data-parallel",
            {"processes": 2, "placement": "numa", "memory_policy": "local", "port": 29500},
            {},
        ),
        (
            "two-replicas",
            {"processes": 2, "threads": 3, "placement": "spread", "memory_policy": "interleave"},
            {},
        ),
        (
            "every-setting",
            {
                "threads": 2,
                "allocator": "tcmalloc",
                "openmp": "libiomp5",
                "wait_policy": "active",
                "huge_pages": "transparent",
                "bind": "core",
                "reserved_cores": 1,
                "extra": {"DATA": "/scratch/it's here"},
                "unbuffered": True,
            },
            {"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact", "LD_PRELOAD": "/tool.so"},
        ),
        ("unbound", {"bind": "none", "allocator": "retain"}, {}),
    ],
)
def test_the_lines_of_a_dry_run(name: str, given: dict[str, Any], outer: dict[str, str]) -> None:
    starts = planned(surroundings(**outer), **given)
    lines = "".join(start_line(start, {"PATH": "/bin", **outer}) + "\n" for start in starts)
    assert lines == (GOLDEN / f"{name}.txt").read_text()
    assert all(tuple(shlex.split(line)[-4:]) == COMMAND for line in lines.splitlines())


def test_threads_fill_the_allocation_shared_out_among_processes() -> None:
    def threads(topology: Topology, **given: Any) -> Any:
        return complete_params(given, topology, [cpu.number for cpu in topology.cpus])["threads"]

    assert threads(TWO_SOCKETS) == 8
    assert threads(TWO_SOCKETS, processes=3) == 2
    assert threads(TWO_SOCKETS, processes=20) == 1
    assert threads(TWO_SOCKETS, reserved_cores=2, processes=2) == 3
    assert threads(WITH_SIBLINGS) == 4
    assert threads(WITH_SIBLINGS, smt=True, reserved_cores=1) == 6


def test_ranks_share_no_cpu_and_stay_within_the_allocation() -> None:
    around = Surroundings(topology=TWO_SOCKETS, cpus=(1, 2, 5, 6), env={})
    starts = planned(around, processes=2)
    assert [start.placement.cpus for start in starts] == [(1, 2), (5, 6)]


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(PlacementError, match="3 processes × 3 threads need 9 cores; the allocation has 8"):
        planned(processes=3, threads=3)
    with pytest.raises(PlacementError, match="0 processes: at least 1 needed"):
        planned(processes=0)
    assert len(planned(processes=3, threads=3, oversubscribe=True)) == 3


def test_the_users_variables_of_the_same_name_are_overridden_and_named() -> None:
    outer = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact", "RANK": "7"}
    [start] = planned(surroundings(**outer), threads=2, port=1)
    assert start.env["OMP_NUM_THREADS"] == "2"
    assert "KMP_AFFINITY" not in start.env
    told = [(each.name, each.value, each.becomes) for each in changed_variables(start, outer)]
    assert told == [
        ("KMP_AFFINITY", "compact", None),
        ("OMP_NUM_THREADS", "64", "2"),
        ("RANK", "7", "0"),
    ]


def test_kept_variables_win_and_what_both_preload_is_loaded() -> None:
    outer = {"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact", "LD_PRELOAD": "/tool.so"}
    around = surroundings(**outer)
    [start] = planned(around, threads=2, allocator="tcmalloc", keep_env=True, extra={"OMP_DYNAMIC": "false"})
    assert start.env["OMP_NUM_THREADS"] == "64"
    assert start.env["MKL_NUM_THREADS"] == "2"
    assert start.env["KMP_AFFINITY"] == "compact"
    assert start.env["LD_PRELOAD"] == "/usr/lib/libtcmalloc.so:/tool.so"
    assert start.env["OMP_DYNAMIC"] == "false"
    assert [each.name for each in changed_variables(start, dict(around.env))] == ["LD_PRELOAD"]


def test_python_prints_line_by_line_into_a_pipe_unless_the_user_has_a_say() -> None:
    assert planned(unbuffered=True)[0].env["PYTHONUNBUFFERED"] == "1"
    assert planned(surroundings(PYTHONUNBUFFERED=""), unbuffered=True)[0].env["PYTHONUNBUFFERED"] == ""


def test_the_defaults_are_those_of_the_axes() -> None:
    for name, default in OUTSIDE_DEFAULTS.items():
        if name != "threads":
            assert AXES[name].default == default


def test_the_command_to_type_names_every_setting_by_its_option() -> None:
    params = {"processes": 2, "threads": 4, "placement": "numa", "smt": True, "oversubscribe": False}
    words = launch_command(params, ["python", "t.py"], {"A": "b c"})
    assert words == (
        *("corewise", "launch", "--processes", "2", "--threads", "4", "--policy", "numa", "--smt"),
        *("--env", "A=b c", "--", "python", "t.py"),
    )
