"""Tokens: short texts with which any client can find the operation of a handle again."""

from __future__ import annotations

from typing import Final

import attrs

from lro import InvalidArgument
from lro.types import ByFields, Json, full_name, simple_name
from lro.wire import dumps, loads
from lro_client._addresses import dotted, public_address

VERSION: Final = 1
"""The version of tokens. There is no other version yet."""

MAX_TOKEN: Final = 8 * 1024
"""Maximum size of a token, in bytes of UTF-8."""


def message_name(cls: type | None) -> str:
    """Return the name of a class in tokens: its full name if it has one, else its simple name.

    None and ``dict`` have no name in tokens.
    """
    if cls in (None, dict):
        return ""
    return full_name(cls) or simple_name(cls)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Token(ByFields):
    """The content of a token: an operation's ``name``, and the address of its ``server``.

    ``response`` and ``metadata`` are full names of messages, or simple names of classes that have
    no full name. ``trace`` is the W3C traceparent of the start. Missing fields are empty.
    """

    name: str
    server: str = attrs.field(default="", converter=public_address)
    response: str = ""
    metadata: str = ""
    trace: str = ""

    @property
    def text(self) -> str:
        """The token itself: compact JSON.

        Raises:
            InvalidArgument: The token would be longer than 8 KiB, or cannot be written as JSON.
        """
        said: dict[str, Json] = attrs.asdict(self, filter=lambda _, value: value != "")
        try:
            text = dumps({"lro": VERSION, **said})
        except (ValueError, TypeError) as exc:
            raise InvalidArgument("token", f"cannot be written: {exc}") from None
        _check_length(text)
        return text.decode()


_MEMBERS: Final = tuple(field.name for field in attrs.fields(Token))


def token_of(
    name: str, *, server: str = "", response: type | None, metadata: type | None, trace: str = ""
) -> str:
    """Return the token of an operation, with only the public part of the server's URL.

    Raises:
        InvalidArgument: The name is empty or has a segment such as ``..``, or the token would be
            longer than 8 KiB.
    """
    if not name:
        raise InvalidArgument("token", "needs the name of an operation")
    _check_name(name)
    token = Token(
        name=name,
        server=server,
        response=message_name(response),
        metadata=message_name(metadata),
        trace=trace,
    )
    return token.text


def read_token(text: str) -> Token:
    """Read a token, ignoring members that this version does not know.

    Raises:
        InvalidArgument: The text is not a token or is too long, or the token has another version,
            no name, or a name with a segment ``.`` or ``..``.
    """
    said = _object(text)
    version = said.get("lro")
    if version is None:
        raise InvalidArgument("token", 'is not a token of an operation: it has no "lro"')
    if isinstance(version, bool) or version != VERSION:
        raise InvalidArgument("token", f"has version {version!r:.40}; only {VERSION} is known")
    found = {}
    for member in _MEMBERS:
        value = said.get(member, "")
        if not isinstance(value, str):
            raise InvalidArgument("token", f"{member} must be a text, got {value!r:.80}")
        found[member] = value
    if not found["name"]:
        raise InvalidArgument("token", "names no operation")
    _check_name(found["name"])
    return Token(**found)


def _object(text: str) -> dict[str, Json]:
    try:
        _check_length(text.encode())
        said = loads(text)
    except ValueError as exc:
        raise InvalidArgument("token", f"is not JSON: {exc}") from None
    if not isinstance(said, dict):
        raise InvalidArgument("token", f"must be a JSON object, got {said!r:.80}")
    return said


def _check_name(name: str) -> None:
    if dotted(name):  # a token may come from someone that the caller does not trust
        raise InvalidArgument("token", f"has a segment '.' or '..' in the name {name!r:.200}")


def _check_length(text: bytes) -> None:
    if len(text) > MAX_TOKEN:
        raise InvalidArgument("token", f"is longer than {MAX_TOKEN} bytes: {len(text)}")
