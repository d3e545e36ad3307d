"""The connection of a run with its agents: both ends must know the secret."""

import socket
import threading
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.measured.worker.control_pipe import Channel
from corewise.run.nodes import node_channel
from corewise.run.nodes.node_channel import HandshakeError, accept_agent, connect_to_run, open_listener, read_secret

SECRET = b"s" * node_channel.SECRET_BYTES


def accept_in_thread(listener: socket.socket, secret: bytes) -> tuple[threading.Thread, list[Channel | Exception]]:
    outcome: list[Channel | Exception] = []

    def accept() -> None:
        try:
            outcome.append(accept_agent(listener, secret))
        except HandshakeError as problem:
            outcome.append(problem)

    thread = threading.Thread(target=accept)
    thread.start()
    return thread, outcome


def test_messages_pass_both_ways_after_the_handshake() -> None:
    with open_listener() as listener:
        thread, outcome = accept_in_thread(listener, SECRET)
        agent, own_address = connect_to_run("127.0.0.1", listener.getsockname()[1], SECRET)
        thread.join()
        (run,) = outcome
        assert isinstance(run, Channel)
        assert own_address == "127.0.0.1"
        run.send(cmd="one")
        run.send(cmd="two")
        assert [agent.receive(), agent.receive()] == [{"cmd": "one"}, {"cmd": "two"}]
        agent.send(event="x" * 200_000)
        message = run.receive()
        assert message is not None
        assert len(message["event"]) == 200_000
        agent.close()
        assert run.receive() is None
        run.close()


def test_an_agent_with_another_secret_is_refused_and_refuses() -> None:
    with open_listener() as listener:
        thread, outcome = accept_in_thread(listener, SECRET)
        with pytest.raises(UserError, match="is not the run that started this agent"):
            connect_to_run("127.0.0.1", listener.getsockname()[1], b"t" * node_channel.SECRET_BYTES)
        thread.join()
        assert isinstance(outcome[0], HandshakeError)


def test_an_agent_that_echoes_what_it_receives_is_refused() -> None:
    """Answers contain the role of their sender, so a copy of our own answer proves nothing."""
    with open_listener() as listener:
        thread, outcome = accept_in_thread(listener, SECRET)
        with socket.create_connection(listener.getsockname()[:2]) as stranger:
            while data := stranger.recv(4096):
                stranger.sendall(data)
        thread.join()
        assert isinstance(outcome[0], HandshakeError)


def test_a_stranger_that_closes_the_connection_is_refused() -> None:
    with open_listener() as listener:
        thread, outcome = accept_in_thread(listener, SECRET)
        socket.create_connection(listener.getsockname()[:2]).close()
        thread.join()
        assert isinstance(outcome[0], HandshakeError)


def test_the_secret_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = node_channel.write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret(path) == secret
    assert len(secret) == node_channel.SECRET_BYTES


def test_a_node_that_does_not_see_the_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder that all nodes share"):
        read_secret(tmp_path / "missing")


def test_a_run_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_channel, "REFUSED_LIMIT_S", 0.1)
    with open_listener() as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UserError, match=f"does not reach the run at 127.0.0.1:{port}"):
        connect_to_run("127.0.0.1", port, SECRET)
