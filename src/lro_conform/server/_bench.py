"""The bench that checks share: the server, and its operations in each state."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs

from lro_conform._checks import GRPC, HTTP, Check, Citation, Level
from lro_conform.server._answers import Answer
from lro_conform.server._http import HttpTarget
from lro_conform.server._starts import OperationStarter, StartFailed, StartKind
from lro_conform.server._target import Target

if TYPE_CHECKING:
    from lro_conform.server._grpc import GrpcTarget  # needs the extra ``grpc``

RPCS: Final = {
    "get": "GetOperation",
    "list": "ListOperations",
    "cancel": "CancelOperation",
    "delete": "DeleteOperation",
    "wait": "WaitOperation",
}


class NotOffered(Exception):
    """Raised if the server does not offer an optional feature."""


class NotJudged(Exception):
    """Raised if a check cannot be judged; the message is the reason."""


@attrs.frozen(kw_only=True)
class Pace:
    """Times of a run in seconds, and the number of races.

    ``end`` is the maximum duration of operations that should end soon, ``slack`` the maximum delay
    of a reply that is due at a certain time, ``hold`` the timeout of waits in checks.
    """

    end: float = 30.0
    slack: float = 2.0
    hold: float = 0.3
    total: float = 300.0
    rounds: int = 5


USUAL_PACE: Final = Pace()


@attrs.define(kw_only=True)
class Bench:
    """One run against one server over one transport."""

    target: Target
    starter: OperationStarter
    pace: Pace
    parent: str | None = None
    log: list[Answer]
    notes: list[str] = attrs.field(factory=list)
    started: list[str] = attrs.field(factory=list)
    starts: list[Answer] = attrs.field(factory=list)
    subjects: dict[str, str] = attrs.field(factory=dict)
    ended_alone: list[str] = attrs.field(factory=list)
    """Reports of operations that ended as cancelled although no call cancelled them."""
    _kept: dict[str, Answer | NotJudged | NotOffered] = attrs.field(factory=dict)
    _long: str = ""
    _running: list[str] = attrs.field(factory=list)

    @property
    def http(self) -> HttpTarget:
        """The target, for checks that apply only to HTTP."""
        return cast(HttpTarget, self.target)

    @property
    def grpc(self) -> GrpcTarget:
        """The target, for checks that apply only to gRPC."""
        return cast("GrpcTarget", self.target)

    def note(self, fact: str) -> None:
        """Add a fact that is not a failure."""
        self.notes.append(fact)

    def seen(self) -> list[tuple[Answer, Mapping[str, Any]]]:
        """Return every operation in the replies so far, with the answer that contains it."""
        found: list[tuple[Answer, Mapping[str, Any]]] = []
        for answer in self.log:
            if answer.ok and answer.rpc in ("get", "wait", "start"):
                found.append((answer, answer.body))
            elif answer.ok and answer.rpc == "list":
                found += [(answer, one) for one in operations_in(answer)]
        return found

    def bodies(self) -> list[Mapping[str, Any]]:
        """Return every operation in the replies so far."""
        return [body for _, body in self.seen()]

    async def start(self, kind: StartKind) -> str:
        """Start an operation, and return its name.

        Raises:
            NotJudged: There is no hook for the kind, or the start returned no name.
        """
        return str((await self.started_as(kind)).body["name"])

    async def started_as(self, kind: StartKind) -> Answer:
        """Return the answer to a start, whose body has a name.

        Raises:
            NotJudged: There is no hook for the kind, or the start returned no name.
        """
        if not self.starter.offers(kind):
            raise NotJudged(f"there is no hook that starts the kind {kind}")
        try:
            answer = await self.starter.start(kind)
        except StartFailed as exc:
            raise NotJudged(str(exc)) from exc
        self.starts.append(answer)
        name = answer.body.get("name")
        if not isinstance(name, str) or not name:
            raise NotJudged("the start gave no operation with a name (see start.operation)")
        self.started.append(name)
        if kind is StartKind.LONG:
            self._running.append(name)
        return answer

    def keep_long(self, answer: Answer) -> None:
        """Use the operation in the answer to a start for :meth:`long`, if the answer has one."""
        self.starts.append(answer)
        name = answer.body.get("name")
        if isinstance(name, str) and name:
            self._long = name
            self.started.append(name)

    async def release(self, *, everything: bool = False) -> None:
        """Cancel operations that the last check left in progress: a server may run only a few."""
        names = [one for one in self._running if everything or one != self._long]
        if everything and self._long:
            names.append(self._long)
        self._running = [one for one in self._running if one not in names]
        first = self._kept.get("first cancel")
        if everything or (isinstance(first, Answer) and first.ok):
            await asyncio.gather(*map(self.target.cancel, names))

    @property
    def slack(self) -> float:
        """The maximum delay of a reply with a deadline; longer for slow servers."""
        usual = [one.seconds for one in self.log if one.rpc == "get" and one.ok]
        return self.pace.slack + (statistics.median(usual) if usual else 0.0)

    async def running(self) -> str:
        """Return the name of a new operation in progress.

        Raises:
            NotJudged: No operation stays in progress.
        """
        name = await self.start(StartKind.LONG)
        if (await self.target.get(name)).done:
            raise NotJudged("the operation that should take long is done at once")
        return name

    async def until_done(self, name: str) -> Answer:
        """Poll with GetOperation until the operation is done; return the answer with this name.

        Raises:
            NotJudged: The operation is not done in time, or the calls fail.
        """
        limit, pause = time.monotonic() + self.pace.end, 0.01
        while True:
            answer = await self.target.get(name)
            if answer.done:
                return attrs.evolve(answer, body={**answer.body, "name": name})
            if not answer.ok:
                raise NotJudged(f"the operation cannot be read: {answer}")
            if time.monotonic() > limit:
                raise NotJudged(f"an operation was not done within {self.pace.end:g} s: {name!a}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    async def long(self) -> str:
        """Return the name of an operation in progress that all checks share and no check ends.

        Raises:
            NotJudged: No operation stays in progress.
        """
        if self._long:
            answer = await self.target.get(self._long)
            if not answer.done:
                return self._long
            error = answer.body.get("error")
            if isinstance(error, Mapping) and error.get("code") == 1:
                self.ended_alone.append(f"no call has ended it: {answer}")
        self._long = await self.running()
        return self._long

    async def ended(self, kind: StartKind) -> Answer:
        """Return the first answer in which an operation of this kind is done; all checks share it.

        Raises:
            NotJudged: No operation of this kind ends.
        """
        return await self._once(kind, lambda: self._end(kind))

    async def _end(self, kind: StartKind) -> Answer:
        return await self.until_done(await self.start(kind))

    async def finished(self) -> Answer:
        """Return the first answer in which an operation is done, if possible one that succeeded.

        Raises:
            NotJudged: No operation ends.
        """
        for kind in (StartKind.SOON, StartKind.FAIL):
            if self.starter.offers(kind):
                try:
                    return await self.ended(kind)
                except NotJudged:
                    continue
        try:
            return await self.cancelled()
        except (NotJudged, NotOffered) as exc:
            raise NotJudged(f"there is no operation that is done: {exc}") from exc

    async def cancelled(self) -> Answer:
        """Return the first answer that shows the end of an operation that was cancelled as it ran.

        Raises:
            NotJudged: The operation does not end, or CancelOperation does not work.
            NotOffered: CancelOperation is not supported.
        """
        await self.need("cancel")
        return await self._once("cancelled", lambda: self.until_done(self.subjects["cancel"]))

    async def first(self, rpc: str) -> Answer:
        """Return the answer to the first call of a method, for an operation that exists.

        Cancel and delete each get their own operation; ``subjects`` has the operations' names.
        """
        return await self._once(f"first {rpc}", lambda: self._first(rpc))

    async def _first(self, rpc: str) -> Answer:
        match rpc:
            case "list":
                return await self.target.list(await self.parent_name(), page_size=1)
            case "wait":
                return await self.target.wait(await self.long(), 0)
            case "get":
                return await self.target.get(await self.long())
            case "delete":
                name = self.subjects[rpc] = await self.disposable()
                return await self.target.delete(name)
        name = self.subjects[rpc] = await self.start(StartKind.LONG)
        return await self.target.cancel(name)

    async def whole_page(self) -> Answer:
        """Return the answer to a list without a page size."""

        async def make() -> Answer:
            await self.need("list")
            return await self.target.list(await self.parent_name())

        return await self._once("whole page", make)

    async def disposable(self) -> str:
        """Return the name of a new operation to delete, which is done if possible.

        Some servers delete only operations that are done.
        """
        if not self.starter.offers(StartKind.SOON):
            return await self.start(StartKind.LONG)
        name = await self.start(StartKind.SOON)
        await self.until_done(name)
        return name

    async def need(self, *rpcs: str) -> None:
        """Check that the server supports these methods.

        Raises:
            NotOffered: A method is not supported, which is allowed.
            NotJudged: A method does not work.
        """
        for rpc in rpcs:
            answer = await self.first(rpc)
            if await self.left_out(answer):
                raise NotOffered(f"{RPCS[rpc]} is not supported: {answer}")
            if not answer.ok:
                raise NotJudged(f"{RPCS[rpc]} does not work (see calls.{rpc})")

    async def left_out(self, answer: Answer) -> bool:
        """Return True if an answer means that a method is not supported.

        Over HTTP, the status 405 has this meaning too, whatever code the body has. WaitOperation,
        which has no path in ``operations.proto``, and ListOperations may have no path at all; then
        the answer is the same as for an unknown path.
        """
        said = answer.code == "UNIMPLEMENTED"
        if answer.http is None or (said and answer.error):
            return said
        if answer.http.status == 405:
            absent = True
        elif said or answer.rpc not in ("wait", "list") or not answer.refused:
            return said
        else:
            absent = await self._no_route(answer, answer.http.status)
        if absent and answer in self.log:  # the answer came from the framework around the server
            self.log[self.log.index(answer)] = attrs.evolve(answer, foreign=True)
        return absent

    async def _no_route(self, answer: Answer, status: int) -> bool:
        if status == 404 and not answer.error:
            return True
        path = self.http.path(await self.long(), ":lroConformUnknown")
        method = "POST"
        if answer.rpc == "list":
            method, path = "GET", self.http.list_path(await self.parent_name()) + "LroConform"
        unknown = await self.http.ask(method, path, body={} if method == "POST" else None)
        if unknown.http is None or unknown.http.status != status or unknown.code != answer.code:
            return False
        if answer.rpc == "list" and not reasons(answer) and not _same_text(answer, unknown):
            return False
        return reasons(unknown) == reasons(answer)

    async def deleted(self) -> str:
        """Return the name of a deleted operation.

        Raises:
            NotJudged: DeleteOperation does not work.
            NotOffered: DeleteOperation is not supported.
        """
        await self.need("delete")
        return self.subjects["delete"]

    async def parent_name(self) -> str:
        """Return the parent of lists: the given parent, or the parent of a started operation."""
        if self.parent is not None:
            return self.parent
        return parent_of(self.started[0] if self.started else await self.long())

    async def unknown(self) -> str:
        """Return an unknown operation name in the form of the server's names.

        Digits are replaced by digits, and letters from a to f by such letters: a UUID stays a UUID.
        """
        name = self.started[0] if self.started else await self.start(StartKind.LONG)
        start, slash, id_ = name.rpartition("/")
        if len(id_) <= _SHORT:
            id_ += _MORE
        return start + slash + id_[:-_CHANGED] + "".join(map(_another, id_[-_CHANGED:]))

    async def _once(self, key: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        if key not in self._kept:
            try:
                self._kept[key] = await make()
            except (NotJudged, NotOffered) as exc:  # a retry would give the same result
                self._kept[key] = exc
        kept = self._kept[key]
        if isinstance(kept, Answer):
            return kept
        raise kept


_SHORT: Final = 8
"""Ids of at most this length are extended: a changed short id may be that of an operation."""
_CHANGED: Final = 4
_MORE: Final = "90417263"


def _another(character: str) -> str:
    if character in "0123456789":
        return str((int(character) + 7) % 10)
    kind = "ABCDEF" if character.isupper() else "abcdef"
    return kind[(kind.find(character) + 3) % 6] if character.isalpha() else character


def parent_of(name: str) -> str:
    """Return the parent in a name; empty if there is none."""
    return name.rpartition("/operations/")[0] if "/operations/" in name else ""


def operations_in(answer: Answer) -> list[Mapping[str, Any]]:
    """Return the operations of a page that are JSON objects."""
    found = answer.body.get("operations", [])
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def reasons(answer: Answer) -> list[object]:
    """Return the reasons in the details of a refusal."""
    details = answer.error.get("details")
    found = details if isinstance(details, list) else []
    return [one["reason"] for one in found if isinstance(one, Mapping) and "reason" in one]


def _same_text(answer: Answer, other: Answer) -> bool:
    texts = (str(one.error.get("message", "")) for one in (answer, other))
    return len({re.sub(r"/\S*", "", text) for text in texts}) == 1


def expect(answer: Answer, *codes: str) -> Iterable[str]:
    """Yield a fact if a call was not answered with one of these codes."""
    if answer.fault or answer.code not in codes:
        yield f"{answer}; expected {' or '.join(codes)}"


Facts: TypeAlias = AsyncIterator[str]
Judge: TypeAlias = Callable[[Bench], Facts]


@attrs.frozen
class JudgedRule:
    """A check, and the function that yields a fact for each breach of it."""

    check: Check
    judge: Judge


@attrs.frozen
class RuleBook:
    """The rules of a module, in order. Calling it returns a decorator that adds a rule."""

    transports: frozenset[str] = frozenset({HTTP, GRPC})
    rules: list[JudgedRule] = attrs.field(factory=list)

    def __call__(
        self, id: str, says: str, level: Level, *sources: Citation, optional: bool = False
    ) -> Callable[[Judge], Judge]:
        check = Check(
            id=id,
            says=says,
            level=level,
            sources=sources,
            transports=self.transports,
            optional=optional,
        )

        def add(judge: Judge) -> Judge:
            self.rules.append(JudgedRule(check, judge))
            return judge

        return add
