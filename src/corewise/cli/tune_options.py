"""Options of `corewise tune`; the function `corewise.tune` takes the same by the same names."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Subject = Annotated[
    list[str], Argument(metavar="SUBJECT", help="A workload, your own code as FILE.py:FUNCTION, or a command after --.")
]
Mode = Annotated[str, Option("--mode", metavar="train|infer", help="Training or inference.")]
Budget = Annotated[
    str,
    Option(
        "--budget",
        metavar="TIME",
        help="Total time: 10m, 90s, 1h30m. A short one tries fewer settings and confirms with fewer runs.",
    ),
]
Batch = Annotated[int | None, Option("--batch", metavar="N", help="Samples per step over all processes.")]
Allow = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="CLASS",
        help="Allow settings that change results: lower-precision, batch-statistics, batch; may be repeated.",
    ),
]
Fixed = Annotated[list[str] | None, Option("--set", metavar="AXIS=VALUE", help="Fix a setting; may be repeated.")]
Args = Annotated[
    list[str] | None, Option("--args", metavar="NAME=VALUE", help="Set a parameter of the workload; may be repeated.")
]
Output = Annotated[Path, Option("-o", "--output", metavar="FILE", help="The file for the settings.")]
Report = Annotated[Path | None, Option("--report", metavar="FILE", help="Also write a page with a chart of the steps.")]
Runtime = Annotated[str, Option("--runtime", metavar="NAME", help="torch, numpy, jax or tensorflow.")]
Throughput = Annotated[
    str | None,
    Option("--throughput", metavar="REGEX", help="Scripts only: how the rate is printed, for example '{} img/s'."),
]
StepTime = Annotated[
    str | None,
    Option("--step-time", metavar="REGEX", help="Scripts only: how the time of a step is printed, as in 'time {}ms'."),
]
Check = Annotated[
    str | None,
    Option(
        "--check",
        metavar="REGEX",
        help="Scripts only: a printed value, for example 'loss {}', that must match the default run.",
    ),
]
Distributed = Annotated[
    bool, Option("--distributed", help="Scripts only: try several processes; needs {batch_per_rank}.")
]
Workdir = Annotated[
    str,
    Option(
        "--workdir",
        metavar="private|here|DIR",
        help="Scripts only: where starts run. private: each in a mirror of this folder, so that outputs do not "
        "collide; here: all in this folder; DIR: all there.",
    ),
]
Again = Annotated[bool, Option("--again", help="Discard earlier results for this question.")]
