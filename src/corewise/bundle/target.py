"""The machine that a bundle is made for: its Python, processor and C library."""

import platform
import re
import sys
from dataclasses import dataclass

from corewise.errors import UserError, suggest_nearest

# Processors that manylinux wheels exist for, each with the oldest glibc of its tags.
OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17, "ppc64le": 17, "s390x": 17, "riscv64": 31}
OLD_TAGS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
OTHER_NAMES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
# The glibc of RHEL 8: older than on current clusters, and new enough for all wheels that we need.
DEFAULT_GLIBC = (2, 28)


@dataclass(frozen=True)
class Target:
    """A Python (3.12), a processor (x86_64) and the oldest glibc that the wheels must run with."""

    python: str
    machine: str
    glibc: tuple[int, int] = DEFAULT_GLIBC

    @property
    def glibc_text(self) -> str:
        return f"{self.glibc[0]}.{self.glibc[1]}"

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine} with glibc {self.glibc_text}"

    @property
    def platform_tags(self) -> tuple[str, ...]:
        """The wheel tags that this machine accepts, newest first (PEP 600); local builds (linux_…) last."""
        tags = []
        for minor in range(self.glibc[1], OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in OLD_TAGS:
                tags.append(f"{OLD_TAGS[minor]}_{self.machine}")
        return (*tags, f"linux_{self.machine}")

    @property
    def marker_environment(self) -> dict[str, str]:
        """The values of environment markers such as `python_version` on that machine (PEP 508)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": "",
        }


def parse_target(python: str | None, machine: str | None, glibc: str | None) -> Target:
    """Parse the options of a command; None means as on this machine, and for glibc the default."""
    return Target(_parse_python(python), _parse_machine(machine), _parse_glibc(glibc))


def _parse_python(text: str | None) -> str:
    if text is None:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    match = re.fullmatch(r"(?:python)?(3\.\d+)(?:\.\d+)?", text.strip())
    if not match:
        raise UserError(f"--python {text!r} is not a version of Python: write it like 3.12")
    return match[1]


def _parse_machine(text: str | None) -> str:
    name = (text or platform.machine()).strip().lower()
    name = OTHER_NAMES.get(name, name)
    if name not in OLDEST_GLIBC:
        raise UserError(
            f"--platform {text or name!r} is not a processor that wheels are built for: "
            f"{suggest_nearest(name, OLDEST_GLIBC)}"
        )
    return name


def _parse_glibc(text: str | None) -> tuple[int, int]:
    if text is None:
        return DEFAULT_GLIBC
    match = re.fullmatch(r"2\.(\d{1,2})", text.strip())
    if not match:
        raise UserError(f"--glibc {text!r} is not a version of glibc: write it like 2.28 (see `ldd --version`)")
    return 2, int(match[1])
