"""Measured ceilings: places, array sizes, retries and failures."""

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

from corewise.errors import UserError
from corewise.machine.ceilings.cache import save_ceilings
from corewise.machine.ceilings.table import BUSY_NOTE, Ceiling
from corewise.machine.gpus import Gpu
from corewise.machine.machine_model import Allocation, Cpu, Topology
from corewise.measured.cache_sizes import Cache
from corewise.measured.trial import RankResult, Trial
from corewise.measured.worker.descendants import find_descendants, read_parents, read_short_name
from corewise.run import ceiling_trials as measuring
from corewise.run.ceiling_trials import compute_array_bytes, list_widths, measure_ceilings, plan_places
from corewise.run.machine_view import Host, Interpreter, read_host
from corewise.run.plan import plan_study
from corewise.study.study import load_study


@pytest.fixture(scope="module")
def here() -> Host:
    return read_host()


@pytest.fixture(autouse=True)
def all_gpus_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def make_host(here: Host, num_nodes: int, cores_each: int, cpus: tuple[int, ...] | None = None) -> Host:
    """Build a machine with one CPU per core."""
    total = num_nodes * cores_each
    topology = Topology(tuple(Cpu(n, n, n // cores_each, n // cores_each) for n in range(total)))
    own = cpus if cpus is not None else tuple(range(total))
    return replace(here, topology=topology, allocation=Allocation(own, len(own), 2**36))


def list_labels(host: Host, with_gpus: bool = False) -> list[str]:
    return [place.label for place in plan_places(host, with_gpus)]


def test_widths_are_powers_of_two_and_the_whole_allocation() -> None:
    assert list_widths(1) == (1,)
    assert list_widths(2) == (1, 2)
    assert list_widths(12) == (1, 2, 4, 8, 12)


def test_one_node_is_measured_at_every_width(here: Host) -> None:
    assert list_labels(make_host(here, 1, 1)) == ["1 thread"]
    found = plan_places(make_host(here, 1, 4), with_gpus=False)
    compact = [place for place in found if place.placement == "compact"]
    assert [place.threads for place in compact] == [1, 2, 4]
    assert all(place.has_products for place in compact)


def test_each_of_several_nodes_is_measured_with_its_own_cpus(here: Host) -> None:
    found = [place for place in plan_places(make_host(here, 2, 4), False) if place.placement == "node"]
    assert [place.label for place in found] == ["4 threads on node 0", "4 threads on node 1"]
    assert [place.ranks[0].cpus for place in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_threads_on_several_nodes_are_also_measured_spread(here: Host) -> None:
    spread = {
        place.threads: place for place in plan_places(make_host(here, 2, 4), False) if place.placement == "spread"
    }
    assert spread[2].ranks[0].cpus == (0, 4)
    # Eight threads use the same CPUs as compact.
    assert 8 not in spread
    assert not any(place.has_products for place in spread.values())


def test_the_most_important_places_are_measured_first(here: Host) -> None:
    host = make_host(here, 2, 4)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"),)))
    found = [place.label for place in measuring._order_places(plan_places(host, with_gpus=True))]
    assert found[:5] == ["8 threads", "the GPU", "1 thread", "4 threads on node 0", "4 threads on node 1"]
    assert set(found[5:]) == {"2 threads", "4 threads", "2 threads, spread", "4 threads, spread"}


def test_a_quota_of_one_cpu_leaves_one_place(here: Host) -> None:
    assert list_labels(make_host(here, 2, 4, cpus=(5,))) == ["1 thread"]


def test_all_gpus_are_measured_at_the_same_time(here: Host) -> None:
    host = make_host(here, 2, 8)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"), Gpu("H200", "b"))))
    place = plan_places(host, with_gpus=True)[-1]
    assert (place.device, place.label, len(place.ranks)) == ("cuda", "2 GPUs", 2)
    assert not set(place.ranks[0].cpus) & set(place.ranks[1].cpus)
    assert list_labels(host, with_gpus=False)[-1] != "2 GPUs"


def test_a_hidden_gpu_gets_no_rank(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    host = make_host(here, 2, 8)
    host = replace(host, facts=replace(host.facts, gpus=(Gpu("H200", "a"), Gpu("H200", "b"))))
    assert list_labels(host, with_gpus=True)[-1] == "the GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "GPU" not in " ".join(list_labels(host, with_gpus=True))


def test_arrays_are_four_times_the_last_level_caches_of_their_cpus() -> None:
    caches = [Cache(2, "Unified", 2**20, (n,)) for n in range(8)]
    caches += [Cache(3, "Unified", 2**25, tuple(range(4))), Cache(3, "Unified", 2**25, tuple(range(4, 8)))]
    assert compute_array_bytes(caches, (0, 1)) == 4 * 2**25
    assert compute_array_bytes(caches, (0, 4)) == 8 * 2**25
    assert compute_array_bytes([], (0,)) == 4 * measuring.UNKNOWN_CACHE_BYTES


def test_a_missing_framework_is_reported_with_the_install_command(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Interpreter((sys.executable,), "3.11", sys.prefix, {})
    monkeypatch.setattr(measuring, "probe_interpreter", lambda *_: bare)
    with pytest.raises(UserError, match="pip install"):
        measure_ceilings(here)


def test_numpy_measures_every_width_of_this_machine(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one_cpu = replace(here, allocation=Allocation(here.allocation.cpus[:1], 1, here.allocation.memory_bytes))
    monkeypatch.setattr(measuring, "RUNTIMES", ("numpy",))
    monkeypatch.setattr(measuring, "SAMPLING_S", 0.2)
    monkeypatch.setattr(measuring, "PROBE_S", 0.005)
    reported: list[str] = []
    found = measure_ceilings(one_cpu, lambda done, total, label: reported.append(label))
    assert found.runtime == "numpy"
    assert reported == ["importing numpy", "1 thread"]
    by_operation = {(each.operation, each.dtype): each for each in found.figures}
    assert {operation for operation, _ in by_operation} == {"triad", "copy", "read", "product"}
    assert {dtype for operation, dtype in by_operation if operation == "product"} == {"float32", "float64"}
    for each in found.figures:
        assert (each.threads, each.device, each.placement) == (1, "cpu", "compact")
        assert each.num_samples >= measuring.MIN_SAMPLES
        assert 0 < each.median <= each.best
    assert found.find_roof("float32", "cpu", threads=1).gbyte_per_s is not None


class NoParents:
    """Replaces the pool of warm parents; the test scripts the results."""

    def __init__(self, worker: Path, folder: Path) -> None: ...

    def warm(self, trials: Sequence[Trial]) -> None: ...

    def close(self) -> None: ...


def script_runs(monkeypatch: pytest.MonkeyPatch, triads: Mapping[int, Sequence[tuple[float, bool]]]) -> list[int]:
    """Script triad rates and disturbances per width; returns a list that collects the widths of runs."""
    ran: list[int] = []

    def run(session: Any, trial: Trial) -> list[RankResult]:
        threads = trial.params.threads
        best, is_busy = triads[threads][min(ran.count(threads), len(triads[threads]) - 1)]
        ran.append(threads)
        figure = {"kind": "triad", "dtype": "float64", "size": 2**28, "num_samples": 9}
        facts = {"ceiling_notes": [], "figures": [{**figure, "best": best, "median": best}]}
        disturbances = ("another process ran",) if is_busy else ()
        return [RankResult(status="ok", rank=0, facts=facts, disturbances=disturbances)]

    monkeypatch.setattr(measuring, "RUNTIMES", ("numpy",))
    monkeypatch.setattr(measuring, "ParentPool", NoParents)
    monkeypatch.setattr(measuring._Session, "_run", run)
    return ran


def by_width(host: Host) -> dict[int, Ceiling]:
    return {each.threads: each for each in measure_ceilings(host).figures if each.placement == "compact"}


def test_a_place_slower_than_a_narrower_one_is_measured_again(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = script_runs(monkeypatch, {1: [(18.1, False)], 2: [(9.7, True), (25.0, False)]})
    found = by_width(make_host(here, 1, 2))
    assert sorted(ran) == [1, 2, 2]
    assert found[2].best == 25.0
    # The second measurement was not disturbed.
    assert not found[2].is_busy


def test_retries_are_limited_and_the_best_figure_is_kept(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = script_runs(monkeypatch, {1: [(18.1, False)], 2: [(9.7, True), (9.0, True)]})
    found = measure_ceilings(make_host(here, 1, 2))
    assert ran.count(2) == 1 + measuring.MAX_RETRIES
    [wide] = [each for each in found.figures if each.threads == 2]
    assert (wide.best, wide.is_busy) == (9.7, True)
    assert found.notes[0] == BUSY_NOTE
    assert wide.measured_at == found.measured_at


def test_places_are_measured_once_if_rates_grow_or_time_is_short(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = script_runs(monkeypatch, {1: [(10.0, False)], 2: [(18.0, False)]})
    assert not measure_ceilings(make_host(here, 1, 2)).is_busy()
    assert sorted(ran) == [1, 2]
    ran = script_runs(monkeypatch, {1: [(18.0, False)], 2: [(9.0, False)]})
    monkeypatch.setattr(measuring, "LAST_END_S", 0.0)
    by_width(make_host(here, 1, 2))
    assert sorted(ran) == [1, 2]


@pytest.mark.torch
def test_a_failed_rank_is_noted_and_gives_no_figure(
    here: Host, monkeypatch: pytest.MonkeyPatch, need: Callable[[bool, str], None]
) -> None:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    monkeypatch.setattr(measuring, "RUNTIMES", ("torch",))
    monkeypatch.setattr(measuring, "GPU_ARRAY_BYTES", 2**20)
    gpu_only = replace(here, facts=replace(here.facts, gpus=(Gpu("a GPU that is not there", "x"),)))
    monkeypatch.setattr(measuring, "plan_places", lambda host, with_gpus: plan_places(host, True)[-1:])
    with pytest.raises(UserError, match=r"the GPU: device cuda: torch sees no CUDA device on this machine"):
        measure_ceilings(gpu_only)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"schema": 1, "measured_at": Infinity}'])
def test_a_plan_reports_damaged_ceilings_in_one_line_and_continues(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one_cpu = replace(here, allocation=Allocation(here.allocation.cpus[:1], 1, here.allocation.memory_bytes))
    script_runs(monkeypatch, {1: [(10.0, False)]})
    measured = measure_ceilings(one_cpu)
    path = save_ceilings(tmp_path / "corewise", measured)
    path.write_text(text)
    study = load_study("stream", ["threads=1", "args.operation=triad", "runtime=numpy"])
    assert plan_study(study, one_cpu).ceilings is None
    [line] = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert "corewise doctor --ceilings" in line
    save_ceilings(tmp_path / "corewise", measured)
    found = plan_study(study, one_cpu).ceilings
    assert found is not None
    assert found.figures == measured.figures
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_measurement_saves_nothing_and_leaves_no_process(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "corewise", "doctor", "--ceilings", "--json"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (parents := _find_warm_parents(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert parents
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert (out, err) == ("", "corewise: interrupted; no ceilings were saved\n")
    assert not list(tmp_path.glob("**/ceilings/*"))
    assert not [pid for pid in parents if _is_alive(pid)]
    assert list(temporary.glob("corewise-*")) == []


def _find_warm_parents(pid: int) -> list[int]:
    """Find the warm parents that a process has started."""
    return [each for each in find_descendants(pid, read_parents()) if read_short_name(each) == "cw-warm"]


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
