"""What a scripted server answers to each verb (spec §3, §4, §5)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import httpx

from lro import (
    Code,
    Empty,
    InvalidArgument,
    ListOperationsResponse,
    LroError,
    Operation,
    Status,
    TypeRegistry,
)
from lro.types import Json
from lro.wire import (
    dumps,
    error_body,
    loads_strict,
    operation_to_json,
    page_to_json,
    parse_duration,
)
from lro_client.testing._clock import VirtualClock
from lro_client.testing._line import Answering, Stream
from lro_client.testing._script import Script, ServerCall

_VERBS: Final = {
    ("POST", "wait"): "WaitOperation",
    ("GET", "wait"): "WaitOperation",
    ("POST", "cancel"): "CancelOperation",
    ("POST", "batchGet"): "BatchGetOperations",
    ("POST", "watch"): "WatchOperations",
    ("GET", "watch"): "WatchOperations",
    ("DELETE", ""): "DeleteOperation",
    ("GET", ""): "GetOperation",
}
_STEP_SECONDS: Final = 1.0
"""So often a stream looks for what is new, and a short Wait for what other calls change."""

_LOOKS: Final = 4
"""So often a long Wait does."""

_HEARTBEAT_SECONDS: Final = 15.0
_PAGE_SIZE: Final = 100

_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_NAMES: Final = re.compile(rf"name = {_TEXT}(?: OR name = {_TEXT})*")

Begin = Callable[[dict[str, Any]], Script]


class UnscriptedCall(AssertionError):
    """A call that is none of the interface, or a start of a method that the test did not name."""


class Refused(Exception):
    """The call fails with this status."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.status = Status(code, text)


