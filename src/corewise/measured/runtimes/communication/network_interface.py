"""The network interface through which this host reaches another one, and the rate of its link.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Optional

from corewise.measured.runtimes.base import Infeasible

# The request that reads the IPv4 address of a network interface, from linux/sockios.h.
SIOCGIFADDR = 0x8915
INTERFACES = Path("/sys/class/net")
BYTE_PER_MBIT = 125_000.0


def find_interface(address: str) -> str:
    """Return the name of the network interface through which this host reaches an address.

    Raises:
        Infeasible: the address is not reachable, or no interface has the local address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only chooses a route.
            probe.connect((address, 9))
        except OSError as problem:
            raise Infeasible(f"this node has no route to the first node at {address}: {problem}") from problem
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _read_address(probe, name) == own:
                return name
    raise Infeasible(f"no network interface of this node has the address {own}; set GLOO_SOCKET_IFNAME")


def read_link_gbyte_per_s(address: str, interfaces: Path = INTERFACES) -> Optional[float]:
    """Read the nominal rate of the link to an address in one direction; None within a host or if it is unknown."""
    try:
        mbit_per_s = int((interfaces / find_interface(address) / "speed").read_text())
    except (Infeasible, OSError, ValueError):
        return None
    # Some drivers report -1.
    return mbit_per_s * BYTE_PER_MBIT / 1e9 if mbit_per_s > 0 else None


def _read_address(opened: socket.socket, interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(opened.fileno(), SIOCGIFADDR, request)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
