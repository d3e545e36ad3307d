"""Which packages go into a bundle, and whose packages an installation sees."""

from typing import Any

import pytest

from corewise.bundle.contents import HOME_ONLY
from corewise.bundle.payload.install import Refused, parsed, shares_packages
from corewise.bundle.target import Target
from corewise.bundle.wishes import make_wishes
from corewise.spec.errors import UserError

TARGET = Target("3.12", "x86_64")
FULL: dict[str, Any] = {"worker_only": False, "frameworks": []}


def names(*frameworks: str, worker_only: bool = False) -> set[str]:
    return {root.lower() for root in make_wishes(TARGET, frameworks, worker_only).roots}


def test_by_default_no_framework_goes_along() -> None:
    assert not [name for name in names() if name.startswith(("torch", "tensorflow", "jax", "pillow"))]


def test_a_worker_goes_without_what_is_for_home() -> None:
    dropped = {name.partition(">")[0] for name in names() - names(worker_only=True)}
    assert dropped >= {"scipy", "duckdb", "altair", "vl-convert-python", "numpy"}
    assert dropped <= HOME_ONLY | {"numpy"}


def test_a_framework_brings_what_its_extra_names() -> None:
    assert names("torch") - names() == {"torch>=2.3", "pillow>=10"}


def test_a_version_of_a_framework_replaces_the_one_of_its_extra() -> None:
    assert names("torch==2.13.0") - names() == {"torch==2.13.0", "pillow>=10"}
    assert names("tensorflow==2.17") - names() == {"tensorflow==2.17"}


def test_any_other_package_goes_along_too() -> None:
    assert names("torchvision", "jax<1") - names() == {"torchvision", "jax<1"}


def test_what_is_asked_for_is_installed_with_corewise() -> None:
    own, *others = make_wishes(TARGET, ("torch",), False).install
    assert own.startswith("corewise==")
    assert sorted(map(str.lower, others)) == ["pillow>=10", "torch>=2.3"]


@pytest.mark.parametrize(
    ("frameworks", "worker_only", "complaint"),
    [(("=torch",), False, "is not a requirement"), (("torch",), True, "--worker-only brings no framework")],
)
def test_wishes_that_make_no_sense_are_told(
    frameworks: tuple[str, ...], worker_only: bool, complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        make_wishes(TARGET, frameworks, worker_only)


@pytest.mark.parametrize(
    ("words", "bundle", "here", "shares"),
    [
        ([], FULL, {"torch": "2.9", "numpy": "2.1"}, True),  # the centre's torch is to be measured
        ([], FULL, {"numpy": "2.1"}, False),
        ([], {**FULL, "frameworks": ["torch"]}, {"torch": "2.9"}, False),  # the bundle's torch is
        (["--isolated"], FULL, {"torch": "2.9"}, False),
        (["--system-site-packages"], FULL, {}, True),
        ([], {**FULL, "worker_only": True}, {"numpy": "2.1"}, True),
    ],
)
def test_an_installation_sees_the_packages_of_a_python_with_a_framework(
    words: list[str], bundle: dict[str, Any], here: dict[str, str], shares: bool
) -> None:
    assert shares_packages(parsed(words), bundle, here) is shares


def test_a_worker_cannot_be_isolated() -> None:
    with pytest.raises(Refused, match="brings no numpy"):
        shares_packages(parsed(["--isolated"]), {**FULL, "worker_only": True}, {"numpy": "2.1"})
