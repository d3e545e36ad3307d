import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine.sysfs_trees import Tree

from corewise.errors import UserError
from corewise.machine.software import LIBRARIES, find_install_hint, find_library, read_glibc_version, read_software


def test_nothing_is_found_in_an_empty_root(tree: Tree) -> None:
    assert [find_library(name, tree.root, env={}) for name in LIBRARIES] == [None] * len(LIBRARIES)


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib", "usr/local/lib", "lib64"])
def test_libraries_are_found_in_the_systems_folders(tree: Tree, folder: str) -> None:
    tree.write(f"{folder}/libjemalloc.so.2", "")
    assert find_library("jemalloc", tree.root, env={}) == tree.root / folder / "libjemalloc.so.2"


def test_the_multiarch_folder_of_this_processor_is_searched(tree: Tree) -> None:
    folder = f"usr/lib/{platform.machine()}-linux-gnu"
    tree.write("usr/lib/other-linux-gnu/libgomp.so.1", "")
    assert find_library("libgomp", tree.root, env={}) is None
    tree.write(f"{folder}/libgomp.so.1", "")
    assert find_library("libgomp", tree.root, env={}) == tree.root / folder / "libgomp.so.1"


def test_the_library_path_comes_before_the_system(tree: Tree) -> None:
    tree.write("usr/lib64/libtcmalloc_minimal.so.4", "").write("opt/gperf/lib/libtcmalloc.so.4", "")
    env = {"LD_LIBRARY_PATH": ":relative:/nowhere:/opt/gperf/lib"}
    assert find_library("tcmalloc", tree.root, env=env) == tree.root / "opt/gperf/lib/libtcmalloc.so.4"


def test_a_wheel_in_the_python_prefix_is_found(tree: Tree, tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib/libiomp5.so").write_bytes(b"\x7fELF\x02")
    assert find_library("libiomp5", tree.root, prefix, env={}) == prefix / "lib/libiomp5.so"


def test_a_32_bit_library_is_passed_over(tree: Tree) -> None:
    tree.add_folder("usr/lib")
    (tree.root / "usr/lib/libjemalloc.so.2").write_bytes(b"\x7fELF\x01\x01")
    assert find_library("jemalloc", tree.root, env={}) is None


def test_an_unknown_library_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'tcmalloc'"):
        find_library("tcmaloc")


def test_each_library_says_how_to_install_it() -> None:
    assert "libtcmalloc-minimal4" in find_install_hint("tcmalloc")
    assert "gperftools-libs" in find_install_hint("tcmalloc")
    assert find_install_hint("libiomp5") == "pip install intel-openmp"


def test_glibc_reports_its_version() -> None:
    stated = platform.libc_ver()
    assert stated[0] != "glibc" or read_glibc_version() == stated[1]


def test_software_lists_versions_without_importing_anything() -> None:
    program = (
        "import sys; from corewise.machine.software import read_software\n"
        "print(read_software().packages['numpy'])\n"
        "print(sorted({'torch', 'tensorflow', 'jax', 'numpy', 'mpi4py'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, loaded = answer.stdout.splitlines()
    assert version[0].isdigit()
    assert loaded == "[]"


def test_launchers_are_looked_up_on_the_path(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("bin/srun", "#!/bin/sh\n")
    os.chmod(tree.root / "bin/srun", 0o755)
    software = read_software(tree.root, env={"PATH": str(tree.root / "bin")})
    assert software.launchers["srun"] == str(tree.root / "bin/srun")
    assert software.libraries["tcmalloc"] is None
    assert software.packages["corewise"]
