"""Check arguments, and build requests from them.

A mistake of the caller raises a TypeError or an ``lro.DeclarationError``, which is a ValueError. It
never raises a ``CallError``, because no call was made.
"""

from __future__ import annotations

import inspect
import re
import typing
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import httpx

from lro import AnyMessage, DeclarationError, Duration, Struct, TypeRegistry
from lro.errors import InvalidRequestId
from lro.types import full_name, is_message_class
from lro.wire import (
    ListOperationsRequest,
    RerunOperationRequest,
    WaitOperationRequest,
    normal_request_id,
)
from lro_client._errors import check
from lro_client._flow.policy import is_number
from lro_client._flow.steps import StartRequest

if TYPE_CHECKING:
    from lro_client.filters import Expression

R = TypeVar("R")

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)
_HOST: Final = re.compile(r"""[^\s%"<>\\^`{|}]+""")
_SCHEMES: Final = ("http", "https")
_NOWHERE: Final = frozenset({"", ".", ".."})
"""Segments that make HTTP libraries, proxies or servers change the path."""

_FILTER: Final = re.compile(r"""["]|[=:]'|\s(?:[<>!]?=|[<>:]|AND|OR)\s""")
"""Matches a filter that was passed as a parent by mistake.

An operator counts only between spaces or before a quote, because ids may contain any character
(spec §3.1(2)).
"""

_MESSAGES: Final = "a message, such as an instance of an attrs class, a dict or an lro.AnyMessage"
_CLASSES: Final = "a message class, such as an attrs class, or dict or lro.AnyMessage"


def check_name(name: object) -> None:
    """Check that a value is a valid name of an operation."""
    wanted = f"a text that is not empty{_name_of(name)}"
    check("name", name, wanted, fine=isinstance(name, str) and name != "")
    check_no_url("name", str(name))
    check_segments("name", str(name))


def _name_of(value: object) -> str:
    """Return a hint for an operation or a future in place of its name; empty for other values."""
    if hasattr(value, "done") and isinstance(getattr(value, "name", None), str):
        return "; pass its name: operation.name"
    if isinstance(getattr(getattr(value, "operation", None), "name", None), str):
        return "; pass its name: future.operation.name"  # a future of google-api-core
    return ""


def check_parent(parent: str) -> None:
    """Check that a value is empty, or a valid parent of a list (spec §3.3(2))."""
    check_no_url("parent", parent)
    if not parent:
        return
    check_segments("parent", parent)
    segments = parent.split("/")
    pairs = len(segments) % 2 == 0 or segments[-1] == "operations"
    wanted = "a parent such as projects/p, or empty (a filter is given as filter=...)"
    check("parent", parent, wanted, fine=pairs and not _FILTER.search(parent))


def check_no_url(subject: str, name: str) -> None:
    """Check that a name or a parent is not a URL."""
    wanted = "a name such as operations/abc, which is what follows /v1/ in its URL"
    check(subject, name, wanted, fine=not _URL.fullmatch(name))


def check_segments(subject: str, name: str) -> None:
    """Check that no segment of a name changes the path that contains the name (spec §3.1(2))."""
    if not _NOWHERE.isdisjoint(name.split("/")):
        wrong = f"must have no segment that is empty, . or .., got {name!r:.200}"
        raise DeclarationError(subject, wrong)


def check_request_id(request_id: object, *, only_uuid: bool = False) -> None:
    """Check that a value is empty, a UUID, or a text that servers accept (spec §9.2(1))."""
    fine = isinstance(request_id, str | uuid.UUID)
    check("request_id", request_id, "a text of 1 to 128 characters, or a UUID", fine=fine)
    if request_id != "":
        try:
            normal_request_id(str(request_id), only_uuid=only_uuid)
        except InvalidRequestId as exc:
            raise DeclarationError(exc.field, exc.description) from None


def check_message(message: object, types: TypeRegistry) -> None:
    """Check that a value is a message that a start can send."""
    fine = isinstance(message, AnyMessage | Mapping) or _may_be_message(type(message), types)
    check("message", message, f"{_MESSAGES}{_way_out(message)}", fine=fine)


def check_class(name: str, cls: object, types: TypeRegistry) -> None:
    """Check that a value is a message class, ``dict``, ``lro.AnyMessage`` or None."""
    fine = cls in (None, dict) or (isinstance(cls, type) and _may_be_message(cls, types))
    check(name, cls, f"{_CLASSES}{_way_out(cls)}", fine=fine)


def _may_be_message(cls: type, types: TypeRegistry) -> bool:
    # A class of a library that lro does not know passes if it has a full name. The registry looks
    # for its codec later.
    return types.knows(cls) or is_message_class(cls) or full_name(cls) is not None


