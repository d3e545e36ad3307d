#!/bin/sh
# Installs this bundle without any network. See README.txt, or: sh install.sh --help
# PYTHON names the interpreter to install for, for example: PYTHON=/opt/python/bin/python3 sh install.sh
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P)
wanted='@PYTHON@'

read_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none
}

if [ -n "${PYTHON:-}" ]; then
  found=$(read_version "$PYTHON")
  if [ "$found" = none ]; then
    echo "install.sh: PYTHON=$PYTHON does not run; name a Python $wanted" >&2
    exit 2
  fi
  if [ "$found" != "$wanted" ]; then
    echo "install.sh: this bundle is for Python $wanted, but $PYTHON is Python $found." >&2
    echo "Name another (PYTHON=python$wanted sh install.sh), or make a bundle for it: corewise bundle --python $found" >&2
    exit 2
  fi
else
  # An active module or environment comes first on PATH as python3.
  for name in python3 "python$wanted" python; do
    if [ "$(read_version "$name")" = "$wanted" ]; then
      PYTHON=$name
      break
    fi
  done
  if [ -z "${PYTHON:-}" ]; then
    echo "install.sh: this bundle is for Python $wanted, but python3 here is $(read_version python3)." >&2
    echo "Load a module, or name one: PYTHON=/path/to/python$wanted sh install.sh" >&2
    exit 2
  fi
fi
exec "$PYTHON" -B "$here/install.py" "$@"
