"""The planned ranks of a launch: what each one gets, and the shell line that starts it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from corewise.launch.ranks import (
    OUTSIDE_DEFAULTS,
    LaunchContext,
    RankStart,
    fill_params,
    find_changed_variables,
    format_start_line,
    plan_ranks,
)
from corewise.launch.worker_commands import build_launch_command
from corewise.machine.machine_model import Cpu, Topology
from corewise.machine.placement import PlacementError
from corewise.measured.parameters import TrialParameters
from corewise.study.axes import AXES

GOLDEN = Path(__file__).resolve().parent / "golden"
COMMAND = ("python", "train.py", "--name", "two words")
TWO_SOCKETS = Topology(tuple(Cpu(n, n, n // 4, n // 4) for n in range(8)))
WITH_SIBLINGS = Topology(tuple(Cpu(n, n % 4, 0, 0) for n in range(8)))
LIBRARIES = {"tcmalloc": Path("/usr/lib/libtcmalloc.so"), "libiomp5": Path("/opt/libiomp5.so")}


def make_context(**env: str) -> LaunchContext:
    cpus = tuple(cpu.number for cpu in TWO_SOCKETS.cpus)
    return LaunchContext(topology=TWO_SOCKETS, cpus=cpus, libraries=LIBRARIES, env={"PATH": "/bin", **env})


def plan(context: LaunchContext | None = None, **given: Any) -> tuple[RankStart, ...]:
    context = context or make_context()
    options = {name: given.pop(name) for name in ("port", "keep_env", "extra", "unbuffered") if name in given}
    params = fill_params(given, context.topology, context.cpus)
    return plan_ranks(TrialParameters.from_mapping(params), COMMAND, context, **options)


@pytest.mark.parametrize(
    ("name", "given", "outer"),
    [
        ("one-process", {}, {}),
        ("two-data-parallel", {"processes": 2, "placement": "numa", "memory_policy": "local", "port": 29500}, {}),
        ("two-replicas", {"processes": 2, "threads": 3, "placement": "spread", "memory_policy": "interleave"}, {}),
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
    starts = plan(make_context(**outer), **given)
    lines = "".join(format_start_line(start, {"PATH": "/bin", **outer}) + "\n" for start in starts)
    assert lines == (GOLDEN / f"{name}.txt").read_text()
    assert all(tuple(shlex.split(line)[-4:]) == COMMAND for line in lines.splitlines())


def test_threads_fill_the_allocation_divided_among_processes() -> None:
    def count_threads(topology: Topology, **given: Any) -> Any:
        return fill_params(given, topology, [cpu.number for cpu in topology.cpus])["threads"]

    assert count_threads(TWO_SOCKETS) == 8
    assert count_threads(TWO_SOCKETS, processes=3) == 2
    assert count_threads(TWO_SOCKETS, processes=20) == 1
    assert count_threads(TWO_SOCKETS, reserved_cores=2, processes=2) == 3
    assert count_threads(WITH_SIBLINGS) == 4
    assert count_threads(WITH_SIBLINGS, smt=True, reserved_cores=1) == 6


def test_ranks_share_no_cpu_and_stay_within_the_allocation() -> None:
    context = LaunchContext(topology=TWO_SOCKETS, cpus=(1, 2, 5, 6), env={})
    starts = plan(context, processes=2)
    assert [start.placement.cpus for start in starts] == [(1, 2), (5, 6)]


def test_ranks_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlacementError, match="3 processes × 3 threads need 9 cores; the allocation has 8"):
        plan(processes=3, threads=3)
    with pytest.raises(PlacementError, match="0 processes: at least 1 needed"):
        plan(processes=0)
    assert len(plan(processes=3, threads=3, oversubscribe=True)) == 3


def test_overridden_variables_of_the_user_are_listed() -> None:
    outer = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact", "RANK": "7"}
    [start] = plan(make_context(**outer), threads=2, port=1)
    assert start.env["OMP_NUM_THREADS"] == "2"
    assert "KMP_AFFINITY" not in start.env
    changes = [(each.name, each.value, each.becomes) for each in find_changed_variables(start, outer)]
    assert changes == [("KMP_AFFINITY", "compact", None), ("OMP_NUM_THREADS", "64", "2"), ("RANK", "7", "0")]


def test_keep_env_keeps_variables_and_combines_preloaded_libraries() -> None:
    outer = {"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact", "LD_PRELOAD": "/tool.so"}
    context = make_context(**outer)
    [start] = plan(context, threads=2, allocator="tcmalloc", keep_env=True, extra={"OMP_DYNAMIC": "false"})
    assert start.env["OMP_NUM_THREADS"] == "64"
    assert start.env["MKL_NUM_THREADS"] == "2"
    assert start.env["KMP_AFFINITY"] == "compact"
    assert start.env["LD_PRELOAD"] == "/usr/lib/libtcmalloc.so:/tool.so"
    assert start.env["OMP_DYNAMIC"] == "false"
    assert [each.name for each in find_changed_variables(start, dict(context.env))] == ["LD_PRELOAD"]


def test_python_is_unbuffered_unless_the_user_has_set_it() -> None:
    assert plan(unbuffered=True)[0].env["PYTHONUNBUFFERED"] == "1"
    assert plan(make_context(PYTHONUNBUFFERED=""), unbuffered=True)[0].env["PYTHONUNBUFFERED"] == ""


def test_the_defaults_are_those_of_the_axes() -> None:
    for name, default in OUTSIDE_DEFAULTS.items():
        if name != "threads":
            assert AXES[name].default == default


def test_the_launch_command_names_every_setting_by_its_option() -> None:
    params = {"processes": 2, "threads": 4, "placement": "numa", "smt": True, "oversubscribe": False}
    command = build_launch_command(params, ["python", "t.py"], {"A": "b c"})
    assert command == (
        *("corewise", "launch", "--processes", "2", "--threads", "4", "--policy", "numa", "--smt"),
        *("--env", "A=b c", "--", "python", "t.py"),
    )
