"""Ceilings measured by warm parents: where, how large, and what becomes of trouble."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise.engine import ceilings as measuring
from corewise.engine.ceilings import array_bytes, measure_ceilings, places_of, widths
from corewise.engine.machine_view import Host, Interpreter, read_host
from corewise.engine.plan import make_plan
from corewise.machine.ceilings import BUSY, Ceiling
from corewise.machine.gpus import Gpu
from corewise.machine.kept_ceilings import keep
from corewise.machine.model import Allocation, Cpu, Topology
from corewise.machine.topology import Cache
from corewise.spec.errors import UserError
from corewise.spec.study import load_study
from corewise.spec.trial import RankResult, Trial


@pytest.fixture(scope="module")
def here() -> Host:
    return read_host()


@pytest.fixture(autouse=True)
def all_gpus_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def host_of(here: Host, num_nodes: int, cores_each: int, cpus: tuple[int, ...] | None = None) -> Host:
    """A made-up machine with one thread a core."""
    total = num_nodes * cores_each
    topology = Topology(tuple(Cpu(n, n, n // cores_each, n // cores_each) for n in range(total)))
    own = cpus if cpus is not None else tuple(range(total))
    return replace(here, topology=topology, allocation=Allocation(own, len(own), 2**36))


def words(host: Host, with_gpus: bool = False) -> list[str]:
    return [place.words for place in places_of(host, with_gpus)]


def test_widths_are_powers_of_two_and_the_whole_allocation() -> None:
    assert widths(1) == (1,)
    assert widths(2) == (1, 2)
    assert widths(12) == (1, 2, 4, 8, 12)


def test_one_node_is_measured_at_every_width(here: Host) -> None:
    assert words(host_of(here, 1, 1)) == ["1 thread"]
    found = places_of(host_of(here, 1, 4), with_gpus=False)
    compact = [place for place in found if place.placement == "compact"]
    assert [place.threads for place in compact] == [1, 2, 4]
    assert all(place.has_products for place in compact)


def test_each_of_several_nodes_is_measured_with_its_own_cpus(here: Host) -> None:
    found = [place for place in places_of(host_of(here, 2, 4), False) if place.placement == "node"]
    assert [place.words for place in found] == ["4 threads on node 0", "4 threads on node 1"]
    assert [place.ranks[0].cpus for place in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_threads_over_several_nodes_are_measured_spread_too_for_their_bandwidth(here: Host) -> None:
    spread = {
        place.threads: place for place in places_of(host_of(here, 2, 4), False) if place.placement == "spread"
    }
    assert spread[2].ranks[0].cpus == (0, 4)
    assert 8 not in spread  # the same CPUs as compact
    assert not any(place.has_products for place in spread.values())


def test_what_is_wanted_most_is_measured_first(here: Host) -> None:
    host = host_of(here, 2, 4)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"),)))
    found = [place.words for place in measuring._most_wanted_first(places_of(host, with_gpus=True))]
    assert found[:5] == ["8 threads", "the GPU", "1 thread", "4 threads on node 0", "4 threads on node 1"]
    assert set(found[5:]) == {"2 threads", "4 threads", "2 threads, spread", "4 threads, spread"}


def test_a_quota_of_one_cpu_leaves_one_place(here: Host) -> None:
    assert words(host_of(here, 2, 4, cpus=(5,))) == ["1 thread"]


def test_all_gpus_are_measured_at_a_time_each_by_its_rank(here: Host) -> None:
    host = host_of(here, 2, 8)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"), Gpu("H200", "b"))))
    place = places_of(host, with_gpus=True)[-1]
    assert (place.device, place.words, len(place.ranks)) == ("cuda", "2 GPUs", 2)
    assert not set(place.ranks[0].cpus) & set(place.ranks[1].cpus)
    assert words(host, with_gpus=False)[-1] != "2 GPUs"


def test_a_gpu_that_is_hidden_gets_no_rank_that_would_share_another(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    host = host_of(here, 2, 8)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"), Gpu("H200", "b"))))
    assert words(host, with_gpus=True)[-1] == "the GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "GPU" not in " ".join(words(host, with_gpus=True))


def test_arrays_are_four_times_the_last_level_caches_of_their_cpus() -> None:
    caches = [Cache(2, "Unified", 2**20, (n,)) for n in range(8)]
    caches += [Cache(3, "Unified", 2**25, tuple(range(4))), Cache(3, "Unified", 2**25, tuple(range(4, 8)))]
    assert array_bytes(caches, (0, 1)) == 4 * 2**25
    assert array_bytes(caches, (0, 4)) == 8 * 2**25
    assert array_bytes([], (0,)) == 4 * measuring.UNKNOWN_CACHE_BYTES


def test_without_a_framework_it_says_what_to_install(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Interpreter((sys.executable,), "3.11", sys.prefix, {})
    monkeypatch.setattr(measuring, "probe_interpreter", lambda *_: bare)
    with pytest.raises(UserError, match="pip install"):
        measure_ceilings(here)


def test_numpy_measures_every_width_of_this_machine(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one_cpu = replace(here, allocation=Allocation(here.allocation.cpus[:1], 1, here.allocation.memory_bytes))
    monkeypatch.setattr(measuring, "RUNTIMES", ("numpy",))
    monkeypatch.setattr(measuring, "SAMPLING_S", 0.2)
    monkeypatch.setattr(measuring, "PROBE_S", 0.005)
    told: list[str] = []
    found = measure_ceilings(one_cpu, lambda done, total, words: told.append(words))
    assert found.runtime == "numpy"
    assert told == ["importing numpy", "1 thread"]
    by_kind = {(each.kind, each.dtype): each for each in found.figures}
    assert {kind for kind, _ in by_kind} == {"triad", "copy", "read", "product"}
    assert {dtype for kind, dtype in by_kind if kind == "product"} == {"float32", "float64"}
    for each in found.figures:
        assert (each.threads, each.device, each.placement) == (1, "cpu", "compact")
        assert each.num_samples >= measuring.MIN_SAMPLES
        assert 0 < each.median <= each.best
    assert found.roof("float32", "cpu", threads=1).gbyte_per_s is not None


class NoParents:
    """Stands where warm parents would be: what they answer is scripted in the test."""

    def __init__(self, worker: Path, folder: Path) -> None: ...

    def warm(self, trials: Sequence[Trial]) -> None: ...

    def close(self) -> None: ...


def scripted(
    monkeypatch: pytest.MonkeyPatch, triads: Mapping[int, Sequence[tuple[float, bool]]]
) -> list[int]:
    """Threads of all runs to come; triads at each width, run after run, and whether others disturbed."""
    ran: list[int] = []

    def run(session: Any, trial: Trial) -> list[RankResult]:
        threads = int(trial.params["threads"])
        best, is_busy = triads[threads][min(ran.count(threads), len(triads[threads]) - 1)]
        ran.append(threads)
        figure = {"kind": "triad", "dtype": "float64", "size": 2**28, "num_samples": 9}
        facts = {"ceiling_notes": [], "figures": [{**figure, "best": best, "median": best}]}
        told = ("another process ran",) if is_busy else ()
        return [RankResult(status="ok", rank=0, facts=facts, disturbances=told)]

    monkeypatch.setattr(measuring, "RUNTIMES", ("numpy",))
    monkeypatch.setattr(measuring, "ParentPool", NoParents)
    monkeypatch.setattr(measuring._Session, "_run", run)
    return ran


def by_width(host: Host) -> dict[int, Ceiling]:
    return {each.threads: each for each in measure_ceilings(host).figures if each.placement == "compact"}


def test_a_place_slower_than_a_narrower_one_is_measured_again(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = scripted(monkeypatch, {1: [(18.1, False)], 2: [(9.7, True), (25.0, False)]})
    found = by_width(host_of(here, 1, 2))
    assert sorted(ran) == [1, 2, 2]
    assert found[2].best == 25.0
    assert not found[2].is_busy  # the second time it was quiet


def test_measuring_again_ends_and_keeps_the_best_with_its_mark(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = scripted(monkeypatch, {1: [(18.1, False)], 2: [(9.7, True), (9.0, True)]})
    found = measure_ceilings(host_of(here, 1, 2))
    assert ran.count(2) == 1 + measuring.MAX_AGAIN
    [wide] = [each for each in found.figures if each.threads == 2]
    assert (wide.best, wide.is_busy) == (9.7, True)
    assert found.notes[0] == BUSY
    assert wide.measured_at == found.measured_at


def test_what_grows_with_threads_is_measured_once_and_so_is_all_when_time_is_short(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = scripted(monkeypatch, {1: [(10.0, False)], 2: [(18.0, False)]})
    assert not measure_ceilings(host_of(here, 1, 2)).is_busy()
    assert sorted(ran) == [1, 2]
    ran = scripted(monkeypatch, {1: [(18.0, False)], 2: [(9.0, False)]})
    monkeypatch.setattr(measuring, "LAST_END_S", 0.0)
    by_width(host_of(here, 1, 2))
    assert sorted(ran) == [1, 2]


@pytest.mark.torch
def test_a_rank_that_fails_is_noted_and_nothing_is_made_up(
    here: Host, monkeypatch: pytest.MonkeyPatch, need: Callable[[bool, str], None]
) -> None:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    monkeypatch.setattr(measuring, "RUNTIMES", ("torch",))
    monkeypatch.setattr(measuring, "GPU_ARRAY_BYTES", 2**20)
    gpu_only = replace(here, facts=replace(here.facts, gpus=(Gpu("a GPU that is not there", "x"),)))
    monkeypatch.setattr(measuring, "places_of", lambda host, with_gpus: places_of(host, True)[-1:])
    with pytest.raises(UserError, match=r"the GPU: device cuda: torch sees no CUDA device here"):
        measure_ceilings(gpu_only)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"schema": 1, "measured_at": Infinity}'])
def test_a_plan_tells_of_damaged_ceilings_in_one_line_and_goes_on(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one_cpu = replace(here, allocation=Allocation(here.allocation.cpus[:1], 1, here.allocation.memory_bytes))
    scripted(monkeypatch, {1: [(10.0, False)]})
    measured = measure_ceilings(one_cpu)
    path = keep(tmp_path / "corewise", measured)
    path.write_text(text)
    study = load_study("stream", ["threads=1", "args.operation=triad", "runtime=numpy"])
    assert make_plan(study, one_cpu).ceilings is None
    [line] = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert "corewise doctor --ceilings" in line
    keep(tmp_path / "corewise", measured)
    found = make_plan(study, one_cpu).ceilings
    assert found is not None
    assert found.figures == measured.figures
    assert capsys.readouterr().err == ""


def test_an_interrupted_measuring_keeps_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    words = [sys.executable, "-m", "corewise", "doctor", "--ceilings", "--json"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (parents := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert parents
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "corewise: interrupted: nothing that was measured is kept\n")
    assert not list(tmp_path.glob("**/ceilings/*"))
    assert not [pid for pid in parents if _is_alive(pid)]


def _children(pid: int) -> list[int]:
    """The warm parents that a process has started."""
    try:
        numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(n) for n in numbers if "cw-warm" in Path(f"/proc/{n}/comm").read_text()]
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
