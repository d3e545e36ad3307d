import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from corewise.cli.doctor import Diagnosis, diagnose, doctor, print_diagnosis
from corewise.errors import UserError
from corewise.machine.ceilings.cache import compute_allocation_shape, save_ceilings
from corewise.machine.ceilings.table import Ceiling, Ceilings
from corewise.machine.core_classes import CoreClass
from corewise.machine.facts import compute_host_class
from corewise.machine.gpus import Gpu
from corewise.machine.machine_model import Allocation, Cpu, Limit, MachineFinding, Topology


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(doctor)
    return made


def shown(diagnosis: Diagnosis, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_diagnosis(diagnosis, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def here() -> Diagnosis:
    return diagnose()


@pytest.fixture
def cluster(here: Diagnosis) -> Diagnosis:
    """This machine's facts on a made-up node with two threads a core and a quota."""
    cpus = tuple(Cpu(n, n % 96, (n % 96) // 48, (n % 96) // 8) for n in range(192))
    quota = Limit("quota", 8, "/sys/fs/cgroup/pod/cpu.max: 800000 us in 100000 us = 8 CPUs")
    finding = MachineFinding("k", "warning", "Claim [with] brackets.", "evidence [/x]", "remedy")
    return replace(
        here,
        topology=Topology(cpus),
        allocation=Allocation(tuple(range(8)), 8, 32 << 30, (quota,)),
        facts=replace(here.facts, gpus=(Gpu("NVIDIA H200", "a", 140 << 30), Gpu("NVIDIA H200", "b", 140 << 30))),
        findings=(finding,),
    )


def test_types_of_cores_are_shown_only_if_there_are_several(here: Diagnosis) -> None:
    cpus = tuple(Cpu(n, n // 2 * 2 if n < 4 else n, 0, 0, core_class=int(n >= 4)) for n in range(6))
    classes = (CoreClass("performance", (0, 1, 2, 3), "/a"), CoreClass("efficiency", (4, 5), "/b"))
    hybrid = replace(here, topology=Topology(cpus), facts=replace(here.facts, core_classes=classes))
    assert "core types    2 performance (CPUs 0-3), 2 efficiency (CPUs 4-5)" in shown(hybrid, 100)
    assert "core types" not in shown(replace(here, facts=replace(here.facts, core_classes=())))
    assert hybrid.to_json()["topology"]["cpus"][5]["core_class"] == 1


def read_json() -> dict[str, Any]:
    result = CliRunner().invoke(app(), ["--json"])
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_json_has_the_names_others_rely_on() -> None:
    answer = read_json()
    names = {"allocation", "topology", "facts", "software", "foreign_load", "findings", "ceilings", "counters"}
    assert set(answer) == names
    assert set(answer["allocation"]) == {"cpus", "num_cores", "memory_bytes", "limits"}
    assert set(answer["allocation"]["cpus"]) <= os.sched_getaffinity(0)
    assert answer["software"]["packages"]["corewise"]
    for finding in answer["findings"]:
        assert set(finding) == {"key", "severity", "claim", "evidence", "remedy"}


def test_json_of_a_process_bound_to_one_cpu_lists_that_cpu() -> None:
    number = max(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{number}])\n"
        "import typer; from corewise.cli.doctor import doctor\n"
        "a = typer.Typer(); a.command()(doctor); a(['--json'])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["allocation"]["cpus"] == [number]
    assert answer.stderr == ""


def test_doctor_loads_no_framework_and_no_numerics() -> None:
    program = (
        "import sys; from corewise.cli.doctor import diagnose; diagnose()\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'duckdb', 'pydantic'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_text_has_five_sections_with_the_findings_last() -> None:
    result = CliRunner().invoke(app(), [])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    titles = [lines.index(title) for title in ("Machine", "Allocation", "Software", "Ceilings", "Findings")]
    assert titles == sorted(titles)


def test_text_fits_into_eighty_columns(cluster: Diagnosis) -> None:
    assert max(len(line) for line in shown(cluster).splitlines()) <= 80


def test_text_names_each_limit_and_what_it_leaves(cluster: Diagnosis) -> None:
    text = " ".join(shown(cluster).split())
    assert "8 of 192: 0-7" in text
    assert "192 CPUs, 96 cores, 2 sockets, 12 NUMA nodes" in text
    assert "quota limit leaves 8 — /sys/fs/cgroup/pod/cpu.max" in text
    assert "2 × NVIDIA H200, 140.0 GiB each" in text


def test_brackets_in_texts_are_printed_as_they_are(cluster: Diagnosis) -> None:
    text = shown(cluster)
    assert "Claim [with] brackets." in text
    assert "evidence [/x]" in text


def test_a_machine_without_findings_is_ready(cluster: Diagnosis) -> None:
    assert "ready to measure" in shown(replace(cluster, findings=()))


def build_ceilings(diagnosis: Diagnosis, **changes: Any) -> Ceilings:
    """Ceilings of this machine and allocation, made up."""
    where: dict[str, Any] = {"device": "cpu", "gpu": None, "nodes": (0,), "num_samples": 9}
    rates = (("triad", "float64", 20.5), ("copy", "float64", 19.0), ("product", "float32", 171.0))
    figures = [
        Ceiling(
            operation=operation, dtype=dtype, threads=threads, placement="compact", best=best * threads,
            median=0.9 * best * threads, size=2048, measured_at="2026-11-15T10:00:00.000Z", **where,
        )
        for threads in (1, 2)
        for operation, dtype, best in rates
    ]  # fmt: skip
    values: dict[str, Any] = {
        "runtime": "torch", "version": "2.13.0", "hostname": "h", "cpu_model": "a CPU", "took_s": 20.0,
        "host_class": compute_host_class(diagnosis.facts, diagnosis.topology), "figures": tuple(figures),
        "allocation": compute_allocation_shape(diagnosis.topology, diagnosis.allocation),
        "measured_at": "2026-11-15T10:00:00.000Z", "notes": ("int8: no fast product here",),
    }  # fmt: skip
    return Ceilings(**{**values, **changes})


def test_without_ceilings_doctor_says_how_to_measure_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_json()["ceilings"] is None
    assert "`corewise doctor --ceilings` measures them" in CliRunner().invoke(app(), []).stdout


def test_saved_ceilings_are_shown_with_their_spread_and_reported_in_json(
    here: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = build_ceilings(here)
    save_ceilings(tmp_path / "corewise", made)
    assert read_json()["ceilings"] == made.to_json()
    text = CliRunner().invoke(app(), []).stdout
    assert "torch 2.13.0, 2026-11-15 10:00 UTC" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["GB/s", "triad", "copy"] in lines
    assert ["2", "threads", "41.0", "−10", "%", "38.0", "−10", "%"] in lines
    assert ["2", "threads", "342", "−10", "%"] in lines
    assert "int8: no fast product here" in text


def test_damaged_ceilings_are_a_finding_and_not_shown(
    here: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    save_ceilings(tmp_path / "corewise", build_ceilings(here)).write_text('{"schema": 1')
    answer = read_json()
    assert answer["ceilings"] is None
    [finding] = [each for each in answer["findings"] if each["key"] == "ceilings-damaged"]
    assert "corewise doctor --ceilings" in finding["remedy"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "THREADS"])
def test_measuring_replaces_a_damaged_file_and_its_finding(
    here: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from corewise.cli.render import ceilings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ceilings, "measure_here", build_ceilings)
    path = save_ceilings(tmp_path / "corewise", build_ceilings(here))
    if text == "THREADS":
        text = path.read_text().replace('"threads":1', '"threads":Infinity')
        assert "Infinity" in text
    path.write_text(text)
    answer = read_json()
    assert answer["ceilings"] is None
    assert "ceilings-damaged" in [each["key"] for each in answer["findings"]]
    result = CliRunner().invoke(app(), ["--ceilings", "--json"])
    assert result.exit_code == 0
    repaired = json.loads(result.stdout)
    assert repaired["ceilings"] == build_ceilings(here).to_json()
    assert "ceilings-damaged" not in [each["key"] for each in repaired["findings"]]


def test_lower_figures_are_saved_and_shown_only_with_again(
    here: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corewise.cli.render import ceilings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    high = build_ceilings(here)
    low = replace(high, figures=tuple(replace(e, best=0.5 * e.best, median=0.4 * e.best) for e in high.figures))
    monkeypatch.setattr(ceilings, "measure_here", lambda _: low)
    save_ceilings(tmp_path / "corewise", high)
    for arguments, expected in ((["--ceilings"], high), (["--ceilings", "--again"], low)):
        result = CliRunner().invoke(app(), [*arguments, "--json"])
        assert json.loads(result.stdout)["ceilings"] == expected.to_json()
        assert read_json()["ceilings"] == expected.to_json()
    with pytest.raises(UserError, match="add --ceilings"):
        CliRunner().invoke(app(), ["--again"], catch_exceptions=False)


def test_a_place_slower_than_a_narrower_one_shows_the_value_that_is_used(cluster: Diagnosis) -> None:
    made = build_ceilings(cluster)
    slow = [replace(e, best=9.7, median=9.0) if e.threads == 2 and e.operation == "triad" else e for e in made.figures]
    lines = shown(replace(cluster, ceilings=replace(made, figures=tuple(slow)))).splitlines()
    cells = [line.split() for line in lines]
    assert ["2", "threads", "20.5", "↑", "38.0", "−10", "%"] in cells
    assert any("↑: reached with fewer threads" in line for line in lines)
    assert "↑" not in shown(replace(cluster, ceilings=made))


def test_ceilings_that_cannot_be_saved_are_shown(
    here: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corewise.cli.render import ceilings

    (tmp_path / "corewise").write_text("a file stands where the folder should")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ceilings, "measure_here", build_ceilings)
    result = CliRunner().invoke(app(), ["--ceilings", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ceilings"]["peak"]
    assert "XDG_CACHE_HOME" in result.stderr


def test_ceilings_of_many_places_fit_into_eighty_columns(cluster: Diagnosis) -> None:
    gpu: dict[str, Any] = {"device": "cuda", "gpu": 7, "threads": 4, "placement": "gpu", "nodes": (0,)}
    figures = [
        Ceiling(operation="product", dtype=dtype, best=796e3, median=780e3, num_samples=5, size=16384, **gpu)
        for dtype in ("float64", "float32", "tf32", "bfloat16", "int8")
    ]
    figures += [
        Ceiling(operation=operation, dtype="float64", best=4.3e3, median=4e3, num_samples=5, size=2**30, **gpu)
        for operation in ("triad", "copy", "read", "to_device", "from_device")
    ]
    text = shown(replace(cluster, ceilings=build_ceilings(cluster, figures=tuple(figures))))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "GPU 7" in text
