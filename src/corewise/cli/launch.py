"""`corewise launch [OPTIONS] -- COMMAND`: start a command as pinned processes and leave none behind."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from corewise.cli.launching import options
from corewise.cli.process.interrupts import compute_exit_code
from corewise.errors import UserError, suggest_nearest
from corewise.study.axes import AXES

if TYPE_CHECKING:
    from corewise.cli.launching.settings import LaunchRequest


def launch(
    command: options.Command = None,
    processes: options.Processes = None,
    threads: options.Threads = None,
    policy: options.Policy = None,
    smt: options.Smt = None,
    bind: options.Bind = None,
    memory_policy: options.MemoryPolicy = None,
    reserved_cores: options.ReservedCores = None,
    oversubscribe: options.Oversubscribe = None,
    allocator: options.Allocator = None,
    openmp: options.Openmp = None,
    wait_policy: options.WaitPolicy = None,
    huge_pages: options.HugePages = None,
    env: options.Env = None,
    keep_env: options.KeepEnv = False,
    rendezvous: options.Rendezvous = None,
    master_port: options.MasterPort = 0,
    nodes: options.Nodes = None,
    launcher: options.Launcher = "",
    hostfile: options.Hostfile = None,
    node_of: options.NodeOf = "",
    config: options.Config = None,
    adapt: options.Adapt = False,
    trust_environment: options.TrustEnvironment = False,
    no_prefix: options.NoPrefix = False,
    log_dir: options.LogDir = None,
    grace: options.Grace = "10s",
    verify: options.Verify = False,
    json: options.Json = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Start a command as processes pinned to their share of the allocation.

    Exit codes: that of the process that failed first (128 + n if signal n killed it); 0 if all succeeded;
    1 if --verify found a thread outside its CPUs or a log is incomplete; 2 for a mistake in this command;
    126 and 127 as in shells. docs/launching.md has the details.

    Examples:

      corewise launch --processes 4 --threads 4 -- python train.py --epochs 1

      corewise launch --config tuned.yaml -- python train.py

      corewise launch --config theirs.yaml --trust-environment -- python train.py

      corewise launch --threads 8 --allocator tcmalloc --verify -- python infer.py

      corewise launch --processes 8 --threads 2 --replicas --log-dir logs -- ./serve --port 80

      corewise launch --processes 2 --dry-run -- python train.py

      corewise launch --nodes 4 --processes 2 -- python train.py

      corewise launch --nodes 2 --hostfile hosts --launcher mpirun -- python train.py
    """
    from corewise.cli.launching.settings import LaunchRequest
    from corewise.launch.supervision.front_process import print_message
    from corewise.launch.supervision.rank_start import StartError
    from corewise.study.durations import parse_duration_s

    params = {
        "processes": processes,
        "threads": threads,
        "placement": policy,
        "smt": smt,
        "bind": bind,
        "memory_policy": memory_policy,
        "reserved_cores": reserved_cores,
        "oversubscribe": oversubscribe,
        "allocator": allocator,
        "openmp": openmp,
        "wait_policy": wait_policy,
        "huge_pages": huge_pages,
    }
    try:
        request = LaunchRequest(
            params=_check_choices(params),
            command=_require_command(command),
            environment=_parse_assignments(env or ()),
            config=config,
            adapt=adapt,
            trust_environment=trust_environment,
            rendezvous=rendezvous,
            master_port=master_port,
            keep_env=keep_env,
            prefix=not no_prefix,
            log_dir=_parse_folder(log_dir),
            grace_s=parse_duration_s(grace, "--grace", allow_zero=True),
            verify=verify,
            json=json,
            dry_run=dry_run,
            quiet=quiet,
            num_nodes=nodes,
            launcher=launcher,
            hostfile=hostfile,
            node_of=node_of,
        )
        code = _start(request)
    except StartError as problem:
        print_message(str(problem))
        code = problem.code
    except KeyboardInterrupt:
        code = compute_exit_code()
    raise typer.Exit(code)


def _start(request: "LaunchRequest") -> int:
    """Start the launch on this machine, or on several nodes."""
    if request.num_nodes is None and not request.launcher and request.hostfile is None:
        from corewise.cli.launching.start import start_launch

        return start_launch(request)
    from corewise.cli.launching.nodes import start_on_nodes

    return start_on_nodes(request)


def _check_choices(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given; raise a UserError for a value that its axis does not have."""
    given = {name: value for name, value in params.items() if value is not None}
    for name, value in given.items():
        choices = AXES[name].choices
        if choices and value not in choices:
            option = "policy" if name == "placement" else name.replace("_", "-")
            raise UserError(f"--{option}: unknown value {value!r}; {suggest_nearest(value, choices)}")
    return given


def _require_command(command: Sequence[str] | None) -> tuple[str, ...]:
    if not command:
        raise UserError("no command to launch; put it last, as in `corewise launch --threads 4 -- python train.py`")
    return tuple(command)


def _parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env: write NAME=VALUE, not {text!r}")
        variables[name] = value
    return variables


def _parse_folder(text: str | None) -> Path | None:
    if text == "":
        raise UserError("--log-dir: the name is empty; write . for the current folder")
    return None if text is None else Path(text)
