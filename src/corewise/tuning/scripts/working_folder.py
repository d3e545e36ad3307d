"""The folder in which a start of a script runs: a private mirror of the user's folder, or a real folder.

In a private mirror the script finds all files by their usual relative paths, also ../data. What it writes stays
private: folders are real, and small files are copies. Large files are links to the user's files. A lease of the kernel
guards each of them: who opens it for writing has to wait, and the start is ended before the file changes.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from corewise.errors import UserError

PRIVATE, HERE = "private", "here"
# Files up to this size are copied for each start, as long as all copies together stay below the second limit.
MAX_COPIED_BYTES, MAX_TOTAL_BYTES = 1024**2, 64 * 1024**2
# A folder with more files than this, such as a data set, is linked as a whole. The mirror has a limit too.
MAX_FOLDER_FILES, MAX_FILES = 1000, 3000
# The neighbours of the user's folder are mirrored too, up to this number of files beyond those of the folder.
MAX_NEIGHBOUR_FILES = 500
MAX_GUARDED = 500
# The number of fcntl's F_SETSIG on Linux, which the module does not export.
_F_SETSIG = 10


@dataclass
class FolderTree:
    """What a mirror of a folder holds, as relative paths.

    Attributes:
        start: The folder of the user within the mirrored folder, which may be its parent.
        copied: Small files, which each start gets for itself.
        linked: Large files of the user.
        shared: Folders that are linked as a whole: what a start writes there is not private.
    """

    folder: Path
    start: Path = Path()
    folders: list[Path] = field(default_factory=list)
    copied: list[Path] = field(default_factory=list)
    linked: list[Path] = field(default_factory=list)
    shared: list[Path] = field(default_factory=list)
    num_bytes: int = 0
    max_files: int = MAX_FILES

    @property
    def visible_shared(self) -> list[Path]:
        """The shared folders in the user's folder; hidden ones and environments are left out."""
        inside = [each for each in self.shared if each.is_relative_to(self.start) and each.name[0] != "."]
        return [each.relative_to(self.start) for each in inside if not self._is_environment(each)]

    def build_mirror(self, target: Path) -> Path:
        """Create the mirror in an empty folder; return the folder in which the script starts."""
        for each in self.folders:
            (target / each).mkdir()
        for each in self.copied:
            # A file may have been removed since the scan.
            with suppress(OSError):
                shutil.copy2(self.folder / each, target / each)
        for each in (*self.linked, *self.shared):
            (target / each).symlink_to(self.folder / each)
        return target / self.start

    def add_folder(self, relative: Path, skipped: Path) -> None:
        """Add the entries of a folder, except the path to skip and what is already there."""
        for entry in sorted(_list_entries(self.folder / relative), key=lambda each: each.name):
            path = relative / entry.name
            if Path(entry.path) == skipped or path in self.folders:
                continue
            if entry.is_dir():
                is_whole = entry.is_symlink() or entry.name.startswith(".") or self._is_environment(path)
                if is_whole or not self._has_room(path):
                    self.shared.append(path)
                else:
                    self.folders.append(path)
                    self.add_folder(path, skipped)
            else:
                self._add_file(entry, path)

    def _add_file(self, entry: "os.DirEntry[str]", path: Path) -> None:
        try:
            size = entry.stat().st_size
        except OSError:
            # A link without a target.
            return
        is_small = size <= MAX_COPIED_BYTES and self.num_bytes + size <= MAX_TOTAL_BYTES
        if entry.is_file() and is_small and os.access(entry.path, os.R_OK):
            self.copied.append(path)
            self.num_bytes += size
        else:
            self.linked.append(path)

    def _is_environment(self, path: Path) -> bool:
        return (self.folder / path / "pyvenv.cfg").exists()

    def _has_room(self, path: Path) -> bool:
        num_left = self.max_files - len(self.copied) - len(self.linked) - len(self.folders)
        return _count_files(self.folder / path, MAX_FOLDER_FILES + 1) <= min(MAX_FOLDER_FILES, num_left)


def scan_folder(folder: Path, skipped: Path) -> FolderTree:
    """Plan the mirror of a folder and its neighbours, without the path to skip (the store with the mirrors)."""
    parent = folder.parent
    is_large = _count_files(parent, MAX_FOLDER_FILES, depth=1) >= MAX_FOLDER_FILES
    if parent in (folder, Path(parent.anchor), Path.home(), Path(tempfile.gettempdir())) or is_large:
        tree = FolderTree(folder)
        tree.add_folder(Path(), skipped)
        return tree
    tree = FolderTree(parent, Path(folder.name), [Path(folder.name)])
    tree.add_folder(tree.start, skipped)
    tree.max_files = len(tree.copied) + len(tree.linked) + len(tree.folders) + MAX_NEIGHBOUR_FILES
    tree.add_folder(Path(), skipped)
    return tree


class FileGuard:
    """Watches files of the user that starts can reach, so that none of them is changed."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._leases: dict[Path, int] = {}
        self._states: dict[Path, tuple[int, int]] = {}
        for path in files:
            if not path.is_file() or not os.access(path, os.W_OK):
                continue
            if len(self._leases) >= MAX_GUARDED or not self._take_lease(path):
                self._states[path] = _read_state(path)

    def require_unchanged(self) -> None:
        """Raise UserError if a process wants to write a file, or has written one that has no lease."""
        for path, descriptor in self._leases.items():
            if fcntl.fcntl(descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                raise UserError(_describe_write(path, "opens", "It was ended before the file changed."))

    def require_unwritten(self) -> None:
        """Raise UserError if a file without a lease has changed."""
        for path, state in self._states.items():
            if _read_state(path) != state:
                raise UserError(_describe_write(path, "has opened", "It was ended, but the file has changed."))

    def close(self) -> None:
        """Release the leases; every start must have ended."""
        for descriptor in self._leases.values():
            os.close(descriptor)
        self._leases = {}

    def _take_lease(self, path: Path) -> bool:
        """Take a lease; False if the file system has none, or if someone has opened the file for writing."""
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            # The usual signal of a lease would end this process; the state is read instead.
            fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            return False
        self._leases[path] = descriptor
        return True


def _describe_write(path: Path, verb: str, outcome: str) -> str:
    return (
        f"the script {verb} {path} for writing, a file in your folder that all starts share because of its size. "
        f"{outcome} Let the script write to another file, or choose the folder of all starts: --workdir DIR, or "
        "--workdir here to run in your folder and to allow the change"
    )


def _read_state(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        read = path.stat()
        return read.st_mtime_ns, read.st_size
    return 0, 0


def _list_entries(folder: Path) -> "Iterator[os.DirEntry[str]]":
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries


def _count_files(folder: Path, limit: int, depth: int = 0) -> int:
    """Count the files and folders below a folder, up to a limit; with depth 1, only its own entries."""
    num, folders = 0, [folder]
    while folders and num < limit:
        for entry in _list_entries(folders.pop()):
            num += 1
            if depth != 1 and entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            if num >= limit:
                break
    return num
