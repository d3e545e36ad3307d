"""Runs the measured side: `python worker.pyz VERB`."""

import sys

from corewise.worker.main import main

sys.exit(main())
