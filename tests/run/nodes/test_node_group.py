"""Real agents on this machine run real trials; they are killed, paused and interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.measured.trial import NOT_NOW, Trial
from corewise.run.nodes import node_group
from corewise.run.nodes.node_group import NodeGroup, open_group
from corewise.run.plan import Plan, plan_study
from corewise.run.warm_parent import ParentFailure
from corewise.study.study import load_study

STUDY = """
workload: stream
runtime: numpy
axes: {nodes: [1, 2]}
fixed: {threads: 1, args.operation: triad, args.size_bytes: 65536}
protocol: {min_runs: 1, max_runs: 1, min_samples: 3, min_sample_s: %s, max_warmup_s: 0.05, timeout_s: 20}
"""

Agents = list["subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def _two_cores(need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs, one for each node")


@contextmanager
def run_agents(folder: Path, env: Mapping[int, Mapping[str, str]] | None = None) -> Iterator[tuple[NodeGroup, Agents]]:
    """Start two agents as torchrun would, without it."""
    agents: Agents = []

    def start(port: int, secret: Path, log: Path) -> Agents:
        for rank in range(2):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            own = {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **(env or {}).get(rank, {})}
            command = [sys.executable, "-P", "-m", "corewise.run.nodes", f"127.0.0.1:{port}", str(secret)]
            with open(log, "ab") as out:
                agents.append(subprocess.Popen(command, env=own, stdout=out, stderr=out, start_new_session=True))
        return agents

    group = open_group(2, folder / "nodes", start)
    try:
        yield group, agents
    finally:
        group.close()


def plan_on(group: NodeGroup, folder: Path, sample_s: float = 0.02) -> Plan:
    path = folder / "study.yaml"
    path.write_text(STUDY % sample_s)
    return plan_study(load_study(str(path)), group.host, num_nodes=group.num_nodes)


def run_trial(group: NodeGroup, trial: Trial, folder: Path, name: str) -> list[tuple[str, str, str]]:
    out = folder / name
    out.mkdir()
    results = group.get(trial).run(trial, out, lambda _phase: None)
    return [(result.status, result.kind, result.reason) for result in results]


def test_a_trial_runs_on_both_nodes_with_disjoint_cpus(tmp_path: Path) -> None:
    with run_agents(tmp_path) as (group, agents):
        assert "2 nodes run on 1 machine" in group.notes[0]
        one, two = plan_on(group, tmp_path).trials
        assert run_trial(group, one, tmp_path, "one") == [("ok", "", "")]
        out = tmp_path / "two"
        out.mkdir()
        results = group.get(two).run(two, out, lambda _phase: None)
        assert [result.status for result in results] == ["ok", "ok"]
        assert [result.rank for result in results] == [0, 1]
        assert [result.facts["node"] for result in results] == [0, 1]
        first, second = (set(result.facts["cpus"]) for result in results)
        assert not first & second
        threads = [{cpu for cpus in result.facts["thread_cpus"].values() for cpu in cpus} for result in results]
        assert threads == [first, second]
    assert [agent.wait(20) for agent in agents] == [0, 0]
    assert not list((tmp_path / "nodes").glob("secret-*"))


def test_a_killed_agent_is_a_lost_node_and_the_others_end(tmp_path: Path) -> None:
    with run_agents(tmp_path) as (group, agents):
        two = plan_on(group, tmp_path, sample_s=5).trials[1]
        group.warm([two])
        os.killpg(agents[1].pid, signal.SIGKILL)
        outcomes = run_trial(group, two, tmp_path, "two")
        assert outcomes[1][:2] == ("failed", NOT_NOW)
        assert "node 1" in outcomes[1][2]
        assert "was lost" in outcomes[1][2]
        assert outcomes[0][0] == "failed"
        with pytest.raises(ParentFailure, match="node 1") as refusal:
            group.get(two)
        assert refusal.value.category == NOT_NOW
        one = plan_on(group, tmp_path).trials[0]
        assert run_trial(group, one, tmp_path, "one") == [("ok", "", "")]


def test_a_rank_that_fails_on_one_node_ends_the_trial_on_both(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def make(batch, mode):\n"
        "    if os.environ['WHICH'] == '1':\n"
        "        raise ValueError('no such file here')\n"
        "    return {'step': lambda: time.sleep(0.01)}\n"
    )
    with run_agents(tmp_path, {0: {"WHICH": "0"}, 1: {"WHICH": "1"}}) as (group, _):
        path = tmp_path / "own.yaml"
        path.write_text(
            "workload: mine.py:make\nruntime: numpy\nmode: infer\nfixed: {nodes: 2, threads: 1, batch: 1}\n"
            "protocol: {min_runs: 1, max_runs: 1, min_sample_s: 5, timeout_s: 60}\n"
        )
        (trial,) = plan_study(load_study(str(path)), group.host, num_nodes=2).trials
        outcomes = run_trial(group, trial, tmp_path, "own")
    assert outcomes[1][:2] == ("failed", "factory")
    assert "no such file here" in outcomes[1][2]
    assert outcomes[0] == ("failed", "peer", "another rank of this run failed")


def test_a_node_with_other_versions_is_refused_and_named(tmp_path: Path) -> None:
    newer = tmp_path / "newer" / "sitecustomize.py"
    newer.parent.mkdir()
    newer.write_text("import corewise\ncorewise.__version__ = '9.9'\n")
    inherited = os.environ.get("PYTHONPATH", "")
    other = {1: {"PYTHONPATH": f"{newer.parent}{os.pathsep}{inherited}"}}
    with pytest.raises(UserError, match=r"node 1 .* has Corewise 9\.9 instead of"), run_agents(tmp_path, other):
        pass


def test_a_launcher_that_ends_early_shows_its_output(tmp_path: Path) -> None:
    def start(port: int, secret: Path, log: Path) -> Agents:
        with open(log, "ab") as out:
            return [subprocess.Popen(["sh", "-c", "echo no such partition >&2; exit 3"], stderr=out)]

    with pytest.raises(UserError, match=r"exit code 3[\s\S]*no such partition"):
        open_group(2, tmp_path / "nodes", start)


def test_a_node_that_never_starts_is_reported_after_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_group, "JOIN_LIMIT_S", 0.5)
    monkeypatch.setattr(node_group, "CLOSE_LIMIT_S", 0.2)

    def start(port: int, secret: Path, log: Path) -> Agents:
        return [subprocess.Popen(["sleep", "60"], start_new_session=True)]

    with pytest.raises(UserError, match="0 of 2 nodes answered"):
        open_group(2, tmp_path / "nodes", start)
    assert not list((tmp_path / "nodes").glob("secret-*"))
