"""`corewise tune SUBJECT`: the fastest correct way to run it here, and the command to type."""

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from corewise.cli.exit_codes import INTERRUPTED


def tune(
    subject: Annotated[
        list[str],
        typer.Argument(
            metavar="SUBJECT", help="A workload, your own code as FILE.py:FUNCTION, or -- and a command."
        ),
    ],
    mode: Annotated[str, typer.Option("--mode", metavar="train|infer", help="What it does.")] = "infer",
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Time for all of it: 10m, 90s, 1h30m.")
    ] = "10m",
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Samples per step, over all processes.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="CLASS",
            help="Knobs that change numbers: lower-precision, batch-statistics, batch.",
        ),
    ] = None,
    fixed: Annotated[
        list[str] | None, typer.Option("--set", metavar="AXIS=VALUE", help="Fix a knob; it is not varied.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Option("--args", metavar="NAME=VALUE", help="A parameter of the workload.")
    ] = None,
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records are kept.")] = Path(
        "corewise-store"
    ),
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the settings go.")
    ] = Path("tuned.yaml"),
    runtime: Annotated[str, typer.Option("--runtime", metavar="NAME", help="torch or numpy.")] = "torch",
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The interpreter that runs it.")
    ] = None,
    throughput: Annotated[
        str | None,
        typer.Option(
            "--throughput", metavar="REGEX", help="Of a script: how it prints its rate, as in '{} img/s'."
        ),
    ] = None,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="Of a script: several processes; needs {batch_per_rank}."),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Forget what an earlier call found for this question.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Search the fastest settings whose numbers stay the same, and confirm them by fresh runs.

    The stock default is what plain `python` does: one process, all cores, nothing pinned. The same command
    goes on where an interrupted one stopped. Exit codes: 0 done, 2 a mistake in the command, 130 interrupted.

    Examples:

      corewise tune resnet50 --mode train --budget 10m

      corewise tune my.py:make --batch 32 --output tuned.yaml

      corewise tune resnet18 --args image_size=128 --set memory_format=channels_last --json

      corewise tune resnet50 --allow lower-precision --budget 15m

      corewise tune --throughput '{} img/s' -- python train.py --epochs 1
    """
    from corewise.cli.tune_progress import make_follower
    from corewise.tuner.api import tune as find_best
    from corewise.tuner.question import read_assignments
    from corewise.tuner.session import Interrupted

    signal.signal(signal.SIGTERM, _interrupt)
    code = 0
    with make_follower(quiet=quiet or as_json) as follower:
        try:
            result = find_best(
                subject if len(subject) > 1 or "--" in sys.argv else subject[0],
                mode=mode,
                budget=budget,
                batch=batch,
                allow=allow or [],
                fixed=read_assignments(fixed or [], "--set"),
                args=read_assignments(args or [], "--args"),
                store=store,
                output=output,
                python=python,
                runtime=runtime,
                throughput=throughput,
                distributed=distributed,
                again=again,
                follower=follower,
            )
        except Interrupted as stopped:
            result, code = stopped.result, INTERRUPTED
    print(json.dumps(result.to_json()) if as_json else result)
    if code:
        print(
            f"\ncorewise: stopped; what was found is in {store}. The same command goes on.", file=sys.stderr
        )
        raise typer.Exit(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
