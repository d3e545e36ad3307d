"""Run the measured side: `python worker.pyz VERB`."""

import sys

from corewise.measured.worker.main import main

sys.exit(main())
