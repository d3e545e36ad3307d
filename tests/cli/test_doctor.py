import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from corewise.cli.doctor import Diagnosis, diagnose, doctor, show
from corewise.machine.gpus import Gpu
from corewise.machine.model import Allocation, Cpu, Finding, Limit, Topology


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(doctor)
    return made


def shown(diagnosis: Diagnosis, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(diagnosis, console)
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
    finding = Finding("k", "warning", "Claim [with] brackets.", "evidence [/x]", "remedy")
    return replace(
        here,
        topology=Topology(cpus),
        allocation=Allocation(tuple(range(8)), 8, 32 << 30, (quota,)),
        facts=replace(
            here.facts, gpus=(Gpu("NVIDIA H200", "a", 140 << 30), Gpu("NVIDIA H200", "b", 140 << 30))
        ),
        findings=(finding,),
    )


def told() -> dict[str, Any]:
    result = CliRunner().invoke(app(), ["--json"])
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_json_has_the_names_others_rely_on() -> None:
    answer = told()
    assert set(answer) == {"allocation", "topology", "facts", "software", "findings"}
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


def test_text_has_four_sections_with_the_findings_last() -> None:
    result = CliRunner().invoke(app(), [])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    titles = [lines.index(title) for title in ("Machine", "Allocation", "Software", "Findings")]
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
