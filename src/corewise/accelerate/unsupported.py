"""The error for modules, or machines, that the library does not support.

Standard library only, Python 3.9.
"""

from __future__ import annotations


class Unsupported(Exception):
    """Raised if this module or this machine does not support the request; the text is the reason."""
