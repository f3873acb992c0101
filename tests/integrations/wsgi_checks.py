"""The tests of :mod:`tests.integrations.checks` for WSGI frameworks, which cannot stream."""

from __future__ import annotations

from tests.integrations import checks
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import ANN, Served

OF_LOOPS = (
    "test_caller_who_leaves_ends_the_wait",
    "test_watch_streams_until_the_operation_is_done",
)
__all__ = [*(name for name in checks.__all__ if name not in OF_LOOPS), "test_watch_is_refused"]


def test_watch_is_refused(served: Served) -> None:
    """A stream would hold a thread for as long as the operation runs."""
    reply = served.http.get(f"{served.prefix}/v1/operations/x:watch", headers=ANN)
    assert (reply.status_code, reply.json()["error"]["status"]) == (501, "UNIMPLEMENTED")
