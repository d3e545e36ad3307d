"""Makes a bundle: a folder that installs Corewise where no network is, whole or not there at all."""

import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corewise import __version__
from corewise.bundle.archive import write_archive
from corewise.bundle.contents import Bundle, Packed, default_base_image, texts
from corewise.bundle.own_wheel import PACKAGE, write_own_wheel, write_packed_wheel
from corewise.bundle.payload.install import SUMS, digest_of
from corewise.bundle.pip_download import Report, Source, download, require_pip
from corewise.bundle.placing import made_aside, refuse_taken
from corewise.bundle.target import Target
from corewise.bundle.wheels import Wheel, closure, needed_glibc, read_wheels
from corewise.bundle.wishes import Wishes, make_wishes
from corewise.spec.errors import UserError

_MAX_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class Order:
    """What bundle is wanted, and where."""

    folder: Path
    target: Target
    frameworks: tuple[str, ...] = ()
    worker_only: bool = False
    source: Source
    base_image: str | None = None
    archive: bool = False
    force: bool = False


@dataclass(frozen=True)
class Made:
    """A bundle that was made; sizes are sums over its files."""

    folder: Path
    archive: Path | None
    bundle: Bundle
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """What was made, as JSON values."""
        archive = None if self.archive is None else str(self.archive)
        told = {"folder": str(self.folder), "archive": archive, "size_bytes": self.size_bytes}
        return {**told, **asdict(self.bundle)}


def make_bundle(order: Order, report: Report) -> Made:
    """The bundle that was ordered, in its folder; an interruption or a failure leaves no folder behind."""
    require_pip()
    wishes = make_wishes(order.target, order.frameworks, order.worker_only)
    refuse_taken(order.folder, order.force)
    made_at_s = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    with made_aside(order.folder) as part:
        wheels = part / "wheels"
        _fetch_all(wishes, order, wheels, report)
        own = write_own_wheel(wheels, worker_only=order.worker_only)
        report("writing scripts and checksums")
        bundle = _describe(order, wishes, read_wheels(wheels), made_at_s)
        if order.worker_only:
            bundle = _with_file(bundle, own.name, write_packed_wheel(own))
        shutil.copytree(PACKAGE / "studies", part / "studies", copy_function=shutil.copyfile)
        for name, text in texts(bundle, order.base_image or default_base_image(order.target)).items():
            (part / name).write_text(text, encoding="utf-8")
        _settle_modes(part)
        size_bytes = _write_sums(part)
    report("writing the archive")
    archive = write_archive(order.folder, made_at_s) if order.archive else None
    return Made(order.folder, archive, bundle, size_bytes)


def _fetch_all(wishes: Wishes, order: Order, folder: Path, report: Report) -> None:
    """Fetch wheels until all that they require on the target is there; drop what nothing there requires."""
    wanted = list(wishes.roots)
    for _ in range(_MAX_ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        download(wanted, folder, order.target, order.source, report)
        shutil.rmtree(folder / ".pip")
        found = read_wheels(folder)
        needed = closure(wishes.roots, found, order.target, wishes.left_out)
        if not needed.missing:
            break
        wanted += [requirement for requirement, _ in needed.missing]
    else:
        missing = "; ".join(f"{requirement} (for {asked_by})" for requirement, asked_by in needed.missing)
        raise UserError(f"no set of wheels for {order.target} fits together: {missing}")
    for name, wheel in found.items():
        if name not in needed.reached:
            wheel.path.unlink()


def _describe(order: Order, wishes: Wishes, wheels: dict[str, Wheel], made_at_s: int) -> Bundle:
    """What the bundle says of itself."""
    packed = [
        Packed(
            name=wheel.name,
            version=wheel.version,
            file=wheel.path.name,
            size_bytes=wheel.path.stat().st_size,
            sha256=digest_of(wheel.path),
        )
        for wheel in wheels.values()
    ]
    glibc = needed_glibc([wheel.path.name for wheel in wheels.values()], order.target)
    return Bundle(
        corewise=__version__,
        python=order.target.python,
        machine=order.target.machine,
        glibc=f"{glibc[0]}.{glibc[1]}",
        worker_only=order.worker_only,
        frameworks=order.frameworks,
        install=wishes.install,
        made_at=datetime.fromtimestamp(made_at_s, UTC).isoformat(),
        packages=tuple(packed),
    )


def _with_file(bundle: Bundle, name: str, path: Path) -> Bundle:
    """The bundle with another file in the place of the one of this name."""
    packages = [
        replace(each, file=path.name, size_bytes=path.stat().st_size, sha256=digest_of(path))
        if each.file == name
        else each
        for each in bundle.packages
    ]
    return replace(bundle, packages=tuple(packages))


def _settle_modes(folder: Path) -> None:
    """Files as readable as the user's umask lets new files be; pip keeps the mode of what it copies."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() or path.suffix == ".sh" else 0o666) & ~umask)


def _write_sums(folder: Path) -> int:
    """Write the checksums of all files, as `sha256sum -c` reads them; the size of everything comes back."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{digest_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    return sum(path.stat().st_size for path in [*paths, folder / SUMS])
