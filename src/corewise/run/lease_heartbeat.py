"""Keeps leases alive while trials run, from a thread that sleeps most of the time."""

import threading
from contextlib import suppress

from corewise.store.leases import Lease, LeaseLost

HEARTBEAT_S = 20.0


class Heartbeat:
    """Renews leases until stopped; then releases all of them but the first."""

    def __init__(self, lease: Lease) -> None:
        self._leases = [lease]
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="leases", daemon=True)
        self._thread.start()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases.append(lease)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._leases.remove(lease)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        with self._lock:
            for lease in self._leases[1:]:
                lease.release()

    def _send_heartbeats(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            with self._lock:
                for lease in self._leases:
                    with suppress(OSError, LeaseLost):
                        lease.send_heartbeat()
