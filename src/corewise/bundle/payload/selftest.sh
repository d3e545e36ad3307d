#!/bin/sh
# Tests an installation of this bundle: sh selftest.sh [PREFIX]
set -eu
prefix=${1:-corewise-env}
if [ ! -x "$prefix/bin/python" ]; then
  echo "selftest.sh: no installation in $prefix; run: sh install.sh $prefix" >&2
  exit 2
fi
exec "$prefix/bin/python" -P -m corewise.bundle.selftest
