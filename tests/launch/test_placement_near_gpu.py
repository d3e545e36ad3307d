"""Settings tuned for the cores near a GPU, on machines with and without one."""

from corewise.launch.ranks import fill_params, place_trial_ranks
from corewise.launch.tuned_file_fit import fit_settings
from corewise.machine.machine_model import Cpu, Topology
from corewise.measured.parameters import TrialParameters
from corewise.study.tuned_file import MachineFingerprint

CPUS = tuple(Cpu(n, n, n // 4, n // 4) for n in range(8))
WITH_GPU, WITHOUT = Topology(CPUS, gpu_nodes=(1,)), Topology(CPUS)
TUNED = {"processes": 1, "threads": 4, "bind": "rank", "placement": "gpu"}
MACHINE = MachineFingerprint(cpu_model="A CPU", num_sockets=2, nodes=((4, 4), (4, 4)), memory_bytes=1 << 30)


def test_a_launch_uses_the_cores_near_the_gpu() -> None:
    [rank] = place_trial_ranks(WITH_GPU, range(8), TrialParameters.from_mapping(fill_params(TUNED, WITH_GPU, range(8))))
    assert rank.cpus == (4, 5, 6, 7)


def test_without_a_gpu_the_placement_is_replaced_and_reported() -> None:
    settings = fit_settings(TUNED, MACHINE, WITHOUT, range(8), ())
    assert settings.params["placement"] == "compact"
    assert any("gpu becomes compact" in change for change in settings.changes)
    assert fit_settings(TUNED, MACHINE, WITH_GPU, range(8), ()).params["placement"] == "gpu"
