"""The options of `corewise tune`, each with its help; `corewise.tune` takes the same by the same names."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Subject = Annotated[
    list[str],
    Argument(metavar="SUBJECT", help="A workload, your own code as FILE.py:FUNCTION, or -- and a command."),
]
Mode = Annotated[str, Option("--mode", metavar="train|infer", help="What it does.")]
Budget = Annotated[
    str,
    Option(
        "--budget",
        metavar="TIME",
        help="Time for all of it, about: 10m, 90s, 1h30m. The last runs may overrun a short one.",
    ),
]
Batch = Annotated[int | None, Option("--batch", metavar="N", help="Samples per step, over all processes.")]
Allow = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="CLASS",
        help="Knobs that change numbers: lower-precision, batch-statistics, batch; may be repeated.",
    ),
]
Fixed = Annotated[
    list[str] | None, Option("--set", metavar="AXIS=VALUE", help="Fix a knob; may be repeated.")
]
Args = Annotated[
    list[str] | None,
    Option("--args", metavar="NAME=VALUE", help="A parameter of the workload; may be repeated."),
]
Store = Annotated[Path, Option("--store", metavar="DIR", help="Where records are kept.")]
Output = Annotated[Path, Option("-o", "--output", metavar="FILE", help="Where the settings go.")]
Report = Annotated[
    Path | None, Option("--report", metavar="FILE", help="Write a page with the ladder as a chart, too.")
]
Runtime = Annotated[str, Option("--runtime", metavar="NAME", help="torch, numpy, jax or tensorflow.")]
Python = Annotated[str | None, Option("--python", metavar="PATH", help="The interpreter that runs it.")]
Throughput = Annotated[
    str | None,
    Option("--throughput", metavar="REGEX", help="Of a script: how it prints its rate, as in '{} img/s'."),
]
Check = Annotated[
    str | None,
    Option(
        "--check",
        metavar="REGEX",
        help="Of a script: a number it prints, as in 'loss {}', that must be as the default's.",
    ),
]
Distributed = Annotated[
    bool, Option("--distributed", help="Of a script: several processes; needs {batch_per_rank}.")
]
Again = Annotated[bool, Option("--again", help="Forget what an earlier call found for this question.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object for scripts.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress.")]
