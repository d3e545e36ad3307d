"""Options and arguments that several verbs share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

DEFAULT_STORE = Path("corewise-store")

StoreOption = Annotated[Path, Option("--store", metavar="DIR", help="The folder that holds the records.")]
StudyArgument = Annotated[str, Argument(help="A study file, or the name of a built-in study.")]
SetOption = Annotated[
    list[str] | None, Option("--set", metavar="AXIS=V1,V2", help="Override an axis or a fixed value; may be repeated.")
]
TrustEnvironmentOption = Annotated[
    bool, Option("--trust-environment", help="Accept variables of the file that can load code, such as PYTHONPATH.")
]
PythonOption = Annotated[str | None, Option("--python", metavar="PATH", help="The interpreter to run it with.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for scripts.")]
QuietOption = Annotated[bool, Option("--quiet", "-q", help="Do not print progress.")]
