"""What lies in a bundle besides the wheels, as text and bytes; no file is touched here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import PurePath

from corewise.bundle.target import Target

BUNDLE_FILE = "bundle.json"
SCHEMA = 1
PLAIN_FILES = ("install.py", "selftest.sh")
FILLED_FILES = ("install.sh", "README.txt", "corewise.def")
# What a node does not need to run trials and keep records: these make queries, charts and bundles at home.
HOME_ONLY = frozenset({"scipy", "duckdb", "altair", "vl-convert-python", "jinja2", "packaging"})
# numpy is the node's own; the other two only colour the help, which is plain without them (cli/main.py).
LEFT_OUT_OF_WORKER = HOME_ONLY | {"numpy", "pygments", "markdown-it-py"}
_IMPORTED_AS = {"vl-convert-python": "vl_convert"}


# Folders of Corewise that serve at home, and what a node needs of them: to show records and to test itself.
_HOME_FOLDERS = frozenset({"bundle", "comparison", "published", "report"})
_HOME_FILES = frozenset({"breakdown/chart.py", "breakdown/page.py", "cli/drawn_comparison.py"})
_NEEDED_ON_NODES = frozenset(
    {
        *("bundle/__init__.py", "bundle/contents.py", "bundle/selftest.py", "bundle/target.py"),
        *("report/__init__.py", "report/columns.py", "report/groups.py", "report/machines.py"),
        *("report/model.py", "report/standing.py", "report/tunings.py", "report/words.py"),
        "report/workload_names.py",
    }
)


def is_for_home(path: PurePath) -> bool:
    """True for a file of the package that worker-only installs leave out; the path is within the package."""
    at_home = path.parts[0] in _HOME_FOLDERS or path.as_posix() in _HOME_FILES
    return at_home and path.as_posix() not in _NEEDED_ON_NODES


def missing_package(problem: ModuleNotFoundError) -> str | None:
    """What to tell of a package that worker-only installs leave out; None when it is another."""
    package, *inner = (problem.name or "").split(".")
    if package == "corewise" and _is_home_module(inner):
        return worker_only_install("run this command there")
    if package not in {_IMPORTED_AS.get(name, name) for name in HOME_ONLY}:
        return None
    return without(package, "run this command there")


def _is_home_module(names: Sequence[str]) -> bool:
    file = PurePath(*names).with_suffix(".py") if names[1:] else PurePath(*names, "__init__.py")
    return is_for_home(file)


def worker_only_install(next_step: str) -> str:
    """What to tell where a part of Corewise for home is missing, and what to do at home."""
    return (
        "this install is worker-only: it runs studies and keeps their records. Carry the store (the folder "
        f"of --store) to where all of Corewise is installed and {next_step}"
    )


def without(module: str, next_step: str) -> str:
    """What to tell where a package for home is missing, and what to do at home."""
    return (
        f"this needs {module}, which is not installed here. A worker-only install runs studies and keeps "
        f"their records: carry the store (the folder of --store) home and {next_step}"
    )


@dataclass(frozen=True)
class Packed:
    """One wheel of a bundle."""

    name: str
    version: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Bundle:
    """What a bundle says of itself in bundle.json."""

    corewise: str
    python: str
    machine: str
    glibc: str  # the oldest that its wheels run with
    worker_only: bool
    frameworks: tuple[str, ...]  # what --with asked for
    install: tuple[str, ...]  # what pip is asked to install
    made_at: str
    packages: tuple[Packed, ...]

    def to_text(self) -> str:
        """The text of bundle.json."""
        return json.dumps({"corewise_bundle": SCHEMA, **asdict(self)}, indent=2) + "\n"


def is_bundle(text: str) -> bool:
    """True when this is the text of a bundle.json of ours."""
    try:
        told = json.loads(text)
    except ValueError:
        return False
    return isinstance(told, dict) and "corewise_bundle" in told


def texts(bundle: Bundle, base_image: str) -> dict[str, str]:
    """The scripts and texts of a bundle by name, filled in."""
    values = filled_in(bundle, base_image)
    found = {name: payload(name) for name in PLAIN_FILES}
    for name in FILLED_FILES:
        text = payload(name)
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        found[name] = text
    return {**found, BUNDLE_FILE: bundle.to_text()}


def filled_in(bundle: Bundle, base_image: str) -> Mapping[str, str]:
    """What stands for each @WORD@ in the texts."""
    scheme, separator, name = base_image.partition("://")
    is_file = not separator and base_image.endswith((".sif", ".img", "/"))
    return {
        "VERSION": bundle.corewise,
        "PYTHON": bundle.python,
        "MACHINE": bundle.machine,
        "GLIBC": bundle.glibc,
        "KIND": ", worker-only: it runs studies and keeps records" if bundle.worker_only else "",
        "NUMPY": " and numpy" if bundle.worker_only else "",
        "AT_HOME": "corewise show --store STORE; corewise report --store STORE -o report.html",
        "BOOTSTRAP": scheme if separator else "localimage" if is_file else "docker",
        "BASE": name if separator else base_image,
    }


def default_base_image(target: Target) -> str:
    """A public image with the target's Python."""
    return f"docker://python:{target.python}-slim"


def payload(name: str) -> str:
    """The text of a file that travels."""
    return (resources.files("corewise.bundle") / "payload" / name).read_text(encoding="utf-8")
