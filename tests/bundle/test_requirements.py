"""The packages of a bundle, and which packages of the Python an installation uses."""

from typing import Any

import pytest

from corewise.bundle.contents import HOME_ONLY
from corewise.bundle.payload.install import InstallRefused, parse_options, should_share_packages
from corewise.bundle.requirements import resolve_requirements
from corewise.bundle.target import Target
from corewise.errors import UserError

TARGET = Target("3.12", "x86_64")
FULL: dict[str, Any] = {"worker_only": False, "frameworks": []}


def list_names(*frameworks: str, worker_only: bool = False) -> set[str]:
    return {root.lower() for root in resolve_requirements(TARGET, frameworks, worker_only).roots}


def test_by_default_no_framework_is_included() -> None:
    assert not [name for name in list_names() if name.startswith(("torch", "tensorflow", "jax", "pillow"))]


def test_a_worker_leaves_out_analysis_packages() -> None:
    dropped = {name.partition(">")[0] for name in list_names() - list_names(worker_only=True)}
    assert dropped >= {"scipy", "duckdb", "altair", "vl-convert-python", "numpy"}
    assert dropped <= HOME_ONLY | {"numpy"}


def test_a_framework_includes_the_packages_of_its_extra() -> None:
    assert list_names("torch") - list_names() == {"torch>=2.3", "pillow>=10"}


def test_a_version_of_a_framework_replaces_the_one_of_its_extra() -> None:
    assert list_names("torch==2.13.0") - list_names() == {"torch==2.13.0", "pillow>=10"}
    assert list_names("tensorflow==2.17") - list_names() == {"tensorflow==2.17"}


def test_any_other_package_can_be_included() -> None:
    assert list_names("torchvision", "jax<1") - list_names() == {"torchvision", "jax<1"}


def test_requested_packages_are_installed_with_corewise() -> None:
    own, *others = resolve_requirements(TARGET, ("torch",), False).install
    assert own.startswith("corewise==")
    assert sorted(map(str.lower, others)) == ["pillow>=10", "torch>=2.3"]


@pytest.mark.parametrize(
    ("frameworks", "worker_only", "message"),
    [(("=torch",), False, "is not a requirement"), (("torch",), True, "--worker-only includes no framework")],
)
def test_invalid_requests_are_reported(frameworks: tuple[str, ...], worker_only: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_requirements(TARGET, frameworks, worker_only)


@pytest.mark.parametrize(
    ("arguments", "bundle", "here", "shares"),
    [
        # The centre's torch is measured.
        ([], FULL, {"torch": "2.9", "numpy": "2.1"}, True),
        ([], FULL, {"numpy": "2.1"}, False),
        # The bundle's torch is measured.
        ([], {**FULL, "frameworks": ["torch"]}, {"torch": "2.9"}, False),
        (["--isolated"], FULL, {"torch": "2.9"}, False),
        (["--system-site-packages"], FULL, {}, True),
        ([], {**FULL, "worker_only": True}, {"numpy": "2.1"}, True),
    ],
)
def test_an_installation_uses_the_packages_of_a_python_with_a_framework(
    arguments: list[str], bundle: dict[str, Any], here: dict[str, str], shares: bool
) -> None:
    assert should_share_packages(parse_options(arguments), bundle, here) is shares


def test_a_worker_cannot_be_isolated() -> None:
    with pytest.raises(InstallRefused, match="contains no numpy"):
        should_share_packages(parse_options(["--isolated"]), {**FULL, "worker_only": True}, {"numpy": "2.1"})
