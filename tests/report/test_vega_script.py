"""The script of charts is made once and read back only when it is whole."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise import trusted_paths
from corewise.report import vega_script as module
from corewise.report.vega_script import build_vega_script


@pytest.fixture
def num_made(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []

    def counted() -> str:
        made.append(1)
        return "draw();\r\n// ü\n"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_bundle_script", counted)
    return made


def test_the_script_is_built_once_and_cached_unchanged(num_made: list[int]) -> None:
    assert build_vega_script() == build_vega_script() == "draw();\r\n// ü\n"
    assert len(num_made) == 1


def test_a_damaged_file_is_rebuilt(num_made: list[int], tmp_path: Path) -> None:
    wanted = build_vega_script()
    [path] = (tmp_path / "cache" / "corewise").iterdir()
    for damage in (b"", b"\xff", path.read_bytes()[:-3]):
        path.write_bytes(damage)
        assert build_vega_script() == wanted
    assert len(num_made) == 4


def test_a_cache_that_cannot_be_written_does_no_harm(
    num_made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build_vega_script() == build_vega_script()
    assert len(num_made) == 1
    monkeypatch.setattr(trusted_paths, "_OTHER_TEMPORARY_FOLDERS", ())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert build_vega_script() == build_vega_script()
    assert len(num_made) == 3


def test_a_script_of_someone_else_is_not_put_into_pages(
    num_made: list[int], tmp_path: Path, give_away: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = build_vega_script()
    [path] = (tmp_path / "cache" / "corewise").iterdir()
    # The checksum is right: anyone can compute it.
    script = "steal(document);"
    path.write_text(f"{module._compute_digest(script)}\n{script}")
    give_away(path)
    assert build_vega_script() == wanted
    assert path.stat().st_uid == os.geteuid()
    assert f"{path} belongs to uid 65534" in caplog.text
    path.parent.chmod(0o777)
    path.write_text(f"{module._compute_digest(script)}\n{script}")
    assert build_vega_script() == wanted


def test_the_target_of_a_planted_link_stays_unchanged(
    num_made: list[int], tmp_path: Path, give_away: Callable[..., Path]
) -> None:
    wanted = build_vega_script()
    [path] = (tmp_path / "cache" / "corewise").iterdir()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path.unlink()
    path.symlink_to(precious)
    give_away(path)
    assert build_vega_script() == wanted
    assert precious.read_text() == "mine"