@attrs.define(kw_only=True)
class Verbs:
    """The operations of a scripted server, and its answers to calls that nothing goes wrong with.

    ``offered`` says of the verbs that a server need not have whether this one has them.
    """

    clock: VirtualClock
    types: TypeRegistry
    offered: dict[str, bool]
    max_hold: float
    scripts: dict[str, Script] = attrs.field(factory=dict)
    methods: dict[str, Begin] = attrs.field(factory=dict)
    started: dict[tuple[str, str], Script] = attrs.field(factory=dict)

    def asked(self, request: httpx.Request) -> tuple[str, str]:
        """The verb of a request, and the name or the target that it is for.

        Raises:
            UnscriptedCall: There is no such verb, or no such method.
        """
        path, method = request.url.path, request.method
        if method == "POST" and path in self.methods:
            return "Start", path
        _, _, rest = path.removeprefix("/").partition("/")  # without /v1, or what is in its place
        name, _, custom = rest.partition(":")
        verb = _VERBS.get((method, custom))
        if verb is None or not name:
            known = ", ".join(self.methods) or "none"
            raise UnscriptedCall(f"{method} {path} is no call of the interface; methods: {known}")
        if verb == "GetOperation" and name.rpartition("/")[2] == "operations":
            return "ListOperations", name
        return verb, name

    def do(self, call: ServerCall, request: httpx.Request) -> Answering:
        """The answer to a call.

        Raises:
            Refused: The call fails.
        """
        verb = call.verb
        if not self.offered.get(verb, True):
            raise Refused(Code.UNIMPLEMENTED, f"this server has no {verb}")
        try:
            if verb == "WaitOperation":
                yield from self._hold(call, request)
            return self._now(call, request)
        except LroError as exc:
            raise Refused(Code(int(exc.status_code)), str(exc)) from exc

    def refusal(self, status: Status, http: int | None = None) -> httpx.Response:
        """The reply of a call that failed (spec §5.12)."""
        http = http or Code.of(status.code).http
        return _json(error_body(status, self.types, http), http)

    def _now(self, call: ServerCall, request: httpx.Request) -> httpx.Response:
        name = call.name
        if call.verb == "Start":
            return self._start(name, request)
        if call.verb == "ListOperations":
            return self._list(name, request)
        if call.verb == "BatchGetOperations":
            return self._batch_get(_names(request))
        if call.verb == "WatchOperations":
            names = _names(request) if request.method == "POST" else [name]
            headers = {"content-type": "text/event-stream"}
            stream = Stream(self.clock, lambda: self._watch(names))
            return httpx.Response(200, headers=headers, stream=stream)
        script = self._script(name)
        if call.verb == "CancelOperation":
            script.cancel(self.clock.now)
            return _json({})
        if call.verb == "DeleteOperation":
            script.deleted = True
            return _json({})
        return self._shown(script)

    def _script(self, name: str) -> Script:
        script = self._known(name)
        if script is None:
            raise Refused(Code.NOT_FOUND, f"no operation {name!r}")
        return script

    def _known(self, name: str) -> Script | None:
        script = self.scripts.get(name)
        return None if script is None or script.gone(self.clock.now) else script

    def _state(self, script: Script) -> Operation:
        return script.state(self.clock.now, self.types)

    def _shown(self, script: Script) -> httpx.Response:
        operation = self._state(script)
        response = _json(operation_to_json(operation, self.types))
        if script.retry_after and not operation.done:
            response.headers["retry-after"] = script.retry_after
        return response

    def _hold(self, call: ServerCall, request: httpx.Request) -> Iterator[float]:
        asked = _object(request).get("timeout") or request.url.params.get("timeout")
        if asked is not None:
            call.hold = parse_duration(str(asked)).total_seconds
        left = min(self.max_hold if call.hold is None else call.hold, self.max_hold)
        step = max(_STEP_SECONDS, left / _LOOKS)
        while left > 0:
            script = self._script(call.name)
            if script.over(self.clock.now):
                return
            seconds = min(left, step, script.changes(self.clock.now))
            yield seconds
            left -= seconds

    def _start(self, target: str, request: httpx.Request) -> httpx.Response:
        body = _object(request)
        if body.get("validateOnly"):
            done = {"done": True, "response": self.types.to_json(self.types.pack(Empty()))}
            return _json(done)
        request_id = str(body.get("requestId") or "").lower()
        script = self.started.get((target, request_id))
        if script is None:
            script = self.methods[target](body)
        if request_id:
            self.started[target, request_id] = script
        return self._shown(script)

    def _list(self, collection: str, request: httpx.Request) -> httpx.Response:
        params = request.url.params
        wanted = _wanted(params.get("filter", ""))
        first, size = int(params.get("pageToken", 0)), int(params.get("pageSize", 0)) or _PAGE_SIZE
        scripts = (self._known(name) for name in self.scripts if name.startswith(collection + "/"))
        found = [one for one in scripts if one and (wanted is None or one.name in wanted)]
        last = first + size
        page = ListOperationsResponse(
            tuple(map(self._state, found[first:last])), str(last) if last < len(found) else ""
        )
        return _json(page_to_json(page, self.types))

    def _batch_get(self, names: list[str]) -> httpx.Response:
        found = [(name, self._known(name)) for name in names]
        shown: list[Json] = [
            operation_to_json(self._state(one), self.types) for _, one in found if one
        ]
        missing: list[Json] = [name for name, one in found if one is None]
        return _json({"operations": shown, "missing": missing})

    def _watch(self, names: list[str]) -> Iterator[bytes | float]:
        watched: dict[str, Operation | None] = dict.fromkeys(names)
        quiet = 0.0
        while watched:
            step = _STEP_SECONDS
            for name, before in list(watched.items()):
                script = self._known(name)
                if script is None:
                    yield _event("missing", {"name": name})
                    del watched[name]
                    continue
                state = self._state(script)
                if state != before:
                    yield _event("operation", operation_to_json(state, self.types))
                    quiet, watched[name] = 0.0, state
                if state.done:
                    del watched[name]
                step = min(step, script.changes(self.clock.now))
            if quiet >= _HEARTBEAT_SECONDS:
                yield b":\n\n"
                quiet = 0.0
            quiet += step
            if watched:
                yield step


def _json(value: dict[str, Json], status: int = 200) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.Response(status, headers=headers, content=dumps(value))


def _event(kind: str, value: dict[str, Json]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dumps(value) + b"\n\n"


def _object(request: httpx.Request) -> dict[str, Any]:
    if not request.content:
        return {}
    try:
        found = loads_strict(request.content)
    except ValueError as exc:
        raise Refused(Code.INVALID_ARGUMENT, f"the body is not JSON: {exc}") from None
    if not isinstance(found, dict):
        raise Refused(Code.INVALID_ARGUMENT, f"the body must be an object, got {found!r:.80}")
    return found


def _names(request: httpx.Request) -> list[str]:
    names = _object(request).get("names")
    if not isinstance(names, list) or not names:
        raise InvalidArgument("names", f"must be a list of names, got {names!r:.80}")
    return names


def _wanted(text: str) -> set[str] | None:
    if not text:
        return None
    if not _NAMES.fullmatch(text):
        known = 'a scripted server takes filters such as name = "a" OR name = "b"'
        raise Refused(Code.INVALID_ARGUMENT, f"{known}, got {text!r:.200}")
    return {json.loads(name) for name in re.findall(_TEXT, text)}
