"""Writes a bundle as one tar file; equal folders give equal bytes."""

import tarfile
from pathlib import Path

from corewise.store.atomic_files import write_atomically


def write_archive(folder: Path, made_at_s: int) -> Path:
    """Write FOLDER.tar and return its path; wheels are already compressed, so the archive is not."""
    target = folder.resolve().with_name(f"{folder.resolve().name}.tar")
    with write_atomically(target) as aside, tarfile.open(aside, "w", format=tarfile.PAX_FORMAT) as archive:
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
