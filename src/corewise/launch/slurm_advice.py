"""Notes for a user who launches inside a Slurm step with several tasks, or outside the job's nodes."""

from collections.abc import Mapping

from corewise.cluster.hostlist import expand_counts
from corewise.machine.slurm import read_grant
from corewise.measured.sysfs import to_int


def list_slurm_notes(env: Mapping[str, str], hostname: str, *, num_cpus: int, has_rendezvous: bool) -> list[str]:
    """List what the user should know about this launch; empty when Slurm's setup needs no remark."""
    if env.get("SLURM_JOB_ID") and not env.get("SLURMD_NODENAME") and read_grant(env, hostname) is None:
        return [
            f"this host is not a node of Slurm job {env['SLURM_JOB_ID']} "
            f"({env.get('SLURM_JOB_NODELIST', 'unknown')}), and the command runs on this host; "
            "use `srun corewise launch ...` to run it on the job's nodes"
        ]
    notes = []
    num_tasks, num_here = _count_tasks(env)
    num_granted = to_int(env.get("SLURM_CPUS_ON_NODE")) or 0
    if num_here > 1 and 0 < num_granted <= num_cpus and env.get("SLURM_LOCALID") == "0":
        notes.append(
            f"Slurm runs {num_here} tasks on this node and binds none of them: all launches use the same "
            f"{num_cpus} CPUs; use one task per node (srun --ntasks-per-node=1), or --cpu-bind=cores"
        )
    if has_rendezvous and num_tasks > 1 and env.get("SLURM_PROCID") == "0":
        notes.append(
            f"each of the {num_tasks} tasks of this Slurm step launches separate ranks, which do not "
            "communicate with those of other tasks"
        )
    return notes


def _count_tasks(env: Mapping[str, str]) -> tuple[int, int]:
    """Count the tasks of this Slurm step, in total and on this node; 0 outside a step."""
    try:
        per_node = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return sum(per_node), per_node[int(env.get("SLURM_NODEID", ""))]
    except (ValueError, IndexError):
        return 0, 0
