"""The launchers by name."""

from collections.abc import Mapping

from corewise.errors import UserError, suggest_nearest
from corewise.launch.launchers.contract import Builder
from corewise.launch.launchers.local import build_local
from corewise.launch.launchers.mpich import build_mpich
from corewise.launch.launchers.openmpi import build_openmpi
from corewise.launch.launchers.srun import build_srun
from corewise.launch.launchers.torchrun import build_torchrun

BUILDERS: Mapping[str, Builder] = {
    "local": build_local,
    "torchrun": build_torchrun,
    "openmpi": build_openmpi,
    "mpich": build_mpich,
    "srun": build_srun,
}


def get_builder(name: str) -> Builder:
    """Return the builder of a launcher; raise a UserError for an unknown name."""
    if name not in BUILDERS:
        raise UserError(f"--launcher: unknown launcher {name!r}; {suggest_nearest(name, tuple(BUILDERS))}")
    return BUILDERS[name]


def identify_mpirun(version_text: str) -> str:
    """Return the launcher that an mpirun belongs to, by the output of `mpirun --version`; raise a UserError."""
    if "Open MPI" in version_text or "OpenRTE" in version_text:
        return "openmpi"
    if "HYDRA" in version_text or "Intel(R) MPI" in version_text:
        return "mpich"
    shown = version_text.strip().splitlines()[:1] or ["no output"]
    raise UserError(f"mpirun is neither Open MPI nor MPICH ({shown[0]}); choose --launcher openmpi or mpich")
