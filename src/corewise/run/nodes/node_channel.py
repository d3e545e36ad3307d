"""The connection between a run and its agents on other nodes: JSON lines over TCP, both ends authenticated.

Both ends know a secret from a private file in the store. Each proves it by an HMAC over a random challenge, so the
secret never travels, and an agent obeys nobody else.
"""

import hmac
import os
import secrets
import socket
import time
from pathlib import Path

from corewise.errors import UserError
from corewise.measured.worker.control_pipe import Channel

SECRET_BYTES = 32
CHALLENGE_BYTES = 32
DIGEST_BYTES = 32
# A peer that is reached must answer the challenge within this time.
HANDSHAKE_S = 20.0
# A host may not be reached while a switch learns its address.
CONNECT_LIMIT_S = 60.0
# The run listens before any agent is started, so a port that refuses connections belongs to a run that has ended.
REFUSED_LIMIT_S = 5.0
RETRY_S = 0.2
# A host that vanished is noticed after about a minute: idle seconds, seconds between probes, number of probes.
KEEPALIVE = (30, 10, 3)
_RUN, _AGENT = b"run", b"agent"


class HandshakeError(Exception):
    """The peer does not know the secret, or closed the connection."""


def write_secret(path: Path) -> bytes:
    """Write a new secret to a file that only this user can read."""
    secret = secrets.token_bytes(SECRET_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    return secret


def read_secret(path: Path) -> bytes:
    """Read the secret of a run; raise a UserError if this node does not see the file."""
    try:
        secret = path.read_bytes()
    except OSError as problem:
        raise UserError(
            f"{os.uname().nodename} cannot read {path} ({problem.strerror}): "
            "the store must be in a folder that all nodes share"
        ) from None
    if len(secret) != SECRET_BYTES:
        raise UserError(f"{path} is not a secret of a run: it has {len(secret)} bytes")
    return secret


def open_listener() -> socket.socket:
    """Listen on a free port of all addresses."""
    return socket.create_server(("", 0), backlog=1024)


def accept_agent(listener: socket.socket, secret: bytes) -> Channel:
    """Accept one agent; raise HandshakeError if it does not know the secret."""
    connection, _ = listener.accept()
    return _authenticate(connection, secret, own=_RUN, peer=_AGENT)


def connect_to_run(address: str, port: int, secret: bytes) -> tuple[Channel, str]:
    """Connect to the run; return the channel and the address of this node that it was reached from."""
    started = time.monotonic()
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=HANDSHAKE_S)
            break
        except OSError as problem:
            limit_s = REFUSED_LIMIT_S if isinstance(problem, ConnectionRefusedError) else CONNECT_LIMIT_S
            if time.monotonic() - started > limit_s or isinstance(problem, socket.gaierror):
                reason = problem.strerror or str(problem)
                raise UserError(f"{os.uname().nodename} does not reach the run at {address}:{port}: {reason}") from None
            time.sleep(RETRY_S)
    local = str(connection.getsockname()[0])
    try:
        return _authenticate(connection, secret, own=_AGENT, peer=_RUN), local
    except HandshakeError as problem:
        raise UserError(f"{address}:{port} is not the run that started this agent: {problem}") from None


def _authenticate(connection: socket.socket, secret: bytes, *, own: bytes, peer: bytes) -> Channel:
    """Exchange challenges and their digests; close the connection unless both agree."""
    try:
        connection.settimeout(HANDSHAKE_S)
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        connection.sendall(challenge)
        received = _receive_exactly(connection, CHALLENGE_BYTES)
        connection.sendall(_compute_digest(secret, own, received))
        answer = _receive_exactly(connection, DIGEST_BYTES)
        if not hmac.compare_digest(answer, _compute_digest(secret, peer, challenge)):
            raise HandshakeError("wrong secret")
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        for option, value in zip(options, KEEPALIVE, strict=True):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as problem:
        connection.close()
        raise HandshakeError(f"the connection failed: {problem.strerror or problem}") from None
    except HandshakeError:
        connection.close()
        raise
    write_fd = os.dup(connection.fileno())
    return Channel(connection.detach(), write_fd)


def _compute_digest(secret: bytes, role: bytes, challenge: bytes) -> bytes:
    # The role keeps an attacker from sending our own answer back to us.
    return hmac.digest(secret, role + challenge, "sha256")


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise HandshakeError("the peer closed the connection")
        data += part
    return data
