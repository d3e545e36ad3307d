"""What a user should know of a launch among several tasks of a Slurm step, or beside its job."""

from collections.abc import Mapping

from corewise.machine.slurm import expand_counts, read_grant
from corewise.machine.sysfs import to_int


def slurm_notes(env: Mapping[str, str], hostname: str, *, num_cpus: int, meet: bool) -> list[str]:
    """Sentences on a launch with so many CPUs whose ranks meet or need not; none where all is as it seems."""
    if env.get("SLURM_JOB_ID") and not env.get("SLURMD_NODENAME") and read_grant(env, hostname) is None:
        return [
            f"this host is not among those of Slurm job {env['SLURM_JOB_ID']} "
            f"({env.get('SLURM_JOB_NODELIST', 'unknown')}), and the command runs here; "
            "`srun corewise launch ...` runs it there"
        ]
    notes = []
    num_tasks, num_here = _num_tasks(env)
    num_granted = to_int(env.get("SLURM_CPUS_ON_NODE")) or 0
    if num_here > 1 and 0 < num_granted <= num_cpus and env.get("SLURM_LOCALID") == "0":
        notes.append(
            f"Slurm runs {num_here} tasks on this node and binds none: each launch takes the same {num_cpus} "
            "CPUs; use one task a node (srun --ntasks-per-node=1), or --cpu-bind=cores"
        )
    if meet and num_tasks > 1 and env.get("SLURM_PROCID") == "0":
        notes.append(
            f"each of the {num_tasks} tasks of this Slurm step has ranks of its own, which do not meet"
        )
    return notes


def _num_tasks(env: Mapping[str, str]) -> tuple[int, int]:
    """Tasks of the step we are in, and those of them on this node; 0 outside a step."""
    try:
        per_node = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return sum(per_node), per_node[int(env.get("SLURM_NODEID", ""))]
    except (ValueError, IndexError):
        return 0, 0
