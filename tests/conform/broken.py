"""A correct server of the interface, and a table of ways to break it.

A layer around the server gets each request and returns a reply. Most layers are made by functions
whose arguments select requests or replies, and say how to change them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, quote, unquote

import attrs

MEMBER: Final = re.compile(r"/v1/(operations/[^/:]+)")
TYPE: Final = "type.googleapis.com/"
EMPTY: Final = {"@type": f"{TYPE}google.protobuf.Empty"}


@attrs.define
class Asked:
    """A request, and the layer's memory of earlier requests."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    memory: dict[Any, Any]
    server: Callable[[Asked], Awaitable[Reply]]

    async def forward(self, **changes: Any) -> Reply:
        """Return the correct server's reply to this request, after these changes to the request."""
        return await self.server(attrs.evolve(self, **changes))

    @property
    def name(self) -> str:
        """The name of the operation in the path, or an empty text."""
        found = MEMBER.match(self.path)
        return unquote(found[1]) if found else ""

    @property
    def verb(self) -> str:
        """The verb of the interface, ``start``, or an empty text."""
        if self.path.endswith(":start"):
            return "start"
        for verb in ("cancel", "wait"):
            if self.method == "POST" and self.path.endswith(f":{verb}"):
                return verb
        if self.path == "/v1/operations":
            return "list"
        return {"GET": "get", "DELETE": "delete"}.get(self.method, "")

    def parameter(self, key: str) -> str:
        """Return a query parameter, or an empty text."""
        return parse_qs(self.query, keep_blank_values=True).get(key, [""])[0]

    @property
    def token(self) -> str:
        """The page token of a list request, or an empty text."""
        return self.parameter("pageToken") if self.verb == "list" else ""

    @property
    def filter(self) -> str:
        """The filter of a list request, or an empty text."""
        return self.parameter("filter") if self.verb == "list" else ""

    def times(self, key: object = "") -> int:
        """Count this call under the key; return the number of calls so far."""
        self.memory[key] = self.memory.get(key, 0) + 1
        return int(self.memory[key])


