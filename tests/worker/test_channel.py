"""Messages arrive whole, in order, and a gone peer is noticed."""

import os

from corewise.worker.channel import Channel


def a_pair() -> tuple[Channel, Channel]:
    one, two = os.pipe(), os.pipe()
    return Channel(one[0], two[1]), Channel(two[0], one[1])


def test_messages_cut_by_the_pipe_are_put_together() -> None:
    near, far = a_pair()
    os.write(far.write_fd, b'{"event":"re')
    assert near.receive_available() == []
    os.write(far.write_fd, b'ady"}\n{"event":"x"}\n')
    assert near.receive_available() == [{"event": "ready"}, {"event": "x"}]
    near.close()
    far.close()


def test_a_peer_that_has_gone_ends_the_conversation() -> None:
    near, far = a_pair()
    far.close()
    assert near.receive() is None
    assert near.closed
    assert near.send(cmd="go") is False
    near.close()
