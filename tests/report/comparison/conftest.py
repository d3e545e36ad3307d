"""Makes the sides that tests of the analysis use known here, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "analysis" / "comparison"))
