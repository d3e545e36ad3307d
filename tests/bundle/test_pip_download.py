"""pip fetches wheels for another machine, and its errors are explained."""

import platform
from pathlib import Path

import pytest
from bundling import make_source, make_wheel
from packaging.requirements import Requirement

from corewise.bundle.bundle_maker import BundleOrder, make_bundle
from corewise.bundle.pip_download import PackageSource, explain_failure, fetch_wheels
from corewise.bundle.requirements import resolve_requirements
from corewise.bundle.target import Target
from corewise.errors import UserError

ARM = Target("3.13", "aarch64", (2, 28))


@pytest.fixture
def house(tmp_path: Path, no_index: None) -> Path:
    return tmp_path / "house"


def fetch(house: Path, *requirements: str, target: Target = ARM, source: PackageSource | None = None) -> list[str]:
    folder = house.parent / "fetched"
    reported: list[str] = []
    fetch_wheels(requirements, folder, target, source or make_source(house), reported.append)
    assert reported
    return sorted(path.name for path in folder.glob("*.whl"))


def test_wheels_for_another_python_and_processor_are_chosen(house: Path) -> None:
    for tag in ("cp313-cp313-manylinux_2_17_aarch64", "cp313-cp313-manylinux_2_17_x86_64", "cp312-cp312-linux_aarch64"):
        make_wheel(house, "alpha", "1.0", tag=tag)
    # This wheel needs a newer glibc.
    make_wheel(house, "alpha", "2.0", tag="cp313-cp313-manylinux_2_34_aarch64")
    assert fetch(house, "alpha") == ["alpha-1.0-cp313-cp313-manylinux_2_17_aarch64.whl"]


def test_a_package_without_a_wheel_for_the_target_is_named(house: Path) -> None:
    make_wheel(house, "alpha", "1.0", ("beta>=2",))
    make_wheel(house, "beta", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    with pytest.raises(UserError, match=r"no wheel of beta\S* for Python 3.13 on aarch64 with glibc 2.28"):
        fetch(house, "alpha")


def test_conflicting_requirements_are_shown(house: Path) -> None:
    make_wheel(house, "alpha", "1.0", ("gamma==1",))
    make_wheel(house, "beta", "1.0", ("gamma==2",))
    for version in ("1.0", "2.0"):
        make_wheel(house, "gamma", version)
    with pytest.raises(UserError, match=r"(?s)requirements conflict.*gamma==1.*gamma==2"):
        fetch(house, "alpha", "beta")


def test_constraints_hold(house: Path) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(house, "gamma", version)
    constraints = house / "constraints.txt"
    constraints.write_text("gamma<2\n")
    source = PackageSource(find_links=(str(house),), constraints=constraints)
    assert fetch(house, "gamma", source=source) == ["gamma-1.0-py3-none-any.whl"]


def test_an_unreachable_index_is_not_reported_as_a_missing_wheel(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(UserError, match="index cannot be reached"):
        fetch(house, "alpha", source=PackageSource(index_url="http://127.0.0.1:9/simple"))


def test_a_full_disk_and_other_errors_are_reported() -> None:
    assert "disk is full" in str(explain_failure("ERROR: [Errno 28] No space left on device\n", ARM))
    assert "something else" in str(explain_failure("ERROR: something else\n", ARM))


def test_requirements_of_the_target_are_fetched_and_those_of_this_machine_dropped(house: Path) -> None:
    """pip evaluates `platform_machine` for the machine that it runs on, not for the target."""
    target = Target("3.13", "ppc64le" if platform.machine() == "aarch64" else "aarch64", (2, 28))
    requires = [
        f'{name}; platform_machine {sign} "{target.machine}"' for name, sign in (("there", "=="), ("here", "!="))
    ]
    make_wheel(house, "framework", "1.0", tuple(requires))
    own = [Requirement(root).name for root in resolve_requirements(target, (), False).roots]
    for name in (*own, "there", "here"):
        make_wheel(house, name.replace("-", "_"), "99.0")
    folder = house.parent / "bundle"
    order = BundleOrder(folder=folder, target=target, frameworks=("framework==1.0",), source=make_source(house))
    made = make_bundle(order, lambda text: None)
    names = {packed.name for packed in made.bundle.packages}
    assert {"framework", "there"} <= names
    assert "here" not in names
    assert made.bundle.install[1:] == ("framework==1.0",)
