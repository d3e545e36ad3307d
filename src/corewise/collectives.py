"""Fast collectives among the processes of a node: the public names of `corewise.accelerate.collectives`.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from corewise.accelerate.collectives.attach_hook import AttachedCollectives, attach
from corewise.accelerate.collectives.shared_allreduce import CollectiveError, SharedAllreduce
from corewise.accelerate.collectives.shared_collectives import SharedCollectives

__all__ = ["AttachedCollectives", "CollectiveError", "SharedAllreduce", "SharedCollectives", "attach"]
