"""Messages arrive complete and in order, and the end of a peer is noticed."""

import os

from corewise.measured.worker.control_pipe import Channel


def build_pair() -> tuple[Channel, Channel]:
    one, two = os.pipe(), os.pipe()
    return Channel(one[0], two[1]), Channel(two[0], one[1])


def test_messages_split_by_the_pipe_are_joined() -> None:
    near, far = build_pair()
    os.write(far.write_fd, b'{"event":"re')
    assert near.receive_available() == []
    os.write(far.write_fd, b'ady"}\n{"event":"x"}\n')
    assert near.receive_available() == [{"event": "ready"}, {"event": "x"}]
    near.close()
    far.close()


def test_an_ended_peer_closes_the_channel() -> None:
    near, far = build_pair()
    far.close()
    assert near.receive() is None
    assert near.closed
    assert near.send(cmd="go") is False
    near.close()
