"""The packages of each runtime, and how to install a missing one."""

from collections.abc import Mapping
from dataclasses import dataclass

from corewise.run.machine_view import Interpreter


@dataclass(frozen=True)
class Framework:
    """The packages of a runtime.

    Attributes:
        install: The argument of `pip install`.
        related_packages: Other packages that affect its speed.
    """

    install: str
    related_packages: tuple[str, ...] = ()


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework("'corewise[torch]'"),
    "numpy": Framework("numpy"),
    "jax": Framework("'corewise[jax]'", ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin")),
    "tensorflow": Framework("'corewise[tensorflow]'"),
}


def list_framework_versions(runtime: str, interpreter: Interpreter) -> dict[str, str]:
    """List the versions of a runtime's packages; they are part of a trial's identity."""
    framework = FRAMEWORKS.get(runtime)
    names = (runtime, *(framework.related_packages if framework else ()))
    return {name: interpreter.packages.get(name, "absent") for name in names}


def suggest_install(runtime: str, interpreter: Interpreter) -> str:
    """Return the command that installs a missing framework; empty when it is installed.

    Runtimes of other packages check their requirements themselves.
    """
    framework = FRAMEWORKS.get(runtime)
    if framework is None or runtime in interpreter.packages:
        return ""
    return f"pip install {framework.install}"
