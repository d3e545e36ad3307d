"""What users see on a hybrid processor; the last core of this machine plays an efficiency core."""

import json
import os

import pytest

from .conftest import QUICK_PROTOCOL, Bench

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
HYBRID = """
from dataclasses import replace
from corewise.cli.launching import start
from corewise.machine import topology
from corewise.run import machine_view
read = topology.read_topology
def read_as_hybrid(root=topology.Path("/")):
    found = read(root)
    slow = max(cpu.core for cpu in found.cpus)
    return replace(found, cpus=tuple(replace(cpu, core_class=int(cpu.core == slow)) for cpu in found.cpus))
start.read_topology = machine_view.read_topology = read_as_hybrid
"""
STUDY = f"""
workload: matmul
mode: infer
runtime: numpy
axes: {{threads: [1, allocation]}}
fixed: {{batch: 1, args.size: 32}}
protocol: {QUICK_PROTOCOL}
"""
REASON = "a process mixes types only if none of them has enough free cores"


@needs_two_cores
def test_a_launch_says_which_types_of_cores_it_uses(bench: Bench) -> None:
    mixed = bench.run("launch", "--", "true", before=HYBRID)
    assert mixed.returncode == 0
    assert "cores of different speed: a process has" in mixed.stderr
    assert mixed.stderr.endswith(f" + 1 efficiency cores; {REASON}\n")
    assert bench.run("launch", "--threads", "1", "--", "true", before=HYBRID).stderr == ""
    assert bench.run("launch", "--quiet", "--", "true", before=HYBRID).stderr == ""


@needs_two_cores
def test_a_plan_and_its_records_say_which_types_of_cores_a_trial_uses(bench: Bench) -> None:
    study = bench.write_study(STUDY)
    plan = json.loads(bench.run("plan", study, "--json", before=HYBRID).stdout)
    fast, mixed = plan["trials"]
    assert fast["notes"] == []
    assert REASON in mixed["notes"][0]
    shown = bench.run("plan", study, before=HYBRID).stdout
    assert "core types 1: cores of different speed: a process has" in " ".join(shown.split())
    assert bench.run("run", study, "--store", "store", before=HYBRID).returncode == 0
    notes = {record["trial_id"]: record["notes"] for record in bench.read_records()}
    assert mixed["notes"][0] in notes[mixed["trial_id"]]
    assert not [note for note in notes[fast["trial_id"]] if "speed" in note]
    # On a machine of equal cores these are other trials.
    equal = json.loads(bench.run("plan", study, "--json").stdout)
    assert not notes.keys() & {trial["trial_id"] for trial in equal["trials"]}
