"""Pinning tried on live processes: each test forks, so that the test process keeps its own mask."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise import process_control
from corewise.measured import pinning
from corewise.measured.pinning import ThreadMask
from corewise.measured.trial import RankPlacement

ALLOWED = sorted(os.sched_getaffinity(0))
LAST = ALLOWED[-1]


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, or the text of its exception as a failure."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = {"value": work()}
        except BaseException as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["value"]


@pytest.fixture
def memory_policies() -> None:
    """Skips where the kernel or a container's filter refuses memory policies altogether."""
    try:
        in_child(lambda: pinning.apply_placement(RankPlacement((LAST,), (0,), "local")))
    except RuntimeError as problem:
        if "NUMA support" in str(problem) or "filter forbids" in str(problem):
            pytest.skip(str(problem))
        raise


def test_apply_confines_threads_that_already_run_and_those_to_come() -> None:
    def work() -> list[list[int]]:
        stop = threading.Event()
        before = threading.Thread(target=stop.wait)
        before.start()
        pinning.apply_placement(RankPlacement((LAST,), (0,)))
        after = threading.Thread(target=stop.wait)
        after.start()
        masks = [list(mask.cpus) for mask in pinning.read_thread_masks().values()]
        stop.set()
        return masks

    assert in_child(work) == [[LAST]] * 3


def test_apply_names_cpus_that_do_not_exist() -> None:
    with pytest.raises(RuntimeError, match=r"OSError: .*cannot run on CPUs 1000-1001"):
        in_child(lambda: pinning.apply_placement(RankPlacement((1000, 1001))))


def test_apply_refuses_a_placement_of_which_the_kernel_drops_a_part() -> None:
    with pytest.raises(RuntimeError, match="CPUs 1000 are not in this process's cpuset"):
        in_child(lambda: pinning.apply_placement(RankPlacement((LAST, 1000))))


@pytest.mark.usefixtures("memory_policies")
def test_local_memory_policy_is_read_back_from_the_kernel() -> None:
    def work() -> Any:
        pinning.apply_placement(RankPlacement((LAST,), (0,), "local"))
        return pinning.read_memory_policy()

    assert in_child(work) == ["local", []]


@pytest.mark.usefixtures("memory_policies")
def test_interleaved_memory_policy_is_read_back_with_its_nodes() -> None:
    def work() -> Any:
        pinning.apply_placement(RankPlacement((LAST,), (0,), "interleave"))
        return pinning.read_memory_policy()

    assert in_child(work) == ["interleave", [0]]


@pytest.mark.usefixtures("memory_policies")
def test_default_memory_policy_keeps_what_was_inherited() -> None:
    def work() -> Any:
        pinning.apply_placement(RankPlacement((LAST,), (0,), "interleave"))
        pinning.apply_placement(RankPlacement((LAST,), (0,), "default"))
        return pinning.read_memory_policy()

    assert in_child(work) == ["interleave", [0]]


@pytest.mark.usefixtures("memory_policies")
def test_interleaving_over_a_node_that_is_not_there_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"OSError: .*cannot set the memory policy: one of the nodes"):
        in_child(lambda: pinning.apply_placement(RankPlacement((LAST,), (900,), "interleave")))


def test_interleaving_over_no_node_is_refused() -> None:
    with pytest.raises(RuntimeError, match="at least one memory node"):
        in_child(lambda: pinning.apply_placement(RankPlacement((LAST,), (), "interleave")))


def test_masks_of_another_process_are_read_by_its_number() -> None:
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.sched_setaffinity(0, {LAST})) as sleeper:
        masks = pinning.read_thread_masks(sleeper.pid)
        sleeper.kill()
    assert {tid: mask.cpus for tid, mask in masks.items()} == {sleeper.pid: (LAST,)}


def test_masks_are_read_under_another_root(tmp_path: Path) -> None:
    task = tmp_path / "77" / "task" / "78"
    task.mkdir(parents=True)
    (task / "status").write_text("Name:\tpool:3\nCpus_allowed_list:\t0-2,8,10-11\n")
    (task / "stat").write_text("78 (a) b) S 1 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 1\n")
    expected = {78: ThreadMask("pool:3", (0, 1, 2, 8, 10, 11), 200 / os.sysconf("SC_CLK_TCK"))}
    assert pinning.read_thread_masks(77, str(tmp_path)) == expected


def test_a_thread_outside_the_ranks_cpus_is_named() -> None:
    masks = {1234: ThreadMask("python", (0, 1)), 1235: ThreadMask("python", (1,))}
    expected = ["thread 1234 (python) may run on 0-1, outside the rank's CPUs 1"]
    assert pinning.find_violations(masks, [1], "rank") == expected
    assert pinning.find_violations(masks, [1], "core") == expected


def test_bind_core_requires_one_cpu_for_every_thread_except_helpers() -> None:
    masks = {
        1: ThreadMask("cw-rank-0", (0,)),
        2: ThreadMask("cw-rank-0", (0, 1)),
        3: ThreadMask("pt_gloo_runloop", (0, 1)),
        4: ThreadMask("tf_Compute", (0, 1)),
    }
    assert pinning.find_violations(masks, [0, 1], "rank") == []
    assert pinning.find_violations(masks, [0, 1], "core") == [
        "thread 2 (cw-rank-0) may run on 0-1, though bind: core asks for exactly one CPU",
        "thread 4 (tf_Compute) may run on 0-1, though bind: core asks for exactly one CPU",
    ]


