"""`corewise launch [OPTIONS] -- COMMAND`: start a command as pinned processes, and leave none behind."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from corewise.cli.exit_codes import INTERRUPTED, SOME_FAILED, USER_MISTAKE
from corewise.cli.launch_messages import outcome_lines, outcome_to_json, told_changes
from corewise.cli.launch_options import Request, read_words
from corewise.cli.launch_outcome_file import takes_outcome, write_outcome
from corewise.cli.launch_settings import Settings, read_settings
from corewise.launcher.front import Guard, open_standard_descriptors, run_guarded, say
from corewise.launcher.logs import log_file, set_aside_older
from corewise.launcher.outcome import Manner
from corewise.launcher.ranks import RankStart, Surroundings, changed_variables, plan_ranks, start_line
from corewise.launcher.rendezvous import has_rendezvous, held_port
from corewise.launcher.slurm_notes import slurm_notes
from corewise.launcher.starting import CannotStart, find_program, no_room
from corewise.launcher.supervise import supervise
from corewise.machine.allocation import read_allocation, read_hostname
from corewise.machine.model import Allocation
from corewise.machine.placement import Lack, PlacementError
from corewise.machine.topology import format_cpu_list, read_topology
from corewise.spec.errors import UserError

WAYS_OUT = {  # of ranks that cannot be placed
    Lack.ALLOCATION: "Use fewer processes or threads, or --oversubscribe.",
    Lack.NODE: "Use fewer processes or threads, --policy compact, or --oversubscribe.",
    Lack.GPU_NODE: "Use fewer processes or threads, or --policy compact.",
    Lack.GPU: "Choose another --policy, such as compact.",
    Lack.RESERVED: "Give --reserved-cores a smaller number.",
    Lack.VALUE: "`corewise launch --help` tells what each option takes.",
}


def main(words: Sequence[str]) -> int:
    """The exit code of a launch with these words."""
    open_standard_descriptors()
    try:
        return launch(read_words(words))
    except UserError as problem:
        say(str(problem))
        return USER_MISTAKE
    except CannotStart as problem:
        say(str(problem))
        return problem.code
    except KeyboardInterrupt:
        return INTERRUPTED


def launch(request: Request) -> int:
    """The exit code of what was asked for."""
    topology = read_topology()
    allocation = read_allocation(topology)
    program = find_program(request.command[0], os.environ.get("PATH", os.defpath))
    settings = read_settings(request, program, topology, allocation)
    around = Surroundings(
        topology=topology, cpus=allocation.cpus, libraries=settings.libraries, env=dict(os.environ)
    )
    manner = Manner(
        grace_s=request.grace_s,
        prefix=request.prefix,
        log_dir=request.log_dir,
        verify=request.verify,
        allocation=allocation.cpus,
    )
    with ExitStack() as stack:
        port = _port(request, settings, stack)
        starts = _starts(request, settings, around, port, manner, allocation)
        if request.dry_run:
            return _print_lines(start_line(start, around.env) for start in starts)
        notes = [*settings.notes, *_prepare_files(request, len(starts))]
        notes += slurm_notes(around.env, read_hostname(), num_cpus=len(around.cpus), meet=port is not None)
        notes += told_changes(changed_variables(starts[0], around.env), request.environment)
        if not request.quiet:
            for note in notes:
                say(note)
        on_terminal = len(starts) == 1 and os.isatty(0)
        try:
            return run_guarded(
                lambda guard: _supervised(request, settings, starts, program, manner, guard, on_terminal),
                on_terminal=on_terminal,
            )
        except BlockingIOError as problem:  # not one process more is allowed
            raise no_room(0, problem) from None


def _print_lines(lines: Iterable[str]) -> int:
    """0 once they are printed, byte for byte as they were given, to a reader that may leave early."""
    try:
        with suppress(BrokenPipeError), open(1, "wb", closefd=False) as out:
            out.writelines(os.fsencode(f"{line}\n") for line in lines)
    except OSError as problem:
        say(f"the standard output failed: {problem.strerror}")
        return SOME_FAILED
    return 0


def _port(request: Request, settings: Settings, stack: ExitStack) -> int | None:
    """The port where ranks meet, kept free for them; None when they need none."""
    wanted = request.rendezvous
    if wanted is None:
        asked = "processes" in request.params or settings.params["processes"] > 1 or request.master_port != 0
        placed = settings.params["processes"] == 1 and has_rendezvous(os.environ)  # by an outer launcher
        wanted = asked and not placed and not settings.independent
    if not wanted:
        return None
    try:
        return stack.enter_context(held_port(request.master_port))
    except (OSError, OverflowError) as problem:
        raise UserError(
            f"--master-port {request.master_port}: {problem}; leave it out for a free one"
        ) from None


def _starts(
    request: Request,
    settings: Settings,
    around: Surroundings,
    port: int | None,
    manner: Manner,
    allocation: Allocation,
) -> tuple[RankStart, ...]:
    num_processes = int(settings.params["processes"])
    try:
        return plan_ranks(
            settings.params,
            request.command,
            around,
            extra=settings.environment,
            port=port,
            keep_env=request.keep_env,
            unbuffered=manner.relays(num_processes),
        )
    except PlacementError as problem:
        limits = "".join(f"\n  {limit.detail}" for limit in allocation.limits if limit.source != "memory")
        raise UserError(
            f"{problem}.\nThe allocation: {allocation.num_cores} core{'s' * (allocation.num_cores > 1)}, "
            f"CPUs {format_cpu_list(allocation.cpus)}{limits}\n{WAYS_OUT[problem.lack]}"
        ) from None


def _prepare_files(request: Request, num_ranks: int) -> list[str]:
    """What the user should know of older files; what cannot be written is told before anything runs."""
    notes = []
    if request.json is not None and not takes_outcome(request.json):
        raise UserError(f"--json {request.json}: no file can be written there; name another")
    if request.log_dir is not None:
        try:
            request.log_dir.mkdir(parents=True, exist_ok=True)
            aside = set_aside_older(request.log_dir)
            for rank in range(num_ranks):
                log_file(request.log_dir, rank).open("ab").close()
        except OSError as problem:
            raise UserError(f"--log-dir {request.log_dir}: {problem.strerror}; name another folder") from None
        if aside is not None:
            notes.append(f"the logs of an older launch are now in {aside}")
    return notes


def _supervised(
    request: Request,
    settings: Settings,
    starts: Sequence[RankStart],
    program: str,
    manner: Manner,
    guard: Guard,
    on_terminal: bool,
) -> int:
    try:
        outcome = supervise(starts, program, manner, guard, on_terminal=on_terminal)
    except CannotStart as problem:
        say(str(problem))
        return problem.code
    for line in outcome_lines(outcome, manner, quiet=request.quiet):
        say(line)
    if request.json is not None:
        try:
            write_outcome(request.json, outcome_to_json(outcome, starts, settings.params))
        except OSError as problem:
            say(f"{request.json} cannot be written: {problem.strerror}")
            return outcome.code or SOME_FAILED
    return outcome.code
