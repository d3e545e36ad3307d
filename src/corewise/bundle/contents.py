"""The files of a bundle besides the wheels, as texts. Writes nothing."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.util import find_spec

from corewise.bundle.target import Target

BUNDLE_FILE = "bundle.json"
SCHEMA = 1
PLAIN_FILES = ("install.py", "selftest.sh")
FILLED_FILES = ("install.sh", "README.txt", "corewise.def")
# Large packages for queries and charts. A node needs none of them to run trials and store records.
HOME_ONLY = frozenset({"scipy", "duckdb", "altair", "vl-convert-python"})
# A node already has numpy.
LEFT_OUT_OF_WORKER = HOME_ONLY | {"numpy"}
_IMPORT_NAMES = {"vl-convert-python": "vl_convert"}
# What report pages import, by import name.
_CHART_MODULES = ("altair", "vl_convert", "scipy")


def describe_missing_package(problem: ModuleNotFoundError) -> str | None:
    """Return a message on a package that worker-only installs leave out; None for any other package."""
    package = (problem.name or "").partition(".")[0]
    if package not in {_IMPORT_NAMES.get(name, name) for name in HOME_ONLY}:
        return None
    return describe_worker_only(package, "run this command there")


def find_missing_chart_package() -> str | None:
    """Return a package that report pages need and that is not installed here."""
    return next((name for name in _CHART_MODULES if find_spec(name) is None), None)


def describe_worker_only(package: str, next_step: str) -> str:
    """Return a message on a package that is missing here, with what to do where it is installed."""
    return (
        f"this needs {package}, which is not installed here. A worker-only install runs studies and stores "
        f"their records: copy the store (the folder of --store) to a full install of Corewise and {next_step}"
    )


@dataclass(frozen=True)
class PackedWheel:
    """One wheel of a bundle."""

    name: str
    version: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Bundle:
    """The content of bundle.json.

    Attributes:
        glibc: The oldest glibc that all wheels run with.
        frameworks: The arguments of --with.
        install: The requirements that pip installs.
    """

    corewise: str
    python: str
    machine: str
    glibc: str
    worker_only: bool
    frameworks: tuple[str, ...]
    install: tuple[str, ...]
    made_at: str
    packages: tuple[PackedWheel, ...]

    def to_text(self) -> str:
        """Format the text of bundle.json."""
        return json.dumps({"corewise_bundle": SCHEMA, **asdict(self)}, indent=2) + "\n"


def is_bundle(text: str) -> bool:
    """Return True when this is the text of a bundle.json."""
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and "corewise_bundle" in content


def render_files(bundle: Bundle, base_image: str) -> dict[str, str]:
    """Render the scripts and texts of a bundle, by name."""
    values = build_placeholders(bundle, base_image)
    files = {name: read_payload(name) for name in PLAIN_FILES}
    for name in FILLED_FILES:
        text = read_payload(name)
        for placeholder, value in values.items():
            text = text.replace(f"@{placeholder}@", value)
        files[name] = text
    return {**files, BUNDLE_FILE: bundle.to_text()}


def build_placeholders(bundle: Bundle, base_image: str) -> Mapping[str, str]:
    """Build the value of each @PLACEHOLDER@ in the texts."""
    scheme, separator, name = base_image.partition("://")
    is_file = not separator and base_image.endswith((".sif", ".img", "/"))
    return {
        "VERSION": bundle.corewise,
        "PYTHON": bundle.python,
        "MACHINE": bundle.machine,
        "GLIBC": bundle.glibc,
        "SCOPE": ", worker-only: it runs studies and stores records" if bundle.worker_only else "",
        "NUMPY": " and numpy" if bundle.worker_only else "",
        "AT_HOME": "corewise show --store STORE; corewise report --store STORE -o report.html",
        "BOOTSTRAP": scheme if separator else "localimage" if is_file else "docker",
        "BASE": name if separator else base_image,
    }


def choose_base_image(target: Target) -> str:
    """Return a public image with the target's Python."""
    return f"docker://python:{target.python}-slim"


def read_payload(name: str) -> str:
    """Read the text of a payload file."""
    return (resources.files("corewise.bundle") / "payload" / name).read_text(encoding="utf-8")
