"""Leases kept alive while trials run, from a thread that sleeps."""

import threading
from contextlib import suppress

from corewise.store.leases import Lease, LeaseLost

HEARTBEAT_S = 20.0


class Heartbeat:
    """Shows that the holder of some leases lives; releases them all but the first when stopped."""

    def __init__(self, lease: Lease) -> None:
        self._leases = [lease]
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)
        self._thread.start()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases.append(lease)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._leases.remove(lease)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            for lease in self._leases[1:]:
                lease.release()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with self._lock:
                for lease in self._leases:
                    with suppress(OSError, LeaseLost):
                        lease.beat()
