"""Requirements of wheels are evaluated for the target, not for this machine."""

from pathlib import Path

import pytest
from bundling import make_wheel

from corewise.bundle.target import Target
from corewise.bundle.wheels import find_needed_glibc, read_wheels, resolve_closure

OTHER = Target("3.40", "aarch64", (2, 28))


def test_only_requirements_of_the_target_are_reached(tmp_path: Path) -> None:
    requires = ('new; python_version >= "3.40"', 'old; python_version < "3.40"', 'x86; platform_machine == "x86_64"')
    make_wheel(tmp_path, "alpha", "1.0", requires)
    for name in ("new", "old", "x86"):
        make_wheel(tmp_path, name, "1.0")
    assert resolve_closure(["alpha"], read_wheels(tmp_path), OTHER).reached == {"alpha", "new"}


def test_missing_requirements_are_named_with_the_package_that_needs_them(tmp_path: Path) -> None:
    make_wheel(tmp_path, "alpha", "1.0", ("Beta_Lib>=2", "gamma"))
    make_wheel(tmp_path, "beta_lib", "1.5")
    found = resolve_closure(["alpha"], read_wheels(tmp_path), OTHER)
    assert dict(found.missing) == {"Beta_Lib>=2": "alpha", "gamma": "alpha"}


def test_extras_are_followed_and_cycles_end(tmp_path: Path) -> None:
    make_wheel(tmp_path, "alpha", "1.0", ("beta[fast]",))
    make_wheel(tmp_path, "beta", "1.0", ('gamma; extra == "fast"', 'delta; extra == "slow"', "alpha"))
    make_wheel(tmp_path, "gamma", "1.0")
    found = resolve_closure(["alpha"], read_wheels(tmp_path), OTHER)
    assert found.reached == {"alpha", "beta", "gamma"}
    assert not found.missing


def test_packages_left_out_are_neither_reached_nor_missing(tmp_path: Path) -> None:
    make_wheel(tmp_path, "alpha", "1.0", ("heavy", "absent"))
    make_wheel(tmp_path, "heavy", "1.0", ("more",))
    found = resolve_closure(["alpha"], read_wheels(tmp_path), OTHER, frozenset({"heavy", "absent"}))
    assert (found.reached, found.missing) == (frozenset({"alpha"}), ())


@pytest.mark.parametrize(
    ("tags", "glibc"),
    [
        (["py3-none-any"], (2, 0)),
        (["py3-none-any", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64"], (2, 17)),
        (["cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64"], (2, 17)),
        (["cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64", "cp312-cp312-manylinux2010_x86_64"], (2, 27)),
        (["cp312-cp312-linux_x86_64"], (2, 34)),
    ],
)
def test_the_needed_glibc_is_the_oldest_that_all_wheels_run_with(tags: list[str], glibc: tuple[int, int]) -> None:
    names = [f"name{i}-1.0-{tag}.whl" for i, tag in enumerate(tags)]
    assert find_needed_glibc(names, Target("3.12", "x86_64", (2, 34))) == glibc
