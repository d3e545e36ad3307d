"""Find the mpirun that belongs to an MPI library, and build its command and environment.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections import Counter
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from corewise.measured.runtimes.base import Infeasible

OPEN_MPI, MPICH = "Open MPI", "MPICH"
PROGRAMS: Mapping[str, Tuple[str, ...]] = {
    OPEN_MPI: ("mpirun", "mpirun.openmpi", "mpiexec"),
    MPICH: ("mpirun", "mpirun.mpich", "mpiexec.hydra", "mpiexec"),
}
# What the libraries and launchers of each family call themselves. Intel MPI and MVAPICH use MPICH's launcher.
FAMILY_NAMES: Mapping[str, Tuple[str, ...]] = {
    OPEN_MPI: ("open mpi", "openrte", "open-mpi", "prte", "prrte"),
    MPICH: ("mpich", "hydra", "intel(r) mpi", "mvapich"),
}
VERSION_LIMIT_S = 20.0
# Variables of an outer mpirun, inside of which another one would refuse to start.
NESTED_PREFIXES = ("PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL", "OMPI_")
# Of those, settings of the user, which an outer mpirun passes on.
USER_PREFIXES = (*(f"OMPI_MCA_{name}" for name in ("plm_", "oob_", "btl", "pml", "mtl", "coll")), "OMPI_ALLOW_")
# On one machine, mpirun must not ask a batch system for nodes.
BATCH_PREFIXES = ("SLURM_", "PBS_", "LSB_", "SGE_", "FLUX_")


@dataclasses.dataclass(frozen=True)
class MpiLibrary:
    """The MPI that mpi4py is linked with: its family and the first line of its version."""

    family: str
    version: str

    @property
    def major(self) -> str:
        """The first number of the version; empty if there is none."""
        return find_major(self.version)


def identify_library(version_text: str) -> MpiLibrary:
    """Identify the family of a library by its version text; raise Infeasible if it is unknown."""
    line = version_text.strip().splitlines()[0].split(",")[0].replace("\t", " ") if version_text.strip() else ""
    family = identify_family(version_text)
    if family is None:
        raise Infeasible(f"mpi4py is built for an MPI that is not supported: {line or 'no version'}")
    return MpiLibrary(family, line)


def identify_family(text: str) -> Optional[str]:
    """Return the family that a version text belongs to, or None."""
    lower = text.lower()
    # MPICH's text names the paths of its files, so the first name in the text counts.
    found = [(lower.index(name), family) for family, names in FAMILY_NAMES.items() for name in names if name in lower]
    return min(found)[1] if found else None


def find_major(text: str) -> str:
    """Return the first number before a dot in a version text; empty if there is none."""
    match = re.search(r"(\d+)\.\d+", text)
    return match.group(1) if match else ""


def find_mpirun(library: MpiLibrary, path: Optional[str] = None) -> str:
    """Return the path of the mpirun that starts ranks of this library.

    Args:
        path: the folders to search; default: those of PATH.

    Raises:
        Infeasible: there is none; the reason names each mpirun that belongs to another MPI.
    """
    others = []
    for name in dict.fromkeys((*PROGRAMS[library.family], *(each for names in PROGRAMS.values() for each in names))):
        program = shutil.which(name, path=path)
        if program is None:
            continue
        text = _read_version(program)
        if identify_family(text) == library.family and not _differs(find_major(text), library.major):
            return program
        others.append(f"{name} is {_describe_launcher(text)}")
    found = f": {', '.join(others)}" if others else ": no mpirun is installed"
    raise Infeasible(
        f"mpi4py is built for {library.version}, and no mpirun belongs to it{found}; "
        f"install the mpirun of {library.family}, or mpi4py for the MPI that you have"
    )


def _differs(one: str, other: str) -> bool:
    """Return whether two major versions are known and differ."""
    return bool(one and other and one != other)


def _describe_launcher(text: str) -> str:
    family = identify_family(text)
    # Hydra prints its version after its name, Open MPI in its first line.
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    return f"{family} {match.group(0) if match else ''}".strip() if family else "not an mpirun that Corewise knows"


def _read_version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return done.stdout.decode(errors="replace")


def build_mpirun_command(
    library: MpiLibrary, program: str, hosts: Sequence[str], process: Sequence[str], is_root: bool
) -> List[str]:
    """Build the command that starts one process per rank, without binding.

    Args:
        hosts: the host of each rank, in the order of ranks.
        process: the command of each process.
        is_root: whether root starts it.
    """
    counts = Counter(hosts)
    slots = ",".join(f"{host}:{count}" for host, count in counts.items())
    command = [program]
    if library.family == OPEN_MPI:
        command += ["--allow-run-as-root"] if is_root else []
        command += ["--np", str(len(hosts)), "--host", slots, "--map-by", "slot", "--oversubscribe"]
        return [*command, "--bind-to", "none", *process]
    # With -pmi-port a process finds Hydra through a variable, not through a descriptor that it inherits.
    launcher = ["-launcher", "fork"] if len(counts) == 1 else []
    return [*command, "-n", str(len(hosts)), "-hosts", slots, *launcher, "-pmi-port", "-bind-to", "none", *process]


def build_mpirun_environment(environment: Mapping[str, str], is_one_machine: bool) -> Dict[str, str]:
    """Build the environment of mpirun from that of a rank, whose own launcher must not confuse it."""
    is_nested = "OMPI_COMM_WORLD_RANK" in environment or "PMIX_RANK" in environment or "PMI_RANK" in environment
    dropped = (*(NESTED_PREFIXES if is_nested else ()), *(BATCH_PREFIXES if is_one_machine else ()))
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(dropped) or name.startswith(USER_PREFIXES)
    }
    if not is_one_machine:
        # Newer versions of Slurm let a nested srun wait for ever unless it may share the allocation.
        kept.setdefault("SLURM_OVERLAP", "1")
    return kept
