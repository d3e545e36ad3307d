"""Which packages make a runtime, and what is missing of them for an interpreter."""

from collections.abc import Mapping
from dataclasses import dataclass

from corewise.engine.machine_view import Interpreter


@dataclass(frozen=True)
class Framework:
    """What a runtime is installed as."""

    install: str  # what follows `pip install`
    besides: tuple[str, ...] = ()  # packages that decide its speed too


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(
        "'corewise[torch]'",
    ),
    "numpy": Framework(
        "numpy",
    ),
    "jax": Framework("'corewise[jax]'", ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin")),
    "tensorflow": Framework("'corewise[tensorflow]'"),
}


def framework_versions(runtime: str, interpreter: Interpreter) -> dict[str, str]:
    """The versions of a runtime's packages; they are part of a trial's identity."""
    known = FRAMEWORKS.get(runtime)
    names = (runtime, *(known.besides if known else ()))
    return {name: interpreter.packages.get(name, "absent") for name in names}


def missing_framework(runtime: str, interpreter: Interpreter) -> str:
    """How to install a runtime's framework where the interpreter lacks it; empty where all is well.

    Another package's runtime knows itself what it needs.
    """
    known = FRAMEWORKS.get(runtime)
    if known is None or runtime in interpreter.packages:
        return ""
    return f"pip install {known.install}"