@attrs.define
class Reply:
    """A complete HTTP reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON value, or an empty object if the body is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def done(self) -> bool:
        return b'"done"' in self.body

    def saying(self, value: Any) -> Reply:
        """Return a copy of this reply with another JSON body."""
        return Reply(self.status, self.headers, json.dumps(value).encode())

    def operations(self, change: Callable[[dict[str, Any]], Any]) -> Reply:
        """Return this reply after a change to each operation in the body."""
        value = self.json
        found = value.get("operations", [value] if "name" in value else [])
        for one in found:
            change(one)
        return self.saying(value) if found else self


def replying(value: Any, status: int = 200) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(status, {"content-type": "application/json"}, json.dumps(value).encode())


def refusal(status: int = 500, code: str = "INTERNAL") -> Reply:
    """Return a well-formed error reply."""
    info = {"@type": f"{TYPE}google.rpc.ErrorInfo", "reason": "BROKEN", "domain": "acme.test"}
    error = {"code": status, "status": code, "message": "no", "details": [info]}
    return replying({"error": error}, status)


Layer: TypeAlias = Callable[[Asked], Awaitable[Reply]]


@attrs.define
class Broken:
    """An ASGI application with a layer around it."""

    app: Any
    layer: Layer
    memory: dict[Any, Any] = attrs.field(factory=dict)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = Asked(
            scope["method"],
            scope["raw_path"].decode(),
            scope["query_string"].decode(),
            {name.decode(): value.decode() for name, value in scope["headers"]},
            body,
            self.memory,
            lambda one: self._forward(scope, one),
        )
        reply = await self.layer(asked)
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        await send({"type": "http.response.body", "body": reply.body})

    async def _forward(self, scope: Any, asked: Asked) -> Reply:
        """Return the reply of the correct server."""
        sent, reply = asyncio.Event(), Reply(0, {}, b"")

        async def receive() -> Any:
            if sent.is_set():
                await asyncio.Event().wait()  # wait until the caller disconnects
            sent.set()
            return {"type": "http.request", "body": asked.body}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers |= {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                reply.body += message.get("body", b"")

        inner = {
            **scope,
            "method": asked.method,
            "path": unquote(asked.path),
            "raw_path": asked.path.encode(),
            "query_string": asked.query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in asked.headers.items()],
        }
        await self.app(inner, receive, send)
        return reply


async def nothing(asked: Asked) -> Reply:
    """Forward every request; this layer breaks nothing."""
    return await asked.forward()


# Functions that make layers

Where: TypeAlias = str | Callable[[Asked], object]
"""Selects requests: a verb or a condition; an empty text selects all requests."""


def meets(where: Where, asked: Asked) -> bool:
    return where in ("", asked.verb) if isinstance(where, str) else bool(where(asked))


def answers(where: Where, value: Any) -> Layer:
    """Answer the selected requests with this reply, without calling the server."""
    reply = value if isinstance(value, Reply) else replying(value)

    async def layer(asked: Asked) -> Reply:
        return attrs.evolve(reply) if meets(where, asked) else await asked.forward()

    return layer


def refuses(where: Where, status: int = 500, code: str = "INTERNAL") -> Layer:
    """Refuse the selected requests, without calling the server."""
    return answers(where, refusal(status, code))


def spoils(where: Callable[[Asked, Reply], object], value: Any) -> Layer:
    """Replace the selected replies with a value, or with the result of a function."""

    async def layer(asked: Asked) -> Reply:
        reply = await asked.forward()
        if not where(asked, reply):
            return reply
        found = value(asked, reply) if callable(value) else value
        return found if isinstance(found, Reply) else replying(found)

    return layer


def at(where: Where, status: int = 200) -> Callable[[Asked, Reply], object]:
    """Return a condition for replies to the selected requests that have this status."""
    return lambda asked, reply: meets(where, asked) and reply.status == status


def asks(where: Where, change: Callable[[Asked], dict[str, Any]]) -> Layer:
    """Change the selected requests before the server gets them."""

    async def layer(asked: Asked) -> Reply:
        return await asked.forward(**(change(asked) if meets(where, asked) else {}))

    return layer


def replaces(part: str, pattern: Any, by: Any) -> Layer:
    """Replace a pattern in one part of each request before the server gets the request."""
    return asks("", lambda asked: {part: re.sub(pattern, by, getattr(asked, part))})


def each(change: Callable[[dict[str, Any]], object], where: Where = "") -> Layer:
    return spoils(lambda asked, _: meets(where, asked), lambda _, reply: reply.operations(change))


def bodies(where: Where, change: Callable[[bytes], bytes]) -> Layer:
    """Change the bytes of successful replies to the selected requests."""
    return spoils(
        lambda asked, reply: meets(where, asked) and reply.status < 300,
        lambda _, reply: attrs.evolve(reply, body=change(reply.body)),
    )


def failed(asked: Asked, reply: Reply) -> bool:
    return reply.status >= 400


def evolves(**changes: Any) -> Callable[[Asked, Reply], Reply]:
    """Return a function that changes these parts of a reply."""
    return lambda _, reply: attrs.evolve(reply, **changes)


def errors(change: Callable[[dict[str, Any]], object]) -> Layer:
    """Change the error in error replies."""

    def changed(_: Asked, reply: Reply) -> Reply:
        value = reply.json
        if "error" in value:
            change(value["error"])
        return reply.saying(value) if value else reply

    return spoils(failed, changed)


def heads(name: str, value: str | None = None) -> Layer:
    """Set this header in all replies, or remove the header if there is no value."""

    def changed(_: Asked, reply: Reply) -> Reply:
        others = {key: one for key, one in reply.headers.items() if key != name}
        return attrs.evolve(reply, headers=others if value is None else {**others, name: value})

    return spoils(lambda *_: True, changed)


def sleeps(where: Where, seconds: float | Callable[[Asked], float]) -> Layer:
    """Delay the selected requests."""

    async def layer(asked: Asked) -> Reply:
        if meets(where, asked):
            await asyncio.sleep(seconds(asked) if callable(seconds) else seconds)
        return await asked.forward()

    return layer


def renames(ours: str, theirs: str) -> Layer:
    async def layer(asked: Asked) -> Reply:
        reply = await asked.forward(path=asked.path.replace(theirs, ours))
        return reply.operations(lambda one: one.update(name=one["name"].replace(ours, theirs)))

    return layer


def renames_tokens(make: Callable[[int], str]) -> Layer:
    """Replace the server's page tokens with other tokens in replies to clients."""

    async def layer(asked: Asked) -> Reply:
        given, memory = asked.token, asked.memory
        reply = await asked.forward(
            query=asked.query.replace(quote(given, safe=""), memory[given])
            if given in memory
            else asked.query
        )
        if asked.verb != "list" or "nextPageToken" not in reply.json:
            return reply
        token = make(len(memory) + 1)
        memory[token] = reply.json["nextPageToken"]
        return reply.saying({**reply.json, "nextPageToken": token})

    return layer


