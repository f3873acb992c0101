"""Messages of a child, read as they come: whole, in pieces, and cut short."""

from __future__ import annotations

import os
from contextlib import closing
from multiprocessing.connection import Pipe

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro.executors.processes import _process
from lro.executors.processes._process import MessageReader


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.integers(1, 9))
def test_messages_come_in_pieces(messages, piece):
    """Whatever the pieces are, these are the messages."""
    ours, theirs = Pipe()
    with closing(ours), closing(theirs):
        for message in messages:
            theirs.send_bytes(message)
        inbox, found = MessageReader(), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_process, "_CHUNK", piece)
            while len(found) < len(messages):
                text = inbox.take(ours.fileno())
                if text is not None:
                    found.append(text)
        assert found == messages


def test_a_message_of_more_than_two_gigabytes_says_so_first():
    """Its length has eight bytes; this one is shorter than it says it could be."""
    reading, writing = os.pipe()
    os.write(writing, (-1).to_bytes(4, "big", signed=True) + (3).to_bytes(8, "big") + b"abc")
    inbox = MessageReader()
    assert [inbox.take(reading) for _ in range(3)] == [None, None, b"abc"]
    os.close(writing)
    with pytest.raises(EOFError):
        inbox.take(reading)
    os.close(reading)


def test_the_rest_of_a_message_is_not_waited_for():
    """What has come is kept, and the end of the other side is reported."""
    reading, writing = os.pipe()
    os.write(writing, (5).to_bytes(4, "big") + b"ab")
    inbox = MessageReader()
    assert inbox.take(reading) is None
    assert inbox.take(reading) is None
    os.close(writing)
    with pytest.raises(EOFError):
        inbox.take(reading)
    os.close(reading)
