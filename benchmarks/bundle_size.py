"""Measure the size of a full and of a worker-only bundle, and the time to make and to install each."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import describe_machine, write_figures

ASKED_BYTES = {"full": 130_000_000, "worker-only": 10_000_000}


def time_command(command: list[str]) -> tuple[float, str]:
    """Run a command; return its seconds and its output."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=f"3.{sys.version_info.minor}")
    parser.add_argument("--platform", default="x86_64")
    parser.add_argument("--install", action="store_true", help="install each and run its self-test, without network")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for variant, asked_bytes in ASKED_BYTES.items():
            command = [sys.executable, "-m", "corewise", "bundle", "--json", "-o", f"{folder}/{variant}"]
            command += ["--python", args.python, "--platform", args.platform]
            made_s, printed = time_command(command + (["--worker-only"] if variant == "worker-only" else []))
            summary = json.loads(printed)
            row = {"size_bytes": summary["size_bytes"], "asked_bytes": asked_bytes, "made_s": made_s}
            if args.install:
                script = ["unshare", "-rn", "env", f"PYTHON={sys.executable}", "sh", f"{folder}/{variant}/install.sh"]
                row["installed_s"], _ = time_command([*script, f"{folder}/{variant}-env"])
            rows[variant] = row
    print(describe_machine())
    print(f"for Python {args.python} on {args.platform}")
    for variant, row in rows.items():
        size, asked = (row[name] / 1e6 for name in ("size_bytes", "asked_bytes"))
        installed = f", installed and tested in {row['installed_s']:.1f} s" if "installed_s" in row else ""
        print(f"{variant:12} {size:6.1f} MB (asked: at most {asked:g}), made in {row['made_s']:.1f} s{installed}")
    write_figures(args.out, bundles=rows)


if __name__ == "__main__":
    main()
