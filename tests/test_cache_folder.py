"""The cache is a folder that only its user can change; otherwise a private one replaces it, and that is said."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.cache_folder import SHARED_BUILDS_VARIABLE, find_cache_folder, find_shared_builds, open_cache_folder

GiveAway = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def block_by_file(home: Path) -> None:
    home.write_text("a file, not a folder")


def let_others_write(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)


def let_others_write_inside(home: Path) -> None:
    (home / "corewise/native").mkdir(parents=True)
    (home / "corewise/native").chmod(0o777)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077], ids=oct)
def test_a_new_cache_is_private_whatever_the_umask(home: Path, umask: int, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(umask)
    try:
        assert open_cache_folder("native/key") == home / "corewise/native/key"
    finally:
        os.umask(before)
    folders = [home, *home.rglob("*")]
    assert len(folders) == 4
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert caplog.text == ""


@pytest.mark.parametrize("spoil", [block_by_file, let_others_write, let_others_write_inside])
def test_a_cache_that_cannot_be_used_is_replaced_by_a_private_one_and_named_once(
    home: Path, temporary: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(home)
    folder = open_cache_folder("native")
    assert folder.parent.parent == temporary
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    # Later calls and processes find the same folder, so nothing is built twice.
    assert open_cache_folder("native") == folder
    assert open_cache_folder("native/key") == folder / "key"
    [record] = caplog.records
    assert f"the cache {home}/corewise is not used: " in record.message
    assert str(folder.parent) in record.message
    assert "XDG_CACHE_HOME" in record.message


def test_a_folder_that_someone_else_has_prepared_is_not_used(home: Path, temporary: Path, give_away: GiveAway) -> None:
    block_by_file(home)
    prefix = f"corewise-cache-{os.geteuid()}-"
    for name in ("0", "1", "2"):
        (temporary / f"{prefix}{name}").mkdir()
        give_away(temporary / f"{prefix}{name}", 0o755)
    target = temporary / "target"
    target.mkdir(mode=0o700)
    (temporary / f"{prefix}3").symlink_to(target)
    give_away(temporary / f"{prefix}3")
    folder = open_cache_folder()
    assert folder.name.startswith(prefix)
    assert folder.stat().st_uid == os.geteuid()
    assert folder.name.removeprefix(prefix) not in ("0", "1", "2", "3")


def test_a_predictable_folder_of_someone_else_is_not_used_without_a_home(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, give_away: GiveAway
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    planted = find_cache_folder()
    assert planted.parent == temporary
    planted.mkdir()
    give_away(planted)
    assert open_cache_folder() != planted


def test_a_shared_folder_is_used_unless_someone_else_can_change_it(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, give_away: GiveAway, caplog: pytest.LogCaptureFixture
) -> None:
    shared = temporary / "shared"
    shared.mkdir()
    monkeypatch.setenv(SHARED_BUILDS_VARIABLE, str(shared))
    assert find_shared_builds() == shared
    give_away(shared, 0o755)
    assert find_shared_builds() is None
    assert f"{SHARED_BUILDS_VARIABLE} is not used: {shared} belongs to uid 65534" in caplog.text
