import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.sysfs_trees import GIB, Tree, add_two_sockets

from corewise.machine.facts import compute_host_class, read_facts
from corewise.machine.gpus import Gpu, GpuQuery, merge_gpus, parse_query, read_driver_gpus
from corewise.machine.machine_model import Cpu, Topology
from corewise.machine.topology import read_topology

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse4_2 avx avx2 hypervisor avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8

processor\t: 1
model name\t: something else
"""


def add_server(tree: Tree) -> Tree:
    add_two_sockets(tree).write("proc/cpuinfo", CPUINFO).write("proc/sys/kernel/hostname", "n1")
    tree.set_memory(512 * GIB, MemAvailable=400 * GIB, SwapTotal=8 * GIB, SwapFree=6 * GIB, Hugepagesize=2 << 20)
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    tree.write("proc/loadavg", "3.50 2.00 1.00 2/90 6686").write("proc/sys/kernel/osrelease", "6.1.0")
    for policy in (0, 1):
        folder = f"sys/devices/system/cpu/cpufreq/policy{policy}"
        tree.write(f"{folder}/scaling_governor", "powersave").write(f"{folder}/scaling_driver", "intel_pstate")
    for node in (0, 1):
        text = f"Node {node} MemTotal: {256 << 20} kB\nNode {node} MemFree: {100 << 20} kB"
        tree.write(f"sys/devices/system/node/node{node}/meminfo", text)
    return tree


def test_a_servers_facts_are_read_from_its_files(tree: Tree) -> None:
    facts = read_facts(add_server(tree).root)
    assert (facts.hostname, facts.kernel, facts.cpu_vendor) == ("n1", "6.1.0", "GenuineIntel")
    assert facts.cpu_model == "Intel(R) Xeon(R) Platinum 8480+"
    assert facts.virtualised
    assert facts.instruction_sets[-2:] == ("amx_int8", "amx_bf16")
    assert "fpu" not in facts.instruction_sets
    assert (facts.memory.total_bytes, facts.memory.available_bytes) == (512 * GIB, 400 * GIB)
    assert facts.memory.swap_used_bytes == 2 * GIB
    assert facts.memory.transparent_huge_pages == "madvise"
    assert [(node.node, node.total_bytes) for node in facts.memory.nodes] == [(0, 256 * GIB), (1, 256 * GIB)]
    assert (facts.frequency.governors, facts.frequency.driver) == (("powersave",), "intel_pstate")
    assert facts.load.load_1min == 3.5
    assert facts.load.others_cpus == 0


def test_facts_are_json_values(tree: Tree) -> None:
    data = json.loads(json.dumps(read_facts(add_server(tree).root).to_json()))
    assert data["memory"]["nodes"][1]["node"] == 1


def test_an_empty_root_gives_facts_without_crashing(tree: Tree) -> None:
    facts = read_facts(tree.root)
    assert (facts.cpu_model, facts.memory.total_bytes, facts.gpus) == ("unknown", 0, ())
    assert facts.cpu_quota_cpus is None


def test_damaged_files_give_facts_without_crashing(tree: Tree) -> None:
    tree.write("proc/meminfo", "MemTotal: lots kB\nMemFree:\n:::\nnothing").write("proc/loadavg", "idle")
    tree.write("proc/stat", "cpu a b c").write("sys/devices/system/node/node0/meminfo", ":\nNode 0 MemTotal: x")
    (tree.root / "proc/cpuinfo").write_bytes(b"model name\xff: \xfe\n\n")
    facts = read_facts(tree.root)
    assert (facts.memory.total_bytes, facts.load.load_1min) == (0, 0.0)


def test_arm_cores_are_named_by_implementer_and_part(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor: 0\nFeatures: fp asimd sve bf16\nCPU implementer: 0x41\nCPU part: 0xd40\n")
    facts = read_facts(tree.root)
    assert facts.cpu_model == "ARM implementer 0x41 part 0xd40"
    assert facts.instruction_sets == ("asimd", "bf16", "sve")


def test_the_quota_keeps_its_fraction(tree: Tree) -> None:
    tree.join_cgroup2("/a").add_group("a", {"cpu.max": "150000 100000"})
    assert read_facts(tree.root).cpu_quota_cpus == 1.5


def test_gpus_come_from_the_drivers_files(tree: Tree) -> None:
    for number in (1, 0):
        folder = f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        tree.write(f"{folder}/information", f"Model: \t\t NVIDIA H200\nIRQ:   33\nGPU UUID: \t GPU-{number}")
    assert read_driver_gpus(tree.root) == (Gpu("NVIDIA H200", "GPU-0"), Gpu("NVIDIA H200", "GPU-1"))


def test_nvidia_smi_adds_the_memory_and_stands_in_where_the_driver_is_silent() -> None:
    queried = parse_query("NVIDIA H200, 143771 MiB, GPU-1\nNVIDIA, special, [N/A], GPU-2\ngarbage\n")
    assert queried == (Gpu("NVIDIA H200", "GPU-1", 143771 << 20), Gpu("NVIDIA, special", "GPU-2", None))
    assert merge_gpus((), queried) == queried
    driver = (Gpu("NVIDIA H200", "GPU-0"), Gpu("NVIDIA H200", "GPU-1"))
    assert [gpu.memory_bytes for gpu in merge_gpus(driver, queried)] == [None, 143771 << 20]


def start_nvidia_smi(tree: Tree, script: str, monkeypatch: pytest.MonkeyPatch) -> GpuQuery:
    tree.write("bin/nvidia-smi", f"#!/bin/sh\n{script}")
    (tree.root / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tree.root / "bin"), prepend=":")
    return GpuQuery(Path("/"))


def test_nvidia_smi_is_asked_when_it_is_on_the_path(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = start_nvidia_smi(tree, "echo 'NVIDIA H200, 1024 MiB, GPU-1'", monkeypatch).collect_gpus()
    assert answer == (Gpu("NVIDIA H200", "GPU-1", GIB),)


@pytest.mark.parametrize("script", ["exec sleep 60", "echo 'No devices were found, 1, 2'; exit 6"])
def test_an_nvidia_smi_that_hangs_or_fails_lists_no_gpus(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    assert start_nvidia_smi(tree, script, monkeypatch).collect_gpus(timeout_s=0.3) == ()


def test_the_host_class_ignores_the_name_and_small_changes_of_memory(make_tree: Callable[[], Tree]) -> None:
    first, second = add_server(make_tree()), add_server(make_tree())
    second.write("proc/sys/kernel/hostname", "n2").set_memory(512 * GIB - (40 << 20)).write("proc/loadavg", "9 9 9")
    classes = {compute_host_class(read_facts(t.root), read_topology(t.root)) for t in (first, second)}
    assert len(classes) == 1


def test_the_host_class_differs_for_different_hardware(tree: Tree) -> None:
    facts, topology = read_facts(add_server(tree).root), read_topology(tree.root)
    one_node = Topology(tuple(replace(cpu, node=0) for cpu in topology.cpus))
    no_smt = Topology(tuple(cpu for cpu in topology.cpus if cpu.number < 96))
    others = [
        compute_host_class(replace(facts, cpu_model="another"), topology),
        compute_host_class(replace(facts, gpus=(Gpu("NVIDIA H200", "GPU-0"),)), topology),
        compute_host_class(replace(facts, memory=replace(facts.memory, total_bytes=256 * GIB)), topology),
        compute_host_class(facts, one_node),
        compute_host_class(facts, no_smt),
        compute_host_class(facts, Topology((Cpu(0, 0, 0, 0),))),
    ]
    assert len({compute_host_class(facts, topology), *others}) == 7


def test_this_machines_facts_name_its_processor_and_memory() -> None:
    facts = read_facts(sample_s=0.0)
    assert facts.cpu_model != "unknown"
    assert facts.memory.total_bytes > 0
    assert facts.load.others_cpus >= 0