def acts_on_all(verb: str, method: str, *suffixes: str) -> Layer:
    """After a call for one operation, make these calls for every started operation."""

    async def layer(asked: Asked) -> Reply:
        reply = await asked.forward()
        if asked.verb == "start":
            asked.memory[reply.json["name"]] = True
        for name in asked.memory if asked.verb == verb else ():
            for suffix in suffixes:
                await asked.forward(method=method, path=f"/v1/{name}{suffix}")
        return reply

    return layer


def refuses_by_state(verb: str, done: bool, refused: Reply) -> Layer:
    """Refuse a verb for operations that are done, or for operations that are not done."""

    async def layer(asked: Asked) -> Reply:
        if asked.verb == verb:
            path = asked.path.removesuffix(f":{verb}")
            now = await asked.forward(method="GET", path=path, body=b"")
            if now.status == 200 and now.json.get("done", False) is done:
                return refused
        return await asked.forward()

    return layer


# Layers that remember earlier requests


async def starts_that_share_a_name(asked: Asked) -> Reply:
    if asked.verb != "start":
        return await asked.forward()
    if asked.body not in asked.memory:
        asked.memory[asked.body] = await asked.forward()
    return asked.memory[asked.body]


async def names_without_case(asked: Asked) -> Reply:
    name = asked.memory.get(asked.name.lower(), asked.name)
    reply = await asked.forward(path=asked.path.replace(asked.name, name))
    if asked.verb == "start":
        asked.memory[reply.json["name"].lower()] = reply.json["name"]
    return reply


