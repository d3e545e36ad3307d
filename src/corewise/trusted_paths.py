"""Decide whether another user could change what is at a path, before code is run or loaded from there.

Used by both sides and by the library that users call: standard library only, Python 3.9. docs/security.md states the
rule and its reasons.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, List, Tuple, Union

ROOT = 0
# The kernel and NFS servers show this owner for users that they cannot name.
NOBODY = 65534
# The kernel follows at most this many links in one path.
_MAX_LINKS = 40
_ACCESS_LIST = "system.posix_acl_access"
# Where private folders may be, after the temporary folder of the user.
_OTHER_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
_log = logging.getLogger("corewise")
_logged: Dict[str, bool] = {}


def explain_distrust(path: Union[str, Path]) -> str:
    """Explain who else could change what is at the path, or why it cannot be examined; empty if nobody can.

    Every folder and link on the way to the path is checked, so nobody can exchange the path after the check either.
    """
    owners = _find_trusted_owners()
    try:
        for entry, status, is_last in _walk(path):
            problem = _explain_owner(entry, status, owners, is_last) or _explain_access(entry, status, is_last)
            if problem:
                return problem
    except OSError as problem:
        return f"{problem.filename or path} cannot be examined: {problem.strerror}"
    return ""


def is_trusted_file(path: Path) -> bool:
    """Return whether a cached file exists and nobody else can change it; log once if someone can."""
    if not os.path.lexists(path):
        return False
    problem = explain_distrust(path)
    if problem:
        warn_once(f"the cached file {path} is not used: {problem}. Corewise makes it again.")
    return not problem


def can_write(folder: Union[str, Path]) -> bool:
    """Return whether this process can create files in the folder."""
    return os.access(folder, os.W_OK, effective_ids=True)


def create_private_folder(prefix: str, reuse: bool = False) -> str:
    """Create an empty folder below TMPDIR that nobody else can change; its name ends at random.

    Args:
        reuse: return the folder of an earlier call of this user instead, if there is one.

    Raises:
        OSError: no temporary folder is safe from other users.
    """
    problems = []
    for parent in dict.fromkeys((tempfile.gettempdir(), *_OTHER_TEMPORARY_FOLDERS)):
        try:
            folder = (_find_private_folder(parent, prefix) if reuse else "") or tempfile.mkdtemp("", prefix, parent)
        except OSError as problem:
            problems.append(f"{parent} cannot be written: {problem.strerror}")
            continue
        distrust = explain_distrust(folder)
        if not distrust:
            if problems:
                warn_once(f"the temporary folder is {parent}, because {problems[0]}")
            return folder
        problems.append(distrust)
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    raise PermissionError(
        errno.EACCES, f"no temporary folder is safe from other users ({'; '.join(problems)}); set TMPDIR to one that is"
    )


def _find_private_folder(parent: str, prefix: str) -> str:
    """Find the folder that an earlier call made for this user, empty if there is none."""
    for name in sorted(os.listdir(parent)):
        folder = os.path.join(parent, name)
        is_candidate = name.startswith(prefix) and os.path.isdir(folder) and can_write(folder)
        if is_candidate and not explain_distrust(folder):
            return folder
    return ""


def warn_once(text: str) -> None:
    """Log a message the first time it occurs in this process."""
    if text not in _logged:
        _logged[text] = True
        _log.warning("corewise: %s", text)


def _walk(path: Union[str, Path]) -> Iterator[Tuple[str, os.stat_result, bool]]:
    """Yield every folder, link and file that the kernel meets on the way to a path, and whether it is the last one."""
    place, pending, num_links = "/", _split(os.path.join(os.getcwd(), path)), 0
    yield place, os.lstat(place), not pending
    while pending:
        name = pending.pop(0)
        if name == "..":
            # Links are resolved already, so this is the parent that was checked before.
            place = os.path.dirname(place)
            continue
        entry = os.path.join(place, name)
        status = os.lstat(entry)
        if not stat.S_ISLNK(status.st_mode):
            place = entry
            yield entry, status, not pending
            continue
        yield entry, status, False
        num_links += 1
        if num_links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), entry)
        target = os.readlink(entry)
        place = "/" if target.startswith("/") else place
        pending = _split(target) + pending


def _split(path: str) -> List[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _find_trusted_owners() -> FrozenSet[int]:
    """Find whose files this process may run: its user, root, and who installed the interpreter that is running."""
    owners = set()
    for place in (sys.executable, sys.prefix):
        with contextlib.suppress(OSError):
            owners.add(os.stat(place).st_uid)
    return frozenset({ROOT, os.geteuid()} | (owners - {NOBODY}))


def _explain_owner(path: str, status: os.stat_result, owners: FrozenSet[int], is_last: bool) -> str:
    if status.st_uid in owners:
        return ""
    # In a container of an ordinary user, system folders belong to nobody. Such a folder is accepted only on the way.
    if status.st_uid == NOBODY and stat.S_ISDIR(status.st_mode) and not is_last and not _is_root_mapped():
        return ""
    return f"{path} belongs to {_name_user(status.st_uid)}"


def _explain_access(path: str, status: os.stat_result, is_last: bool) -> str:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return ""
    # In a sticky folder, only the owner of an entry can exchange it.
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX and not is_last:
        return ""
    if mode & stat.S_IWOTH:
        return f"everyone can write to {path}"
    if mode & stat.S_IWGRP and (_has_access_list(path) or not _is_private_group(status.st_gid)):
        return f"{_name_group(status.st_gid)} can write to {path}"
    return ""


def _is_private_group(gid: int) -> bool:
    """Return whether this is a group for this user alone: the primary group, named after the user, without members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: str) -> bool:
    """Return whether an access-control list grants more than owner, group and others; its mask looks like the group."""
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, _ACCESS_LIST))
    return False


def _is_root_mapped() -> bool:
    """Return whether the system's root has a number in this user namespace; otherwise its files belong to nobody."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [line.split() for line in file]
    except OSError:
        return True
    return any(int(outside) == ROOT for _, outside, _ in ranges)


def _name_user(uid: int) -> str:
    if uid == NOBODY:
        return f"uid {uid} (nobody: a user whom this machine cannot name, as in containers and on network file systems)"
    with contextlib.suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def _name_group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return f"group {grp.getgrgid(gid).gr_name}"
    return f"group {gid}"
