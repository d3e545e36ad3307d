"""Place the processes of a launch, start and supervise them, and report how they ended."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.launching.messages import describe_outcome, describe_overrides, outcome_to_json
from corewise.cli.launching.outcome_file import can_write_outcome, write_outcome
from corewise.cli.launching.settings import LaunchRequest, LaunchSettings, resolve_settings
from corewise.errors import UserError
from corewise.launch.launch_outcome import LaunchOutcome, LaunchPolicy
from corewise.launch.ranks import LaunchContext, RankStart, find_changed_variables, format_start_line, plan_ranks
from corewise.launch.rendezvous import ONE_NODE, NodeShare, has_rendezvous, reserve_port
from corewise.launch.slurm_advice import list_slurm_notes
from corewise.launch.supervision.front_process import SignalSetup, print_message, run_guarded
from corewise.launch.supervision.rank_logs import build_log_path, move_old_logs
from corewise.launch.supervision.rank_start import StartError, build_start_error, find_program
from corewise.launch.supervision.supervisor import supervise
from corewise.machine.allocation import read_allocation, read_hostname
from corewise.machine.core_classes import describe_core_classes
from corewise.machine.machine_model import Allocation
from corewise.machine.placement import PlacementError, PlacementProblem
from corewise.machine.topology import format_cpu_list, read_topology
from corewise.measured.parameters import TrialParameters

# What to do about ranks that cannot be placed.
PLACEMENT_REMEDIES = {
    PlacementProblem.ALLOCATION: "Use fewer processes or threads, or --oversubscribe.",
    PlacementProblem.NODE: "Use fewer processes or threads, --policy compact, or --oversubscribe.",
    PlacementProblem.GPU_NODE: "Use fewer processes or threads, or --policy compact.",
    PlacementProblem.GPU: "Choose another --policy, for example compact.",
    PlacementProblem.RESERVED: "Pass a smaller number to --reserved-cores.",
    PlacementProblem.VALUE: "`corewise launch --help` lists the values of each option.",
}


def start_launch(request: LaunchRequest) -> int:
    """Run the command as requested and return the exit code of the launch."""
    node, topology = ONE_NODE, read_topology()
    if request.node_of:
        # Only the process of a node pays for this import.
        from corewise.cli.launching.node_process import prepare_node, read_share

        request, node = prepare_node(request)
        allocation = read_share(topology, node)
    else:
        allocation = read_allocation(topology)
    program = find_program(request.command[0], os.environ.get("PATH", os.defpath))
    settings = resolve_settings(request, program, topology, allocation)
    around = LaunchContext(topology=topology, cpus=allocation.cpus, libraries=settings.libraries, env=dict(os.environ))
    manner = LaunchPolicy(
        grace_s=request.grace_s,
        prefix=request.prefix,
        log_dir=request.log_dir,
        verify=request.verify,
        allocation=allocation.cpus,
    )
    with ExitStack() as stack:
        port = _hold_port(request, settings, stack, node)
        starts = _plan_starts(request, settings, around, port, manner, allocation, node)
        if settings.environment_note:
            print_message(settings.environment_note)
        if request.dry_run:
            # Byte for byte, whatever the encoding.
            sys.stdout.buffer.writelines(os.fsencode(f"{format_start_line(start, around.env)}\n") for start in starts)
            return 0
        notes = [*settings.notes, *_prepare_files(request, [start.rank for start in starts])]
        cores_note = describe_core_classes(topology, around.cpus, [start.placement for start in starts])
        notes += [cores_note] if cores_note else []
        # The nodes of a launch are joined on purpose.
        if not request.node_of:
            notes += list_slurm_notes(
                around.env, read_hostname(), num_cpus=len(around.cpus), has_rendezvous=port is not None
            )
        notes += describe_overrides(find_changed_variables(starts[0], around.env), request.environment)
        # Every node would repeat the notes of the first one.
        if not request.quiet and node.node_rank == 0:
            for note in notes:
                print_message(note)
        on_terminal = len(starts) == 1 and os.isatty(0)
        try:
            return run_guarded(
                lambda guard: _supervise(request, settings, starts, program, manner, guard, on_terminal),
                on_terminal=on_terminal,
            )
        except BlockingIOError as problem:
            # The limit of processes is reached.
            raise build_start_error(0, problem) from None


def _hold_port(
    request: LaunchRequest, settings: LaunchSettings, stack: ExitStack, node: NodeShare = ONE_NODE
) -> int | None:
    """Hold the port of the rendezvous for the ranks; None if they need none."""
    wanted = request.rendezvous
    if wanted is None:
        # One process runs as under plain `python`: scripts that find RANK start distributed training.
        asked = settings.params["processes"] > 1 or request.master_port != 0
        # An outer launcher may have set the variables for this process already.
        placed = settings.params["processes"] == 1 and has_rendezvous(os.environ)
        wanted = asked and not placed and not settings.independent
    if not wanted:
        return None
    # Rank 0 opens the port on the first node.
    if node.node_rank > 0:
        return request.master_port
    try:
        return stack.enter_context(reserve_port(request.master_port))
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UserError(f"--master-port {request.master_port}: {reason}; leave it out to use a free port") from None


def _plan_starts(
    request: LaunchRequest,
    settings: LaunchSettings,
    around: LaunchContext,
    port: int | None,
    manner: LaunchPolicy,
    allocation: Allocation,
    node: NodeShare = ONE_NODE,
) -> tuple[RankStart, ...]:
    num_processes = int(settings.params["processes"])
    try:
        return plan_ranks(
            TrialParameters.from_mapping(settings.params),
            request.command,
            around,
            extra=settings.environment,
            port=port,
            keep_env=request.keep_env,
            unbuffered=manner.uses_relay(num_processes),
            node=node,
        )
    except PlacementError as problem:
        limits = "".join(f"\n  {limit.detail}" for limit in allocation.limits if limit.source != "memory")
        raise UserError(
            f"{problem}.\nThe allocation: {allocation.num_cores} core{'s' * (allocation.num_cores > 1)}, "
            f"CPUs {format_cpu_list(allocation.cpus)}{limits}\n{PLACEMENT_REMEDIES[problem.problem]}"
        ) from None


def _was_ended(outcome: LaunchOutcome) -> bool:
    """Return whether the processes of this node ended because the launcher asked them to."""
    if outcome.first_failed is None:
        return bool(outcome.end_signal)
    # Slurm signals all processes of a step at once, and a rank may end before this process notices.
    return outcome.first_failed.killed_by == "SIGTERM"


def _prepare_files(request: LaunchRequest, ranks: Sequence[int]) -> list[str]:
    """Check before the start that all files can be written; return notes on older logs that were moved."""
    notes = []
    if request.json is not None and not can_write_outcome(request.json):
        raise UserError(f"--json {request.json}: no file can be written there; choose another path")
    if request.log_dir is not None:
        try:
            request.log_dir.mkdir(parents=True, exist_ok=True)
            aside = move_old_logs(request.log_dir)
            for rank in ranks:
                build_log_path(request.log_dir, rank).open("ab").close()
        except OSError as problem:
            raise UserError(f"--log-dir {request.log_dir}: {problem.strerror}; choose another") from None
        if aside is not None:
            notes.append(f"moved the logs of an earlier launch to {aside}")
    return notes


def _supervise(
    request: LaunchRequest,
    settings: LaunchSettings,
    starts: Sequence[RankStart],
    program: str,
    manner: LaunchPolicy,
    guard: SignalSetup,
    on_terminal: bool,
) -> int:
    try:
        outcome = supervise(starts, program, manner, guard, on_terminal=on_terminal)
    except StartError as problem:
        print_message(str(problem))
        return problem.code
    # The launcher ends the other nodes when one fails. Its own code is the highest of all nodes, and should be that
    # of the failure.
    if request.node_of and _was_ended(outcome):
        return SOME_FAILED
    for line in describe_outcome(outcome, manner, quiet=request.quiet):
        print_message(line)
    if request.json is not None:
        try:
            write_outcome(request.json, outcome_to_json(outcome, starts, settings.params))
        except OSError as problem:
            print_message(f"{request.json} cannot be written: {problem.strerror}")
            return outcome.code or SOME_FAILED
    return outcome.code