def _way_out(value: object) -> str:
    """Return a hint on how to correct a wrong message or class; empty if there is none."""
    cls = value if isinstance(value, type) else type(value)
    if not isinstance(value, type) and (is_message_class(cls) or full_name(cls) is not None):
        return f"; give the class itself: {cls.__name__}"
    if is_message_class(value):
        return f"; give an instance of it: {cls.__name__}(...)"
    if typing.get_origin(value) is not None:
        return "; put such a value into a field of a message"
    if cls.__module__ != "builtins":
        return (
            "; for one of another library give types=, a TypeRegistry with a codec factory for it"
        )
    return ""


def check_seconds(name: str, value: object) -> None:
    check(name, value, "seconds above 0", fine=is_number(value, 0.0) and value != 0)


def check_optional(name: str, value: object, cls: type) -> None:
    fine = value is None or isinstance(value, cls)
    check(name, value, f"of the class {cls.__name__}", fine=fine)


def check_function(name: str, value: object) -> None:
    check(name, value, "a function", fine=callable(value))


def base_url_of(base_url: object, http: Any) -> str:
    """Check a server's address, and return it without the white space around it.

    The address may be empty if the HTTP client ``http`` has a base URL.

    Raises:
        DeclarationError: The address is missing, not an HTTP URL, or not the base URL of ``http``.
    """
    check("base_url", base_url, "a text", fine=isinstance(base_url, str))
    given = text = str(base_url).strip()
    known = "" if http is None else str(http.base_url)
    if not _URL.fullmatch(text):
        text = f"{known.rstrip('/')}{text}"
    elif known and known.rstrip("/") != text.rstrip("/"):
        wrong = "is not that of the HTTP client: leave one of them out, or give a path here"
        raise DeclarationError("base_url", wrong)  # without the URL, which may have a password
    try:
        url = httpx.URL(text)  # a call parses it in the same way
        url.host.encode("idna")  # fails for an invalid host name
        fine = url.scheme in _SCHEMES and bool(_HOST.fullmatch(url.host))
        fine = fine and (url.port or 0) < 2**16 and not (url.query or url.fragment)
    except (httpx.InvalidURL, ValueError):
        fine = False
    check("base_url", base_url, "http://HOST or https://HOST, with or without a path", fine=fine)
    return given


def check_blocks(name: str, value: object, twin: str) -> None:
    """Check that the calls of a transport or an HTTP client block."""
    fine = _sends(value) and not _is_awaited(value)
    check(name, value, f"one whose calls block, such as {twin}", fine=fine)


def check_awaits(name: str, value: object, twin: str) -> None:
    """Check that a transport or an HTTP client is for event loops."""
    fine = _sends(value) and _is_awaited(value)
    check(name, value, f"one whose calls are awaited, such as {twin}", fine=fine)


def _sends(value: object) -> bool:
    # A type is refused: the caller probably passed the class instead of an instance.
    return callable(getattr(value, "send", None)) and not isinstance(value, type)


def _is_awaited(value: object) -> bool:
    # If a wrapper hides that ``send`` is a coroutine function, ``close`` or ``aclose`` shows it.
    names = ("send", "close", "aclose")
    return any(inspect.iscoroutinefunction(getattr(value, name, None)) for name in names)


MAX_TIMEOUT_SECONDS: Final = 1e8
"""A timeout of this many seconds (three years) or more means no timeout.

Clocks cannot handle much longer times.
"""


def named(cls: type[R], request: str | R) -> R:
    """Return the request of a verb, given a name or the whole request (spec §3.8).

    Raises:
        DeclarationError: The argument is neither a name nor a request, or the name is not valid.
    """
    whole: Any = cls(request) if isinstance(request, str) else request  # type: ignore[call-arg]  # a name
    wanted = f"a name or a {cls.__name__}{_name_of(request)}"
    check("name", request, wanted, fine=isinstance(whole, cls))
    check_name(whole.name)
    found: R = whole
    return found


