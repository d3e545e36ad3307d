"""Settings tuned beside a GPU, on machines with and without one."""

from corewise.launcher.adapt import adapted
from corewise.launcher.ranks import complete_params, place_params
from corewise.machine.model import Cpu, Topology
from corewise.spec.tuned import Fingerprint

CPUS = tuple(Cpu(n, n, n // 4, n // 4) for n in range(8))
WITH_GPU, WITHOUT = Topology(CPUS, gpu_nodes=(1,)), Topology(CPUS)
TUNED = {"processes": 1, "threads": 4, "bind": "rank", "placement": "gpu"}
MACHINE = Fingerprint(cpu_model="A CPU", num_sockets=2, nodes=((4, 4), (4, 4)), memory_bytes=1 << 30)


def test_a_launch_uses_the_cores_near_the_gpu() -> None:
    [rank] = place_params(WITH_GPU, range(8), complete_params(TUNED, WITH_GPU, range(8)))
    assert rank.cpus == (4, 5, 6, 7)


def test_where_there_is_no_gpu_the_placement_is_planned_anew_and_told() -> None:
    found = adapted(TUNED, MACHINE, WITHOUT, range(8), ())
    assert found.params["placement"] == "compact"
    assert any("gpu becomes compact" in change for change in found.changes)
    assert adapted(TUNED, MACHINE, WITH_GPU, range(8), ()).params["placement"] == "gpu"
