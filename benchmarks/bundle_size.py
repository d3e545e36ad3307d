"""Bytes of a bundle without a framework and of a worker-only one; seconds to make and to install each."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import keep, machine_line

ASKED_BYTES = {"full": 130_000_000, "worker-only": 5_000_000}


def timed(words: list[str]) -> tuple[float, str]:
    """The seconds of a command and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=f"3.{sys.version_info.minor}")
    parser.add_argument("--platform", default="x86_64")
    parser.add_argument(
        "--install", action="store_true", help="install each and run its self-test, without network"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, asked_bytes in ASKED_BYTES.items():
            words = [sys.executable, "-m", "corewise", "bundle", "--json", "-o", f"{folder}/{kind}"]
            words += ["--python", args.python, "--platform", args.platform]
            made_s, printed = timed(words + (["--worker-only"] if kind == "worker-only" else []))
            told = json.loads(printed)
            row = {"size_bytes": told["size_bytes"], "asked_bytes": asked_bytes, "made_s": made_s}
            if args.install:
                script = [
                    "unshare",
                    "-rn",
                    "env",
                    f"PYTHON={sys.executable}",
                    "sh",
                    f"{folder}/{kind}/install.sh",
                ]
                row["installed_s"], _ = timed([*script, f"{folder}/{kind}-env"])
            rows[kind] = row
    print(machine_line())
    print(f"for Python {args.python} on {args.platform}")
    for kind, row in rows.items():
        size, asked = (row[name] / 1e6 for name in ("size_bytes", "asked_bytes"))
        installed = f", installed and tested in {row['installed_s']:.1f} s" if "installed_s" in row else ""
        print(
            f"{kind:12} {size:6.1f} MB (asked: at most {asked:g}), made in {row['made_s']:.1f} s{installed}"
        )
    keep(args.out, bundles=rows)


if __name__ == "__main__":
    main()
