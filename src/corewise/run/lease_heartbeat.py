"""Keeps leases alive while trials run, from a thread that sleeps most of the time."""

import threading
from contextlib import suppress

from corewise.store.leases import Lease, LeaseLost, read_stale_after_s

# A holder may miss this many heartbeats in a row before it counts as dead.
BEATS_PER_STALE_TIME = 6


class Heartbeat:
    """Renews leases until stopped; then releases all of them but the first."""

    def __init__(self, lease: Lease) -> None:
        self._leases = [lease]
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._interval_s = read_stale_after_s() / BEATS_PER_STALE_TIME
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
                with suppress(OSError):
                    lease.release()

    def _send_heartbeats(self) -> None:
        while not self._stopped.wait(self._interval_s):
            with self._lock:
                for lease in self._leases:
                    # The run itself notices a lost lease before it writes under it.
                    with suppress(OSError, LeaseLost):
                        lease.send_heartbeat()
