"""Makes the trials that tests of the report use known here, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
