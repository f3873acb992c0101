"""Checks of what an application hands to the client, made before anything is sent.

A mistake of the caller is a ``lro.DeclarationError``, which is a ValueError, or a TypeError. It is
never a ``CallError``: no call was made that could have failed.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any as Anything
from typing import Final
from urllib.parse import urlsplit

import attrs

from lro import Any, DeclarationError, TypeRegistry

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)
_SCHEMES: Final = ("http", "https")
_MESSAGES: Final = "an attrs or data class, a message of protobuf, a dict or an lro.Any"


def check(name: str, value: object, wanted: str, *, fine: bool) -> None:
    """Do nothing if the argument of this name is ``fine``.

    Raises:
        DeclarationError: It is not; the sentence says what is ``wanted`` and what was given.
    """
    if not fine:
        raise DeclarationError(name, f"must be {wanted}, got {value!r:.200}")


def check_name(name: object) -> None:
    """Do nothing for what may be an operation's name.

    Raises:
        DeclarationError: It is no text, or empty, or a URL.
    """
    check("name", name, "a text that is not empty", fine=isinstance(name, str) and name != "")
    check_no_url("name", str(name))


def check_no_url(subject: str, name: str) -> None:
    """Do nothing for a name, or a parent, that is no URL.

    Raises:
        DeclarationError: It is one.
    """
    wanted = "a name such as operations/abc, which is what follows /v1/ in its URL"
    check(subject, name, wanted, fine=not _URL.fullmatch(name))


def check_message(message: object, types: TypeRegistry) -> None:
    """Do nothing for what can be the message of a start.

    Raises:
        DeclarationError: It is of a class that is none of messages.
    """
    cls = type(message)
    hint = ""
    if hasattr(cls, "model_dump"):
        hint = '; give the dict of a pydantic model: message.model_dump(mode="json")'
    elif is_proto_plus(cls):
        hint = f"; give the message of protobuf inside: {cls.__name__}.pb(message)"
    fine = isinstance(message, Any | Mapping) or types.knows(cls) or _may_be_message(cls)
    check("message", message, f"{_MESSAGES}{hint}", fine=fine)


def check_class(name: str, cls: object) -> None:
    """Do nothing for a class of messages, or for None.

    Raises:
        DeclarationError: It is no class, or one of proto-plus.
    """
    check(name, cls, "a class of messages", fine=cls is None or isinstance(cls, type))
    if isinstance(cls, type):
        wanted = f"a class of messages; give that of protobuf: {cls.__name__}.pb()"
        check(name, cls, wanted, fine=not is_proto_plus(cls))


def is_proto_plus(cls: type) -> bool:
    """Whether a class is one of proto-plus, which wraps the messages of protobuf."""
    return any(f"{one.__module__}.{one.__name__}" == _PROTO_PLUS for one in cls.__mro__)


_PROTO_PLUS: Final = "proto.message.Message"


def _may_be_message(cls: type) -> bool:
    return attrs.has(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "DESCRIPTOR")


def check_seconds(name: str, value: object) -> None:
    """Do nothing for a finite number of seconds above zero.

    Raises:
        DeclarationError: It is none.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = number and 0 < value < math.inf  # type: ignore[operator]  # a number, as was asked
    check(name, value, "seconds above 0", fine=fine)


def check_optional(name: str, value: object, cls: type) -> None:
    """Do nothing for an instance of a class, or for None.

    Raises:
        DeclarationError: It is something else.
    """
    fine = value is None or isinstance(value, cls)
    check(name, value, f"of the class {cls.__name__}", fine=fine)


def check_base_url(base_url: object, http: Anything) -> None:
    """Do nothing for a server's address, which ``http``, an HTTP client, may know instead.

    Raises:
        DeclarationError: It is no URL of HTTP, or there is none.
    """
    check("base_url", base_url, "a text", fine=isinstance(base_url, str))
    text = str(base_url)
    if http is not None and not _URL.fullmatch(text):
        text = f"{str(http.base_url).rstrip('/')}{text}"
    try:
        parts = urlsplit(text)
        _ = parts.port  # is checked when it is asked for
        fine = parts.scheme in _SCHEMES and bool(parts.hostname) and not parts.query
    except ValueError:
        fine = False
    check("base_url", base_url, "http://HOST or https://HOST, with or without a path", fine=fine)


def check_blocks(name: str, value: object, twin: str) -> None:
    """Do nothing for a transport, or an HTTP client, of the client that blocks.

    Raises:
        DeclarationError: Its calls are awaited.
    """
    check(name, value, f"one whose calls block, such as {twin}", fine=not _is_awaited(value))


def check_awaits(name: str, value: object, twin: str) -> None:
    """Do nothing for a transport, or an HTTP client, of the client for event loops.

    Raises:
        DeclarationError: Its calls block.
    """
    check(name, value, f"one whose calls are awaited, such as {twin}", fine=_is_awaited(value))


def _is_awaited(value: object) -> bool:
    # A transport may wrap ``send``; an HTTP client has either of the two ways to close.
    names = ("send", "close", "aclose")
    return any(inspect.iscoroutinefunction(getattr(value, name, None)) for name in names)