def test_a_helper_outside_the_ranks_cpus_is_a_violation_too() -> None:
    masks = {3: ThreadMask("gloo_tcp_loop", (0, 1, 2, 3, 8))}
    assert pinning.find_violations(masks, [0], "core") == [
        "thread 3 (gloo_tcp_loop) may run on 0-3,8, outside the rank's CPUs 0"
    ]


def test_bind_none_requires_nothing() -> None:
    assert pinning.find_violations({1: ThreadMask("python", (0, 1))}, [9], "none") == []


def test_bind_threads_gives_every_thread_one_cpu_of_the_rank() -> None:
    def work() -> Any:
        stop = threading.Event()
        threads = [threading.Thread(target=stop.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        pinning.bind_threads(ALLOWED)
        masks = pinning.read_thread_masks()
        stop.set()
        return [len(m.cpus) for m in masks.values()], sorted({m.cpus[0] for m in masks.values()})

    sizes, used = in_child(work)
    assert sizes == [1, 1, 1, 1]
    assert used == ALLOWED[:4]


def test_the_busiest_threads_get_one_cpu_each() -> None:
    if len(ALLOWED) < 2:
        pytest.skip("needs two CPUs")

    def work() -> Any:
        stop, burnt = threading.Event(), threading.Event()

        def burn() -> None:
            while time.thread_time() < 0.03:
                pass
            burnt.set()
            stop.wait()

        idle = threading.Thread(target=stop.wait)
        busy = threading.Thread(target=burn)
        idle.start()
        busy.start()
        burnt.wait()
        pinning.bind_threads(ALLOWED[:2])
        masks = pinning.read_thread_masks()
        stop.set()
        return masks[os.getpid()].cpus, masks[busy.native_id or 0].cpus

    assert in_child(work) == [[ALLOWED[0]], [ALLOWED[1]]]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")

TORCH_UNDER_FORK = """
import json, os, sys
import torch
from corewise import process_control
from corewise.measured import pinning
from corewise.measured.trial import RankPlacement
cpus, bind = json.loads(sys.argv[1]), sys.argv[2]
pid = os.fork()
if pid == 0:
    process_control.set_process_name("cw-rank-0")
    pinning.apply_placement(RankPlacement(tuple(cpus), (0,)))
    torch.set_num_threads(len(cpus))
    layer, x = torch.nn.Conv2d(3, 32, 3), torch.randn(4, 3, 64, 64)
    layer(x).sum().backward()
    if bind == "core":
        pinning.bind_threads(cpus)
    layer(x).sum().backward()
    masks = pinning.read_thread_masks()
    violations = pinning.find_violations(masks, cpus, bind)
    answer = {"violations": violations, "masks": [m.cpus for m in masks.values()]}
    print(json.dumps(answer), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def torch_under_fork(cpus: list[int], bind: str, **env: str) -> Any:
    command = [sys.executable, "-c", TORCH_UNDER_FORK, json.dumps(cpus), bind]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("bind", ["rank", "core"])
def test_a_forked_torch_rank_keeps_its_threads_where_they_belong(bind: str) -> None:
    answer = torch_under_fork(ALLOWED[:2], bind)
    assert answer["violations"] == []
    assert len(answer["masks"]) >= len(ALLOWED[:2])
    if bind == "core":
        assert {tuple(mask) for mask in answer["masks"]} == {(cpu,) for cpu in ALLOWED[:2]}


@pytest.mark.torch
@needs_torch
def test_openmp_binding_read_by_the_warm_parent_is_caught() -> None:
    """libgomp binds a fork's team to the places of its parent: here to a CPU that the rank was not given."""
    if len(ALLOWED) < 2:
        pytest.skip("needs two CPUs")
    program = TORCH_UNDER_FORK.replace("set_num_threads(len(cpus))", "set_num_threads(2)")
    command = [sys.executable, "-c", program, json.dumps([LAST]), "rank"]
    env = {**os.environ, "OMP_PROC_BIND": "close", "OMP_PLACES": f"{{{ALLOWED[0]}}}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    (violation,) = json.loads(done.stdout)["violations"]
    assert f"(cw-rank-0) may run on {ALLOWED[0]}, outside the rank's CPUs {LAST}" in violation


def test_ranks_offer_themselves_first_when_memory_runs_out() -> None:
    def work() -> tuple[bool, str]:
        return process_control.set_oom_first(), Path("/proc/self/oom_score_adj").read_text()

    assert in_child(work) == [True, "1000\n"]


def test_the_process_name_is_cut_to_what_the_kernel_keeps() -> None:
    def work() -> str:
        process_control.set_process_name("cw-rank-0-of-a-long-trial")
        return Path("/proc/self/comm").read_text()

    assert in_child(work) == "cw-rank-0-of-a-\n"


def test_a_child_dies_with_its_parent() -> None:
    """A grandchild waits for ever; when the child that forked it goes, the kernel ends it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        ready_reader, ready_writer = os.pipe()
        if os.fork() == 0:
            process_control.end_with_parent(parent)
            os.write(ready_writer, b"x")
            signal.pause()
        os.read(ready_reader, 1)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as pipe:
        # Reading ends only when the grandchild, which holds the other end, is dead.
        assert pipe.read() == b""


def test_a_child_whose_parent_is_gone_already_dies_immediately() -> None:
    child = os.fork()
    if child == 0:
        process_control.end_with_parent(parent_pid=1 if os.getppid() != 1 else 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_the_parent_death_signal_is_set() -> None:
    def work() -> int:
        process_control.end_with_parent()
        number = ctypes.c_int(0)
        # The option 2 is PR_GET_PDEATHSIG.
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))
        return number.value

    assert in_child(work) == signal.SIGKILL
