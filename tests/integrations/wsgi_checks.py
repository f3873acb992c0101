"""Tests for WSGI frameworks: most of :mod:`tests.integrations.checks`, and two more tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.test_wsgi import environ_of, serve
from tests.integrations import checks
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import ANN, OWN, START, Served

OF_LOOPS = ("test_disconnect_ends_the_wait", "test_watch_streams_until_the_operation_is_done")
__all__ = [
    *(name for name in checks.__all__ if name not in OF_LOOPS),
    "test_part_of_a_body_is_refused",
    "test_watch_is_refused",
]


def test_watch_is_refused(served: Served) -> None:
    """Watch answers UNIMPLEMENTED under WSGI, because a stream would occupy a thread."""
    reply = served.http.get(f"{served.prefix}/v1/operations/x:watch", headers=ANN)
    assert (reply.status_code, reply.json()["error"]["status"]) == (501, "UNIMPLEMENTED")


CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked"}
GUNICORN = {"wsgi.input_terminated": True}


@pytest.mark.parametrize("path", [START, OWN])
@pytest.mark.parametrize(
    ("given", "body", "said"),
    [
        ({"CONTENT_LENGTH": "50", **GUNICORN}, b"", "body: has 0 of the 50 bytes"),
        ({"CONTENT_LENGTH": "50", **GUNICORN}, b"  ", "body: has 2 of the 50 bytes"),
        ({"CONTENT_LENGTH": "junk"}, b"{}", "Content-Length: must be a number"),
        (CHUNKED | GUNICORN, b'{"colour": 1}', "colour"),  # the whole body is parsed
        (CHUNKED | GUNICORN, b" " * (3 << 20), "body: must have at most"),
        (CHUNKED, b"2\r\n{}\r\n0\r\n\r\n", "Content-Length: is needed"),
    ],
)
def test_part_of_a_body_is_refused(
    wsgi_app: Any, path: str, given: Any, body: bytes, said: str
) -> None:
    """A truncated body, which may look like another valid request, is refused on every server."""
    head = {"HTTP_HOST": "here", "HTTP_AUTHORIZATION": ANN["authorization"]}
    more = {"CONTENT_LENGTH": "", "CONTENT_TYPE": "application/json", "wsgi.url_scheme": "http"}
    shown = serve(wsgi_app, environ_of("POST", path, body, **{**head, **more, **given}))[2]
    assert said in shown["error"]["message"]
