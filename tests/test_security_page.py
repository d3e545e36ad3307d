"""docs/security.md lists every place that runs files, trusts a cache, or rebuilds objects from bytes."""

import re
from pathlib import Path

import corewise

PACKAGE = Path(corewise.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "security.md"
# The two modules that state and apply the rule.
MECHANISM = {"cache_folder.py", "trusted_paths.py"}
SENSITIVE = re.compile(
    r"open_cache_folder|is_trusted_file|create_private_folder|create_own_folder|spec_from_file_location"
    r"|pickle\.loads|\bexec\(|CDLL\((?!None)|sys\.executable, \"-|TORCHINDUCTOR_CACHE_DIR"
)


def test_every_sensitive_place_has_a_verdict() -> None:
    table = PAGE.read_text().partition("## Places that load code or trust a cache")[2].partition("\n## ")[0]
    listed = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    paths = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if SENSITIVE.search(path.read_text())]
    assert len(paths) > 10
    assert [path for path in paths if path not in MECHANISM and not path.startswith(tuple(listed))] == []
    assert [name for name in listed if not (PACKAGE / name).exists()] == []
