"""Makes a bundle: a folder that installs Corewise without a network. A failure leaves no folder behind."""

import os
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corewise import __version__
from corewise.bundle.archive import write_archive
from corewise.bundle.atomic_folder import refuse_occupied_folder, write_folder_atomically
from corewise.bundle.contents import Bundle, PackedWheel, choose_base_image, render_files
from corewise.bundle.corewise_wheel import PACKAGE, write_own_wheel
from corewise.bundle.payload.install import SUMS, hash_file
from corewise.bundle.pip_download import PackageSource, Reporter, fetch_wheels, require_pip
from corewise.bundle.requirements import BundleRequirements, resolve_requirements
from corewise.bundle.target import Target
from corewise.bundle.wheels import Wheel, find_needed_glibc, read_wheels, resolve_closure
from corewise.errors import UserError

_MAX_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class BundleOrder:
    """Which bundle to make, and where."""

    folder: Path
    target: Target
    frameworks: tuple[str, ...] = ()
    worker_only: bool = False
    source: PackageSource
    base_image: str | None = None
    archive: bool = False
    force: bool = False


@dataclass(frozen=True)
class BundleResult:
    """A bundle that was made; `size_bytes` is the sum over its files."""

    folder: Path
    archive: Path | None
    bundle: Bundle
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Convert the result to JSON values."""
        archive = None if self.archive is None else str(self.archive)
        result = {"folder": str(self.folder), "archive": archive, "size_bytes": self.size_bytes}
        return {**result, **asdict(self.bundle)}


def make_bundle(order: BundleOrder, report: Reporter) -> BundleResult:
    """Make the ordered bundle; an interruption or a failure leaves no folder behind."""
    require_pip()
    requirements = resolve_requirements(order.target, order.frameworks, order.worker_only)
    refuse_occupied_folder(order.folder, order.force)
    made_at_s = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    with write_folder_atomically(order.folder) as part:
        wheels = part / "wheels"
        _fetch_all(requirements, order, wheels, report)
        write_own_wheel(wheels)
        report("writing scripts and checksums")
        bundle = _describe(order, requirements, read_wheels(wheels), made_at_s)
        shutil.copytree(PACKAGE / "studies", part / "studies", copy_function=shutil.copyfile)
        for name, text in render_files(bundle, order.base_image or choose_base_image(order.target)).items():
            (part / name).write_text(text, encoding="utf-8")
        _set_modes(part)
        size_bytes = _write_sums(part)
    report("writing the archive")
    archive = write_archive(order.folder, made_at_s) if order.archive else None
    return BundleResult(order.folder, archive, bundle, size_bytes)


def _fetch_all(requirements: BundleRequirements, order: BundleOrder, folder: Path, report: Reporter) -> None:
    """Fetch wheels until all requirements on the target are met; delete wheels that are not needed."""
    wanted = list(requirements.roots)
    for _ in range(_MAX_ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fetch_wheels(wanted, folder, order.target, order.source, report)
        shutil.rmtree(folder / ".pip")
        wheels = read_wheels(folder)
        needed = resolve_closure(requirements.roots, wheels, order.target, requirements.left_out)
        if not needed.missing:
            break
        wanted += [requirement for requirement, _ in needed.missing]
    else:
        missing = "; ".join(f"{requirement} (for {required_by})" for requirement, required_by in needed.missing)
        raise UserError(f"the requirements conflict for {order.target}: {missing}")
    for name, wheel in wheels.items():
        if name not in needed.reached:
            wheel.path.unlink()


def _describe(order: BundleOrder, requirements: BundleRequirements, wheels: dict[str, Wheel], made_at_s: int) -> Bundle:
    """Describe the bundle for bundle.json."""
    packed = [
        PackedWheel(
            name=wheel.name,
            version=wheel.version,
            file=wheel.path.name,
            size_bytes=wheel.path.stat().st_size,
            sha256=hash_file(wheel.path),
        )
        for wheel in wheels.values()
    ]
    glibc = find_needed_glibc([wheel.path.name for wheel in wheels.values()], order.target)
    return Bundle(
        corewise=__version__,
        python=order.target.python,
        machine=order.target.machine,
        glibc=f"{glibc[0]}.{glibc[1]}",
        worker_only=order.worker_only,
        frameworks=order.frameworks,
        install=requirements.install,
        made_at=datetime.fromtimestamp(made_at_s, UTC).isoformat(),
        packages=tuple(packed),
    )


def _set_modes(folder: Path) -> None:
    """Set file modes according to the user's umask, since pip keeps the modes of files that it copies."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() or path.suffix == ".sh" else 0o666) & ~umask)


def _write_sums(folder: Path) -> int:
    """Write the checksums of all files for `sha256sum -c`; return the total size."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{hash_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    return sum(path.stat().st_size for path in [*paths, folder / SUMS])
