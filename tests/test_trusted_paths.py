"""Code is run or loaded only from paths that no other user can change."""

import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from corewise import trusted_paths
from corewise.trusted_paths import create_private_folder, explain_distrust

STRANGER = 65534
INSTALLER = 4711
Need = Callable[[bool, str], None]


@pytest.fixture
def place(tmp_path: Path, give_away: Callable[..., Path]) -> Path:
    """Provide a folder with files, folders and links of this user and of another one."""
    for name in ("own", "sticky", "open", "group", "strangers"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "code").touch(mode=0o644)
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "group").chmod(0o775)
    os.chown(tmp_path / "group", 0, STRANGER)
    (tmp_path / "own/open").touch()
    (tmp_path / "own/open").chmod(0o646)
    (tmp_path / "own/private-group").touch()
    (tmp_path / "own/private-group").chmod(0o664)
    give_away(tmp_path / "strangers", 0o755)
    for name in ("own/planted", "sticky/planted"):
        (tmp_path / name).touch()
        give_away(tmp_path / name, 0o644)
    links = {
        "own/link": "code",
        "own/chain": "link",
        "own/to-planted": "planted",
        "own/by-open": f"{tmp_path}/open/code",
        "own/by-parent": "../strangers/../own/code",
        "own/loop": "loop",
        "own/nowhere": "missing",
        "sticky/planted-link": f"{tmp_path}/own/code",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    give_away(tmp_path / "sticky/planted-link")
    return tmp_path


IN_CONTAINER = """
folder = create_private_folder("test-")
code = os.path.join(folder, "code")
open(code, "w").close()
print([explain_distrust(path) for path in (code, "/etc/passwd")])
os.remove(code)
os.rmdir(folder)
"""
CASES: Mapping[str, str] = {
    "own/code": "",
    "own": "",
    "own/private-group": "",
    "own/../own/./code": "",
    "own/link": "",
    "own/chain": "",
    "sticky/code": "",
    "own/open": "everyone can write to {place}/own/open",
    "open/code": "everyone can write to {place}/open",
    # Entries of a sticky folder can be safe; the folder itself is no place for code.
    "sticky": "everyone can write to {place}/sticky",
    "group/code": "group {group} can write to {place}/group",
    "own/planted": "{place}/own/planted belongs to uid 65534",
    "strangers/code": "{place}/strangers belongs to uid 65534",
    "sticky/planted": "{place}/sticky/planted belongs to uid 65534",
    "sticky/planted-link": "{place}/sticky/planted-link belongs to uid 65534",
    "own/to-planted": "{place}/own/planted belongs to uid 65534",
    "own/by-open": "everyone can write to {place}/open",
    "own/by-parent": "{place}/strangers belongs to uid 65534",
    "own/loop": "{place}/own/loop cannot be examined: Too many levels of symbolic links",
    "own/nowhere": "{place}/own/missing cannot be examined: No such file or directory",
    "own/code/below": "{place}/own/code/below cannot be examined: Not a directory",
}


@pytest.mark.parametrize("name", CASES)
def test_a_path_is_trusted_only_if_nobody_else_can_change_it(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = CASES[name].format(place=place, group=trusted_paths._name_group(STRANGER).removeprefix("group "))
    found = explain_distrust(f"{place}/{name}")
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
    monkeypatch.chdir(place)
    assert explain_distrust(name) == found


def test_an_owner_without_a_name_is_explained(place: Path) -> None:
    assert "nobody: a user whom this machine cannot name, as in containers" in explain_distrust(place / "own/planted")


def test_who_installed_the_running_python_is_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.chown(place / "own/planted", INSTALLER, INSTALLER)
    assert "belongs to uid 4711" in explain_distrust(place / "own/planted")
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    os.chown(prefix, INSTALLER, INSTALLER)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert explain_distrust(place / "own/planted") == ""
    # Nobody is not a person who installs.
    for path in (prefix, place / "own/planted"):
        os.chown(path, STRANGER, STRANGER)
    assert "belongs to uid 65534" in explain_distrust(place / "own/planted")


def test_an_access_list_for_another_user_is_noticed(place: Path, need: Need) -> None:
    """The mask of the list looks like write access of our own group, which alone is harmless."""
    path = place / "own/private-group"
    entries = [(1, 6, -1), (2, 6, STRANGER), (4, 4, -1), (16, 6, -1), (32, 0, -1)]
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", content)
    except OSError as problem:
        need(problem.errno != errno.EOPNOTSUPP, "a file system with access-control lists")
        raise
    assert "can write to" in explain_distrust(path)


def test_in_a_container_of_an_ordinary_user_only_own_files_are_trusted(need: Need) -> None:
    """There, the system's root has no number, and its folders belong to nobody like those of all strangers."""
    python = shutil.which("python3", path=os.defpath)
    needed = [python, shutil.which("setpriv"), shutil.which("unshare")]
    need(os.geteuid() == 0 and None not in needed, "root, the system's Python, setpriv and unshare")
    source = Path(trusted_paths.__file__).read_text()
    source += IN_CONTAINER
    command = ["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "unshare", "--user", "--map-current-user"]
    done = subprocess.run(
        [*command, str(python), "-I", "-"], input=source, capture_output=True, text=True, cwd="/", env={}
    )
    need("unshare failed" not in done.stderr, "user namespaces")
    assert done.stdout.startswith("['', '/etc/passwd belongs to uid 65534"), done.stderr


def test_a_private_folder_avoids_a_temporary_folder_that_others_can_rearrange(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Path(create_private_folder("cw-"))
    assert (first.parent, first.stat().st_mode & 0o777) == (temporary, 0o700)
    # Without the sticky bit, everyone can rename the folders of others.
    temporary.chmod(0o777)
    second = Path(create_private_folder("cw-"))
    try:
        assert second.parent != temporary
        assert explain_distrust(second) == ""
        assert f"everyone can write to {temporary}" in caplog.text
        assert os.listdir(temporary) == [first.name]
    finally:
        second.rmdir()


def test_without_a_safe_temporary_folder_there_is_an_error_that_says_why(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_paths, "_OTHER_TEMPORARY_FOLDERS", ())
    temporary.chmod(0o777)
    with pytest.raises(OSError, match=f"everyone can write to {temporary}.*set TMPDIR"):
        create_private_folder("cw-")