async def done_that_is_taken_back(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "get" and reply.done and asked.times(asked.name) % 2 == 0:
        return reply.saying({key: reply.json[key] for key in ("name", "metadata")})
    return reply


async def results_that_differ(asked: Asked) -> Reply:
    def change(one: dict[str, Any]) -> None:
        if "response" in one:
            one["response"]["text"] = str(asked.times())

    return (await asked.forward()).operations(change)


async def waits_that_hold_up_the_others(asked: Asked) -> Reply:
    async with asked.memory.setdefault("lock", asyncio.Lock()):
        return await asked.forward()


async def waits_that_cancel_at_their_end(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "wait" and reply.status == 200 and not reply.done:
        await asked.forward(path=asked.path.replace(":wait", ":cancel"), body=b"{}")
    return reply


async def waits_that_cancel_when_their_callers_go(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "wait" and reply.status == 503:  # the server's reply to a cancelled call
        await asked.forward(path=asked.path.replace(":wait", ":cancel"), body=b"{}")
    return reply


async def cancels_of_the_name_in_a_body(asked: Asked) -> Reply:
    name = json.loads(asked.body or b"{}").get("name") if asked.verb == "cancel" else None
    reply = await asked.forward(path=f"/v1/{name}:cancel" if name else asked.path)
    if name:
        await asked.forward(path=f"/v1/{name}:wait")
    return reply


async def cancel_that_overwrites_results(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "cancel":
        asked.memory[asked.name] = True

    def change(one: dict[str, Any]) -> None:
        if one["name"] in asked.memory and one.pop("response", None):
            one["error"] = {"code": 1, "message": "cancelled"}

    return reply.operations(change)


async def observers_of_a_race_that_disagree(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "cancel":
        asked.memory[asked.name] = 0
    if asked.verb == "get" and reply.done and asked.name in asked.memory:
        number = asked.times(asked.name)
        if number > 1:
            error = {"code": 1, "message": f"by {number}"}
            return replying({"name": asked.name, "done": True, "error": error})
    return reply


async def deleted_that_come_back_when_done(asked: Asked) -> Reply:
    if asked.verb == "delete":
        asked.memory[asked.name] = True
        return replying({})
    reply = await asked.forward()
    gone = asked.name in asked.memory and asked.verb == "get" and not reply.done
    return refusal(404, "NOT_FOUND") if gone else reply


async def pages_that_repeat_an_operation(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb != "list":
        return reply
    value = reply.json
    if asked.token and asked.memory.get("last"):
        value.setdefault("operations", []).insert(0, asked.memory["last"])
    asked.memory["last"] = (value.get("operations") or [None])[-1]
    return reply.saying(value)


async def pages_without_a_token(asked: Asked) -> Reply:
    reply = await asked.forward()
    return reply.saying({**reply.json, "nextPageToken": ""}) if asked.verb == "list" else reply


async def lists_that_are_cut(asked: Asked) -> Reply:
    """Return only the oldest operations in every list, and no page token."""
    if asked.verb != "list":
        return await asked.forward()
    reply = await asked.forward(query=re.sub(r"pageSize=\d+", "pageSize=1000", asked.query))
    value = reply.json
    return reply.saying({"operations": value.get("operations", [])[-2:]}) if value else reply


async def page_sizes_that_are_ignored(asked: Asked) -> Reply:
    if asked.verb != "list":
        return await asked.forward()
    reply = await asked.forward(query=f"pageToken={quote(asked.token)}")
    return reply.saying({**reply.json, "nextPageToken": "qqqq"})


async def tokens_that_are_not_checked(asked: Asked) -> Reply:
    reply = await asked.forward()
    return await asked.forward(query="") if asked.token and reply.status == 400 else reply


async def lists_with_what_was_deleted(asked: Asked) -> Reply:
    reply = await asked.forward()
    if asked.verb == "delete":
        asked.memory[asked.name] = {"name": asked.name}
    if asked.verb == "list" and reply.status == 200:
        return replying({"operations": [*reply.json.get("operations", []), *asked.memory.values()]})
    return reply


# The table of faults


ZERO: Final = b'{"timeout": "0s"}'
TRACE: Final = 'Traceback (most recent call last):\n  File "/srv/app.py", line 7, in get'
RETRY: Final = {"@type": f"{TYPE}google.rpc.RetryInfo", "retryDelay": 1500}
TOKENS: Final[Where] = attrgetter("token")
FILTERS: Final[Where] = attrgetter("filter")
MEMBERS: Final[Where] = attrgetter("name")
NOT_FOUND: Final = (404, "NOT_FOUND")
DENIED: Final = (403, "PERMISSION_DENIED")
NO_METHOD: Final = (405, "UNIMPLEMENTED")
UNKNOWN: Final = (500, "UNKNOWN")
FAILED: Final = (400, "FAILED_PRECONDITION")
INVALID: Final = (400, "INVALID_ARGUMENT")


def named(asked: Asked, _: Reply) -> Any:
    return {"name": asked.name}


def timeout(asked: Asked) -> float:
    return float(json.loads(asked.body or b"{}").get("timeout", "0s").rstrip("s"))


def holds(part: str, text: Any) -> Where:
    """Select requests that have this text in the given part."""
    return lambda asked: text in getattr(asked, part)


def named_beside_the_path(asked: Asked) -> dict[str, Any]:
    """Use the name in the query or the body, and not the one in the path."""
    given = {"name": asked.parameter("name") or asked.name, **json.loads(asked.body or b"{}")}
    return {"path": asked.path.replace(asked.name, given["name"]), "query": ""}


def again(verb: str) -> Where:
    """Select all requests with this verb except the first for each operation."""
    return lambda asked: asked.verb == verb and asked.times(asked.name) > 1


FAULTS: Final[dict[str, Layer | list[Layer]]] = {
    # Names and starts
    "start.operation": answers("start", {"id": 7}),
    "start.readable": refuses(
        lambda asked: asked.verb == "get" and asked.times(asked.name) == 1, *NOT_FOUND
    ),
    "names.present names.same": each(lambda one: one.pop("name"), "get"),
    "names.same": each(lambda one: one.update(name=f"{one['name']}-x"), "get"),
    "names.unique": starts_that_share_a_name,
    "names.form": [renames("operations/", "jobs/"), renames("operations/", "operations//")],
    "names.unknown": spoils(at("get", 404), named),
    "names.unknown errors.no-defect": spoils(at(MEMBERS, 404), refusal()),
    "names.malformed": refuses(lambda asked: len(asked.path) > 2000),
    "names.case": names_without_case,
    "names.encoded": refuses(holds("path", "%"), *NOT_FOUND),
    # Results
    "result.none-before-done": [
        each(lambda one: one.get("done") or one.update(response=EMPTY), verb)
        for verb in ("get", "wait", "list")
    ],
    "result.success": each(lambda one: one.pop("response", None)),
    "result.one-when-done": each(lambda one: "response" in one and one.update(error={"code": 5})),
    "result.error-code": each(
        lambda one: "error" in one and one.update(error={"code": 0, "message": "no"})
    ),
    "result.error-code json.types": each(
        lambda one: "error" in one and one.update(error={"code": "ABORTED"})
    ),
    "result.error-message": each(lambda one: one.get("error", {}).pop("message", None)),
    "result.failure": [
        spoils(
            lambda asked, reply: at("get")(asked, reply) and "error" in reply.json, refusal(*FAILED)
        ),
        each(lambda one: one.pop("error", None) and one.update(response=EMPTY)),
        each(lambda one: one.pop("error", None)),
    ],
    "any.types": [
        each(lambda one: one["metadata"].update({"@type": ""}), "wait"),
        each(lambda one: one["metadata"].pop("@type")),
        each(lambda one: one.get("response", {}).pop("@type", 0)),
    ],
    "any.metadata-type": [
        each(lambda one: one.get("done") and one["metadata"].update(EMPTY)),
        each(lambda one: one["metadata"].update(EMPTY), "list"),
    ],
    "names.present": each(lambda one: one.get("done") and one.pop("name")),
    "states.final states.repeated-gets": done_that_is_taken_back,
    "states.final states.many-gets": results_that_differ,
    "states.repeated-gets states.many-gets": spoils(
        lambda asked, reply: asked.verb == "get" and reply.done and (asked.times() % 3 == 0),
        refusal(503, "UNAVAILABLE"),
    ),
    "metadata.times": each(lambda one: one["metadata"].update(createTime="2999-01-01T00:00:00Z")),
    # Methods
    "calls.get": refuses("get", *DENIED),
    "calls.cancel": refuses("cancel", *NOT_FOUND),
    "calls.delete": refuses("delete", *NOT_FOUND),
    "calls.list": [refuses("list"), refuses("list", *NOT_FOUND)],
    "calls.wait": [refuses("wait", *DENIED), refuses("wait", *NOT_FOUND)],
    "wait.done-at-once wait.until-end": sleeps("wait", timeout),
    "wait.timeout wait.zero": sleeps("wait", 1.5),
    "wait.timeout": spoils(
        lambda asked, reply: asked.verb == "wait" and asked.body != ZERO and (not reply.done),
        refusal(504, "DEADLINE_EXCEEDED"),
    ),
    "wait.done-at-once": each(lambda one: one.get("response", {}).update(text="x"), "wait"),
    "wait.until-end": spoils(
        lambda asked, reply: asked.verb == "wait" and reply.done, refusal(409, "ABORTED")
    ),
    "wait.zero": refuses(
        lambda asked: asked.verb == "wait" and asked.body == ZERO and (asked.times() > 1), *INVALID
    ),
    "wait.changes-nothing states.goes-on": waits_that_cancel_at_their_end,
    "wait.changes-nothing": waits_that_cancel_when_their_callers_go,
    "wait.waits": asks("wait", lambda _: {"body": ZERO}),
    "wait.negative": replaces("body", b'"-1s"', b'"0s"'),
    "wait.unknown": spoils(at("wait", 404), named),
    "wait.beside-others": waits_that_hold_up_the_others,
    "cancel.empty": spoils(at("cancel"), named),
    "cancel.ends": answers("cancel", {}),
    "cancel.at-once": sleeps("cancel", 1.5),
    "cancel.code": [
        each(lambda one: "error" in one and one["error"].update(code=10)),
        asks(
            "cancel", lambda asked: {"path": asked.path.removesuffix(":cancel"), "method": "DELETE"}
        ),
    ],
    "cancel.again": [
        refuses(again("cancel"), *FAILED),
        refuses_by_state("cancel", True, refusal(*FAILED)),
    ],
    "cancel.race": [refuses(again("cancel")), observers_of_a_race_that_disagree],
    "cancel.done-unchanged states.final": cancel_that_overwrites_results,
    "cancel.done-unchanged": refuses_by_state("cancel", True, refusal()),
    "cancel.unknown": spoils(at("cancel", 404), {}),
    "cancel.no-other": acts_on_all("cancel", "POST", ":cancel", ":wait"),
    "delete.empty": spoils(at("delete"), named),
    "delete.gone pages.deleted": answers("delete", {}),
    "delete.gone": answers(again("delete"), {}),
    "delete.unknown": spoils(at("delete", 404), {}),
    "delete.no-other": [
        acts_on_all("delete", "DELETE", ""),
        acts_on_all("delete", "POST", ":cancel", ":wait"),
    ],
    "delete.running": refuses_by_state("delete", False, refusal(*FAILED)),
    "delete.stays-gone": deleted_that_come_back_when_done,
    # Lists
    "pages.shape": [
        spoils(at("list"), {"operations": {"a": {}}}),
        spoils(at("list"), {"operations": ["operations/a"]}),
        spoils(at("list"), lambda _, reply: {**reply.json, "nextPageToken": 7}),
    ],
    "pages.contains pages.zero-size filters.empty": spoils(at("list"), {}),
    "pages.walk": [
        pages_that_repeat_an_operation,
        spoils(
            at(TOKENS), lambda _, reply: {**reply.json, "operations": reply.json["operations"][1:]}
        ),
        spoils(at(TOKENS), lambda asked, reply: {"nextPageToken": asked.token, **reply.json}),
    ],
    "pages.walk ": [pages_without_a_token, lists_that_are_cut],
    "pages.size forms.camel-parameter": page_sizes_that_are_ignored,
    "pages.size": replaces("query", "pageSize=[0-9]+", ""),
    "pages.zero-size": refuses(lambda asked: asked.parameter("pageSize") == "0", *INVALID),
    "pages.large-size": refuses(lambda asked: len(asked.parameter("pageSize")) > 4, *INVALID),
    "pages.negative-size": replaces("query", "pageSize=-1", "pageSize=1"),
    "pages.bad-token pages.altered-token": tokens_that_are_not_checked,
    "pages.opaque-token": [
        renames_tokens(lambda number: f"{number * 10}"),
        renames_tokens(
            lambda number: base64.urlsafe_b64encode(b'{"offset": %d}' % number).decode().rstrip("=")
        ),
    ],
    "pages.url-safe-token": renames_tokens(lambda number: f"x/y+{number}"),
    "pages.other-size": [
        refuses(lambda asked: asked.token and "pageSize=2" in asked.query, *INVALID),
        spoils(at(TOKENS), lambda _, reply: {"operations": reply.json["operations"] * 3}),
    ],
    "pages.same-token": refuses(
        lambda asked: asked.token and asked.times(asked.token) > 1, *INVALID
    ),
    "pages.other-filter": asks(
        TOKENS, lambda asked: {"query": re.sub("&?filter=[^&]*", "", asked.query)}
    ),
    "pages.unknown-parent": [
        refuses(lambda asked: asked.path.startswith("/v1/projects/"), *UNKNOWN),
        replaces("path", "/v1/projects/.*", "/v1/operations"),
    ],
    "pages.agree": each(lambda one: one.pop("response", one.pop("error", None)), "list"),
    "pages.deleted": lists_with_what_was_deleted,
    "filters.done": [replaces("query", "&?filter=[^&]*", ""), answers(FILTERS, {})],
    "filters.empty": refuses(lambda asked: asked.query.endswith("filter="), *INVALID),
    "filters.malformed filters.unknown-field": spoils(at(FILTERS, 400), {}),
    "filters.malformed errors.no-defect": spoils(at(FILTERS, 400), refusal()),
    # HTTP
    "routes.unknown-path": spoils(at(holds("path", "lro-conform"), 404), {}),
    "routes.unknown-verb": answers(lambda asked: asked.path.endswith("Unknown"), {}),
    "routes.wrong-method": answers(holds("method", "PUT"), {}),
    "routes.allow": heads("allow"),
    "routes.safe-get": asks(
        lambda asked: asked.path.endswith(":cancel"), lambda _: {"method": "POST"}
    ),
    "routes.head": refuses(holds("method", "HEAD"), *NO_METHOD),
    "routes.options": refuses(holds("method", "OPTIONS"), *NO_METHOD),
    "forms.empty-body": refuses(
        lambda asked: asked.verb == "cancel" and (not asked.body), *INVALID
    ),
    "forms.media-type": refuses(
        lambda asked: "charset" in asked.headers.get("content-type", ""), 415, "INVALID_ARGUMENT"
    ),
    "forms.malformed-body": asks("cancel", lambda _: {"body": b"{}"}),
    "forms.malformed-body errors.no-defect": spoils(at("cancel", 400), refusal()),
    "forms.unknown-field": refuses(holds("body", b"lroConformUnknown"), *NOT_FOUND),
    "forms.bound-name": [
        *(asks(verb, named_beside_the_path) for verb in ("get", "wait", "delete")),
        cancels_of_the_name_in_a_body,
        refuses(holds("query", "name=")),
    ],
    "forms.unknown-parameter": refuses(holds("query", "lroConformUnknown")),
    "forms.alt": refuses(holds("query", "alt="), *INVALID),
    "forms.snake-parameter": refuses(holds("query", "page_size"), *INVALID),
    "forms.wrong-type": replaces("query", "pageSize=many", ""),
    "forms.timeout": replaces("body", b'"1"', b'"0s"'),
    "robust.paths": refuses(holds("path", "%zz"), *UNKNOWN),
    "robust.bodies": refuses(lambda asked: len(asked.body) > 99999, *UNKNOWN),
    "robust.queries": refuses(holds("query", "&&&"), *UNKNOWN),
    "robust.get-body": refuses(lambda asked: asked.method == "GET" and asked.body, *UNKNOWN),
    "robust.answers": sleeps("list", 3600.0),
    "auth.anonymous": nothing,
    "auth.challenge": refuses(
        lambda asked: "authorization" not in asked.headers, 401, "UNAUTHENTICATED"
    ),
    "http.content-type": [
        heads("content-type", "text/html"),
        heads("content-type", "application/json; charset=iso-8859-1"),
    ],
    "http.no-store": heads("cache-control", "public, max-age=60"),
    "http.retry-after": [
        heads("retry-after", "soon"),
        heads("retry-after", "Wed, 25 Nov 2026 20:00:00 +0100"),
        heads("retry-after", "Wed, 25 Nov 2026 20:00:00 +0100 GMT"),
        heads("retry-after", "25 Nov 2026 7:0 GMT"),
    ],
    "http.poll-interval": heads("retry-after"),
    # Errors
    "errors.envelope json.utf8 errors.message": spoils(failed, evolves(body=b"not found")),
    "json.utf8": spoils(failed, evolves(body=b"")),
    "errors.envelope errors.code": errors(lambda one: one.update(code="404")),
    "errors.envelope": errors(lambda one: one.pop("status")),
    "errors.envelope-everywhere": spoils(
        at(holds("path", "lro-conform"), 404), evolves(body=b"not found")
    ),
    "errors.code": errors(lambda one: one.update(code=5)),
    "errors.mapping": spoils(failed, evolves(status=400)),
    "errors.message": errors(lambda one: one.pop("message")),
    "errors.no-internals": errors(lambda one: one.update(message=TRACE)),
    "errors.detail-types": errors(lambda one: one.update(details=[{"reason": "X"}])),
    "errors.details-once": errors(lambda one: one.update(details=one["details"] * 2)),
    "errors.error-info": [
        errors(lambda one: one.pop("details")),
        errors(lambda one: one["details"][0].update(reason="not found")),
        errors(lambda one: one["details"][0].pop("domain")),
    ],
    "json.retry-info": errors(lambda one: one["details"].append(RETRY)),
    # JSON
    "replies.readable": [bodies("list", lambda body: body[:-2]), bodies("list", lambda _: b"[]")],
    "json.strict": [
        bodies("", lambda body: body.replace(b'"name"', b'"name":"x","name"', 1)),
        bodies("", lambda body: body.replace(b'"@type"', b'"ratio":NaN,"@type"', 1)),
        bodies("", lambda body: body.replace(b'"@type"', b'"ratio":1e999,"@type"', 1)),
    ],
    "json.fields": [
        bodies("", lambda body: body.replace(b"nextPageToken", b"next_page_token")),
        each(lambda one: one.update(state="RUNNING")),
    ],
    "json.types": each(lambda one: one.update(done="true"), "list"),
    "json.times": each(lambda one: one["metadata"].update(createTime="2026-01-01 12:00:00")),
    "json.metadata-names": each(lambda one: one["metadata"].update(progress_bar=1)),
    "json.large-numbers": each(lambda one: one["metadata"].update(bytes=[2**60])),
}
"""All ways to break the server, each under the ids of the checks that must fail."""

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "cancel.ends": {"end": 0.3},
    "robust.answers": {"call_seconds": 5.0},
    "auth.anonymous": {"headers": (("Authorization", "Bearer secret"),)},
    "auth.challenge": {"headers": (("Authorization", "Bearer secret"),)},
}
"""Options of the kit, such as shorter times, for the faults with these ids."""