def starting(
    types: TypeRegistry, target: str, message: object, request_id: object, validate_only: bool
) -> StartRequest:
    """Return the request of a start.

    If the message has the fields ``request_id`` or ``validate_only``, they have the same effect as
    the arguments (AIP-155).

    Raises:
        DeclarationError: An argument has the wrong type, the message's class is not a message
            class, the message's request id differs from the argument, or the message has a field
            in both spellings, such as ``request_id`` and ``requestId``.
    """
    check("target", target, "a text", fine=isinstance(target, str))
    wanted = "a path such as /v1/images:resize, or the name of a method over gRPC"
    check("target", target, wanted, fine=target != "")
    check("validate_only", validate_only, "True or False", fine=isinstance(validate_only, bool))
    check_message(message, types)
    check_request_id(request_id)
    own = field_of(message, "request_id", "requestId")
    if isinstance(own, str) and own:
        same = request_id == "" or str(request_id) == own
        check("request_id", request_id, f"that of the message, {own!r:.80}", fine=same)
        request_id = own
    # A class that has the field declares the request id of AIP-155; a dict may be for any server.
    check_request_id(request_id, only_uuid=hasattr(message, "request_id"))
    return StartRequest(
        target=target,
        message=message,
        request_id=str(request_id),
        validate_only=validate_only or field_of(message, "validate_only", "validateOnly") is True,
    )


def rerunning(request: str | RerunOperationRequest, request_id: object) -> RerunOperationRequest:
    """Return the request of a rerun.

    Raises:
        DeclarationError: An argument has the wrong type.
    """
    found = named(RerunOperationRequest, request)
    if found is request:
        _refuse_more("RerunOperationRequest", request_id)
        request_id = found.request_id
    check_request_id(request_id)
    return attrs.evolve(found, request_id=str(request_id))


def field_of(message: object, name: str, json_name: str) -> object:
    """Return the value of a field of a message of any kind, or None if the message lacks it.

    Raises:
        DeclarationError: The message has the field in both spellings, which servers refuse
            (spec §1.8(2)).
    """
    fields = message.payload if isinstance(message, AnyMessage) else message
    if isinstance(fields, Struct):
        fields = fields.fields
    if isinstance(fields, Mapping):
        if name in fields and json_name in fields:
            raise DeclarationError(name, f"stands in the message twice, as {json_name} too")
        return fields.get(json_name, fields.get(name))
    return getattr(fields, name, None)


def listing(
    parent: str | ListOperationsRequest, wanted: str | Expression, page_size: int, page_token: str
) -> ListOperationsRequest:
    """Return the request that lists the operations that match ``wanted``."""
    if not isinstance(wanted, str):
        from lro_client.filters import Expression  # already loaded if ``wanted`` is an expression

        if not isinstance(wanted, Expression):
            raise TypeError(
                f"a filter is a text or an Expression of lro_client.filters, not {wanted!r}"
            )
    text = str(wanted)
    _check_page(page_size, page_token)
    if isinstance(parent, ListOperationsRequest):
        _refuse_more("ListOperationsRequest", text or page_size or page_token)
        if not isinstance(parent.filter, str):
            raise TypeError(f"the filter of a request is a text: str({parent.filter!r})")
        check("name", parent.name, "a text", fine=isinstance(parent.name, str))
        _check_page(parent.page_size, parent.page_token)
        return parent
    if not isinstance(parent, str):
        raise TypeError(f"first comes the parent, a text, then the filter; got {parent!r}")
    check_parent(parent)
    return ListOperationsRequest(
        name=parent, filter=text, page_size=page_size, page_token=page_token
    )


def _check_page(page_size: object, page_token: object) -> None:
    check("page_size", page_size, "a whole number", fine=type(page_size) is int)
    check("page_token", page_token, "a text", fine=isinstance(page_token, str))


def waiting(
    request: str | WaitOperationRequest, timeout: timedelta | float | None
) -> WaitOperationRequest:
    """Return the request of a WaitOperation call."""
    found = named(WaitOperationRequest, request)
    if found is request:
        _refuse_more("WaitOperationRequest", timeout is not None)
        wanted = "an lro.Duration, as Duration.from_timedelta() gives"
        fine = found.timeout is None or isinstance(found.timeout, Duration)
        check("timeout", found.timeout, wanted, fine=fine)
        return found
    if timeout is None:
        return found
    limit = seconds(timeout)
    span = timedelta(seconds=MAX_TIMEOUT_SECONDS if limit is None else limit)
    return attrs.evolve(found, timeout=Duration.from_timedelta(span))


def _refuse_more(cls: str, more: object) -> None:
    if more:
        raise TypeError(f"a {cls} is the whole request: set its fields instead of arguments")


def seconds(timeout: timedelta | float | None) -> float | None:
    """Return a timeout in seconds, or None for no timeout.

    Raises:
        TypeError: The timeout is neither a timedelta nor a number.
    """
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if timeout is None:
        return None
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or timeout != timeout:  # only NaN differs from itself
        raise TypeError(f"a timeout is a timedelta, or seconds as a number, not {timeout!r}")
    # Compared without a conversion, because an int may be larger than any float.
    return max(timeout, -MAX_TIMEOUT_SECONDS) if timeout < MAX_TIMEOUT_SECONDS else None
