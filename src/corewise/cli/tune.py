"""`corewise tune SUBJECT`: the fastest correct way to run it here, and the command to type."""

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from corewise.cli import tune_options as options
from corewise.cli.drawing import require_drawing
from corewise.cli.exit_codes import INTERRUPTED

NOTHING_YET = "corewise: stopped before the default was measured: there is nothing to tell or to write yet"


def tune(
    subject: options.Subject,
    mode: options.Mode = "infer",
    budget: options.Budget = "10m",
    batch: options.Batch = None,
    allow: options.Allow = None,
    fixed: options.Fixed = None,
    args: options.Args = None,
    store: options.Store = Path("corewise-store"),
    output: options.Output = Path("tuned.yaml"),
    report: options.Report = None,
    runtime: options.Runtime = "torch",
    python: options.Python = None,
    throughput: options.Throughput = None,
    check: options.Check = None,
    distributed: options.Distributed = False,
    again: options.Again = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Search the fastest settings whose numbers stay the same, and confirm them by fresh runs.

    The stock default is what plain `python` does: one process, all cores, nothing pinned. The same command
    goes on where an interrupted one stopped. Exit codes: 0 done, 2 a mistake in the command, 130 interrupted.

    Examples:

      corewise tune resnet50 --mode train --budget 10m

      corewise tune my.py:make --batch 32 --output tuned.yaml

      corewise tune resnet18 --args image_size=128 --set memory_format=channels_last --json

      corewise tune resnet50 --allow lower-precision --budget 15m

      corewise tune --throughput '{} img/s' --check 'loss {}' -- python train.py --epochs 1

      corewise tune resnet50 --set device=cuda --mode train --report tuned.html
    """
    from corewise.cli.tune_progress import make_follower
    from corewise.tuner.api import tune as find_best
    from corewise.tuner.question import read_assignments
    from corewise.tuner.session import Interrupted

    if report is not None:
        require_drawing("--report")
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
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
                report=report,
                python=python,
                runtime=runtime,
                throughput=throughput,
                check=check,
                distributed=distributed,
                again=again,
                follower=follower,
            )
        except Interrupted as stopped:
            result, code = stopped.result, INTERRUPTED
        except KeyboardInterrupt:
            result, code = None, INTERRUPTED
    if result is None:
        print(NOTHING_YET, file=sys.stderr)
        raise typer.Exit(code)
    print(json.dumps(result.to_json()) if as_json else result)
    if code:
        print(
            f"\ncorewise: stopped; what was found is in {store}. The same command goes on.", file=sys.stderr
        )
        raise typer.Exit(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
