"""Parsing the target of a bundle, and the wheel tags that it accepts."""

import sys

import pytest

from corewise.bundle.target import DEFAULT_GLIBC, Target, parse_target
from corewise.errors import UserError


def test_by_default_the_target_is_this_machine_and_the_glibc_of_rhel_8() -> None:
    target = parse_target(None, "x86_64", None)
    assert target == Target(f"3.{sys.version_info.minor}", "x86_64", DEFAULT_GLIBC)


@pytest.mark.parametrize("text", ["3.12", "3.12.3", "python3.12", " 3.12 "])
def test_a_python_is_known_by_its_minor_version(text: str) -> None:
    assert parse_target(text, "x86_64", None).python == "3.12"


@pytest.mark.parametrize(("text", "machine"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("AArch64", "aarch64")])
def test_a_processor_has_other_names(text: str, machine: str) -> None:
    assert parse_target("3.12", text, None).machine == machine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("twelve", None, None), "--python 'twelve' is not a version of Python"),
        (("2.7", None, None), "--python '2.7'"),
        (("3.12", "x86_46", None), "did you mean 'x86_64'"),
        (("3.12", "x86_64", "3"), "--glibc '3' is not a version of glibc"),
    ],
)
def test_invalid_options_are_reported(options: tuple[str, str | None, str | None], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_target(*options)


def test_a_machine_accepts_wheels_for_its_glibc_and_older_the_newest_first() -> None:
    tags = Target("3.12", "x86_64", (2, 17)).platform_tags
    assert tags[:3] == ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64")
    assert tags[-3:] == ("manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64")


def test_no_wheel_for_arm_is_older_than_glibc_2_17() -> None:
    tags = Target("3.12", "aarch64", (2, 28)).platform_tags
    assert tags[0] == "manylinux_2_28_aarch64"
    assert tags[-3:] == ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64")
