"""The package lists and provides its public names."""

import subprocess
import sys

import corewise


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    names = {name for name in dir(corewise) if not name.startswith("__")}
    assert names == set(corewise.__all__)
    assert {"malleable", "freeze", "tune", "report_progress"} <= names
    assert "__version__" in dir(corewise)


def test_every_listed_name_exists() -> None:
    for name in corewise.__all__:
        public = getattr(corewise, name)
        assert callable(public) or public.__all__


def test_listing_the_names_imports_no_framework() -> None:
    code = "import sys, corewise; dir(corewise); assert not {'torch', 'numpy', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
