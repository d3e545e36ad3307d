"""Describe the cluster that this process runs in: `corewise.cluster.resolve()`.

Travels to the nodes: standard library only, Python 3.9.
"""

from __future__ import annotations

from corewise.cluster.description import ClusterDescription, ClusterError
from corewise.cluster.resolver import resolve

__all__ = ["ClusterDescription", "ClusterError", "resolve"]
