"""A server of the interface, in memory, that does what a test says."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import httpx

from lro import Status, TypeRegistry
from lro.wire import code_from_http
from lro_client._async_client import AsyncClient
from lro_client._client import Client
from lro_client.testing._clock import VirtualClock
from lro_client.testing._line import Answering, ScriptedTransport
from lro_client.testing._script import Fault, Rule, Script, Scripted, ServerCall
from lro_client.testing._verbs import Refused, Verbs


class ScriptedServer:
    """A server of the interface in memory, on a virtual clock: the operations go as a test says.

    It has the verbs of the interface, of which ``wait`` and ``lists`` can be left out, and may have
    the extensions ``batch_get`` and ``watch`` (spec §3.11). A Wait is held ``max_hold`` seconds at
    most; every call takes ``latency`` seconds. ``types`` are message classes to know; those of the
    scripted messages are added. ``calls`` are all calls that came.
    """

    def __init__(
        self,
        clock: VirtualClock | None = None,
        *,
        url: str = "http://scripted.test",
        wait: bool = True,
        lists: bool = True,
        batch_get: bool = False,
        watch: bool = False,
        max_hold: float = 60.0,
        latency: float = 0.0,
        types: TypeRegistry | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.url = url
        self.calls: list[ServerCall] = []
        self.transport = ScriptedTransport(self.clock, self._answer)
        self._latency = latency
        self._began = self.clock.now
        self._rules: list[Rule] = []
        self._verbs = Verbs(
            clock=self.clock,
            types=types or TypeRegistry(),
            offered={
                "WaitOperation": wait,
                "ListOperations": lists,
                "BatchGetOperations": batch_get,
                "WatchOperations": watch,
            },
            max_hold=max_hold,
        )

    def operation(
        self,
        name: str,
        *,
        ends_after: float | None = 0.0,
        response: Scripted | None = None,
        metadata: Scripted | Callable[[float], Scripted | None] | None = None,
        error: Status | None = None,
        gone_after: float = math.inf,
        cancels_after: float | None = 0.0,
        retry_after: str = "",
    ) -> None:
        """Have an operation that begins now and ends ``ends_after`` seconds later (None: never).

        It ends with ``response`` or ``error``, or with neither. ``metadata`` is a message, or a
        function that makes one of the seconds it has run. The server does not know it any more
        after ``gone_after`` seconds. When it is cancelled it ends ``cancels_after`` seconds later
        (None: it does not care). ``retry_after`` is the header of answers while it is in progress.
        """
        self._verbs.scripts[name] = Script(
            name=name,
            began=self.clock.now,
            ends_after=ends_after,
            response=response,
            metadata=metadata,
            error=error,
            gone_after=gone_after,
            cancels_after=cancels_after,
            retry_after=retry_after,
        )

    def method(
        self,
        target: str,
        *,
        parent: str = "",
        response: Scripted | Callable[[dict[str, Any]], Scripted] | None = None,
        **script: Any,
    ) -> None:
        """Have a method at this path, each start of which begins an operation, as told here.

        Their names are ``operations/1``, ``operations/2`` and so on, below ``parent`` if there is
        one. ``response`` may be a function of the request's JSON; the rest is as for
        :meth:`operation`. A request id starts nothing twice (spec §9.1).
        """

        def begin(request: dict[str, Any]) -> Script:
            scripts = self._verbs.scripts
            number = len(scripts) + 1
            name = f"{parent}/operations/{number}" if parent else f"operations/{number}"
            made = response(request) if callable(response) else response
            self.operation(name, response=made, **script)
            return scripts[name]

        self._verbs.methods[target] = begin

    def fault(
        self,
        fault: Fault,
        *,
        verb: str = "",
        calls: Collection[int] | None = None,
        since: float = 0.0,
        until: float = math.inf,
    ) -> None:
        """Have calls go wrong: those of this verb (all), with these numbers, in this time.

        Numbers count the calls of the verb, from 1; times are seconds after the server was made.
        Where several faults are told for a call, the first one happens.
        """
        self._rules.append(Rule(fault=fault, verb=verb, calls=calls, since=since, until=until))

    def client(self, **options: Any) -> Client:
        """A client of this server, on its clock; ``options`` are those of :class:`Client`."""
        options.setdefault("http", httpx.Client(transport=self.transport))
        return Client(self.url, **{"clock": self.clock, "sleep": self.clock.sleep, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """The same for event loops."""
        options.setdefault("http", httpx.AsyncClient(transport=self.transport))
        sleep = self.clock.asleep
        return AsyncClient(self.url, **{"clock": self.clock, "sleep": sleep, **options})

    def _answer(self, request: httpx.Request) -> Answering:
        verb, name = self._verbs.asked(request)
        call = ServerCall(at=self.clock.now - self._began, verb=verb, name=name)
        fault = next((r.fault for r in self._rules if r.applies(call, self.calls)), Fault())
        self.calls.append(call)
        until = self.clock.now + (request.extensions["timeout"].get("read") or math.inf)
        answering = self._act(call, request, fault)
        while True:
            try:
                seconds = next(answering)
            except StopIteration as end:
                response: httpx.Response = end.value
                call.status = response.status_code
                return response
            left = until - self.clock.now
            if seconds > left:  # the client does not wait so long
                yield left
                raise httpx.ReadTimeout("scripted: no answer in time", request=request)
            yield seconds

    def _act(self, call: ServerCall, request: httpx.Request, fault: Fault) -> Answering:
        yield self._latency + fault.seconds
        if fault.error is not None:
            raise fault.error(f"scripted: {call.verb} of {call.name}")
        if fault.body is not None:
            status = fault.status or 200
            return httpx.Response(status, headers=dict(fault.headers), content=fault.body)
        if fault.status is not None:
            scripted = Status(code_from_http(fault.status), "scripted")
            response = self._verbs.refusal(scripted, fault.status)
        else:
            try:
                response = yield from self._verbs.do(call, request)
            except Refused as exc:
                response = self._verbs.refusal(exc.status)
        response.headers.update(fault.headers)
        if fault.keep is not None:
            kind = {"content-type": response.headers["content-type"]}
            content = response.content[: fault.keep]
            response = httpx.Response(response.status_code, headers=kind, content=content)
        return response
