"""The ways to start an operation for a check: each service starts operations differently."""

from __future__ import annotations

import asyncio
import enum
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from lro_conform._processes import run_command
from lro_conform._strict_json import read_json, shown
from lro_conform.server._answers import Answer, operation_problem
from lro_conform.server._http import HttpTarget


class StartKind(enum.StrEnum):
    """The behaviour that a check needs from a new operation."""

    LONG = "long"
    """The operation runs until it is cancelled, or for some minutes."""
    SOON = "soon"
    """The operation succeeds within seconds, preferably 0.1 s after its start."""
    FAIL = "fail"
    """The operation fails within seconds."""


class StartFailed(Exception):
    """Raised if the hook started no operation; the message gives the reason."""


class OperationStarter(Protocol):
    """A hook that starts operations."""

    def offers(self, kind: StartKind) -> bool:
        """Return True if the hook can start operations of this kind."""
        ...

    async def start(self, kind: StartKind) -> Answer:
        """Start an operation, and return an answer whose body is an Operation or only its name.

        Raises:
            StartFailed: No operation was started.
        """
        ...


_TEMPLATE: Final = re.compile(r"(POST|PUT|PATCH|DELETE)\s+(/[!-~]*)(?:\s+(.*))?", re.DOTALL)
_UNIQUE: Final = "$UUID"
_MOST_PRINTED: Final = 64 * 1024
"""Maximum number of bytes that a command may print."""
_SHOWN: Final = 200


@attrs.frozen
class RequestTemplate:
    """An HTTP request that starts an operation; ``$UUID`` in it becomes a new UUID each time."""

    method: str
    path: str
    body: str

    @classmethod
    def parse(cls, text: str) -> RequestTemplate:
        """Read ``METHOD /PATH [JSON]``.

        Raises:
            ValueError: The text does not have this form, or the body is not JSON.
        """
        found = _TEMPLATE.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text[:_SHOWN]!r} is not of the form 'POST /PATH JSON'")
        body = (found[3] or "").strip()
        if body:
            try:
                read_json(body.encode())
            except ValueError as exc:
                raise ValueError(f"the body of {text[:_SHOWN]!r} is not JSON: {exc}") from None
        return cls(found[1], found[2], body)


@attrs.frozen
class HttpStarter:
    """Starts operations with requests to the server."""

    target: HttpTarget
    templates: Mapping[StartKind, RequestTemplate]

    def offers(self, kind: StartKind) -> bool:
        return kind in self.templates

    async def start(self, kind: StartKind) -> Answer:
        template, unique = self.templates[kind], str(uuid.uuid4())
        path, body = (text.replace(_UNIQUE, unique) for text in (template.path, template.body))
        content = body.encode() if body else None
        answer = await self.target.ask(template.method, path, content=content, rpc="start")
        if answer.lost or (answer.code and answer.code != "OK"):
            raise StartFailed(f"the server did not start an operation: {answer}")
        return answer


@attrs.frozen
class CommandStarter:
    """Starts operations with a command that prints a name, or an Operation as JSON.

    The environment variable ``LRO_CONFORM_KIND`` tells the command the kind, and
    ``LRO_CONFORM_TARGET`` the address of the server. A command that succeeds without output does
    not offer the kind.
    """

    words: Sequence[str]
    address: str
    seconds: float = 60.0
    missing: set[StartKind] = attrs.field(factory=set, init=False)

    def offers(self, kind: StartKind) -> bool:
        return kind not in self.missing

    async def start(self, kind: StartKind) -> Answer:
        words = self.words
        added = {"LRO_CONFORM_KIND": str(kind), "LRO_CONFORM_TARGET": self.address}
        try:
            process = await run_command(words, added, most=_MOST_PRINTED)
        except (OSError, ValueError) as exc:  # ValueError: a null character
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise StartFailed(f"the command {words[0]!r} cannot be run: {why}") from exc
        try:
            async with asyncio.timeout(self.seconds):
                status = await process.wait()
        except TimeoutError:
            why = f"the command {words[0]!r} has not ended within {self.seconds:g} s"
            raise StartFailed(why) from None
        finally:
            if not process.exited:
                process.kill()
                await process.wait()
        if status:
            raise StartFailed(f"the command {words[0]!r} ended with status {status}")
        printed = process.output
        if process.printed > _MOST_PRINTED:
            raise StartFailed(f"the command printed {process.printed} bytes instead of a name")
        if not printed.strip():
            self.missing.add(kind)
            raise StartFailed(f"the command prints nothing for the kind {kind}")
        return printed_answer(printed)


def printed_answer(printed: bytes) -> Answer:
    """Return the answer that a command printed: an Operation as JSON, or a name.

    Raises:
        StartFailed: The output has neither form.
    """
    text = printed.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        if not re.fullmatch(r"[^\s/]\S*[^\s/]", text) or not text.isprintable():
            raise StartFailed(f"the command printed what is not a name: {shown(text)}")
        body: dict[str, object] = {"name": text}
    else:
        try:
            value, _ = read_json(printed)
        except ValueError as exc:
            raise StartFailed(f"the command printed what is not JSON: {shown(str(exc))}") from None
        assert isinstance(value, dict)  # the text begins with a brace
        if operation_problem(value):
            raise StartFailed(f"the command printed no Operation: {operation_problem(value)}")
        body = value
    return Answer(call="the start", rpc="start", code="OK", body=body)


@attrs.frozen
class FunctionStarter:
    """Starts operations with a coroutine function that returns their names."""

    function: Callable[[StartKind], Awaitable[str]]
    kinds: frozenset[StartKind] = frozenset(StartKind)

    def offers(self, kind: StartKind) -> bool:
        return kind in self.kinds

    async def start(self, kind: StartKind) -> Answer:
        name = await self.function(kind)
        return Answer(call="the start", rpc="start", code="OK", body={"name": name})
