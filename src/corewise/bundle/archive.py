"""A bundle as one file: equal folders give equal bytes."""

import tarfile
from pathlib import Path

from corewise.store.aside import written_aside


def write_archive(folder: Path, made_at_s: int) -> Path:
    """The path of FOLDER.tar; not compressed, since wheels already are."""
    target = folder.resolve().with_name(f"{folder.resolve().name}.tar")
    with written_aside(target) as aside, tarfile.open(aside, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            name = (Path(target.stem) / path.relative_to(folder)).as_posix()
            entry = archive.gettarinfo(path, name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = made_at_s
            entry.mode = 0o755 if path.is_dir() or path.suffix == ".sh" else 0o644
            if path.is_dir():
                archive.addfile(entry)
            else:
                with open(path, "rb") as file:
                    archive.addfile(entry, file)
    return target
