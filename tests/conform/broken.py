"""A correct server of the interface, and ways to break it: each fault is a layer around it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, quote, unquote

import attrs

MEMBER: Final = re.compile(r"/v1/(operations/[^/:]+)")


@attrs.define
class Asked:
    """A request, whole."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        """The name of the operation that it is about; empty for others."""
        found = MEMBER.match(self.path)
        return unquote(found[1]) if found else ""

    @property
    def verb(self) -> str:
        """The method of the interface, or ``start``."""
        if self.path.endswith(":start"):
            return "start"
        for verb in ("cancel", "wait"):
            if self.method == "POST" and self.path.endswith(f":{verb}"):
                return verb
        if self.path == "/v1/operations":
            return "list"
        return {"GET": "get", "DELETE": "delete"}.get(self.method, "")

    def parameter(self, key: str) -> str:
        """A query parameter; empty without one."""
        return parse_qs(self.query, keep_blank_values=True).get(key, [""])[0]


@attrs.define
class Reply:
    """A reply, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)

    def saying(self, value: Any, status: int | None = None) -> Reply:
        """The same with another body, and perhaps another status."""
        return Reply(status or self.status, self.headers, json.dumps(value).encode())

    def operations(self, change: Callable[[dict[str, Any]], Any]) -> Reply:
        """The same after a change of each operation in it."""
        value = self.json
        for one in value.get("operations", [value] if "name" in value else []):
            change(one)
        return self.saying(value)

    def errors(self, change: Callable[[dict[str, Any]], Any]) -> Reply:
        """The same after a change of the error in it."""
        value = self.json
        if "error" in value and "name" not in value:
            change(value["error"])
        return self.saying(value)


def replying(value: Any, status: int = 200) -> Reply:
    """A reply with a JSON body."""
    return Reply(status, {"content-type": "application/json"}, json.dumps(value).encode())


def refusal(status: int, code: str) -> Reply:
    """A well-formed refusal."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "BROKEN",
        "domain": "acme.test",
    }
    return replying(
        {"error": {"code": status, "status": code, "message": "no", "details": [info]}}, status
    )


Forward: TypeAlias = Callable[[Asked], Awaitable[Reply]]
Layer: TypeAlias = Callable[[Asked, Forward, dict[str, Any]], Awaitable[Reply]]


@attrs.frozen
class Fault:
    """A way to break the server, and the checks that must find it."""

    name: str
    found_by: tuple[str, ...]
    layer: Layer
    headers: tuple[tuple[str, str], ...] = ()
    """What the kit is given to send."""
    end_seconds: float = 60.0
    """How long it waits for the end of an operation."""
    call_seconds: float = 60.0
    """How long it waits for a reply."""


FAULTS: Final[list[Fault]] = []


def fault(*found_by: str, **more: Any) -> Callable[[Layer], Layer]:
    """Add a layer to the faults."""

    def add(layer: Layer) -> Layer:
        FAULTS.append(Fault(layer.__name__, found_by, layer, **more))
        return layer

    return add


@attrs.define
class Broken:
    """An ASGI application with a layer around it."""

    app: Any
    layer: Layer
    memory: dict[str, Any] = attrs.field(factory=dict)

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
        )
        reply = await self.layer(asked, lambda one: self._forward(scope, one), self.memory)
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        await send({"type": "http.response.body", "body": reply.body})

    async def _forward(self, scope: Any, asked: Asked) -> Reply:
        """The reply of the correct server."""
        sent, reply = asyncio.Event(), Reply(0, {}, b"")

        async def receive() -> Any:
            if sent.is_set():
                await asyncio.Event().wait()  # until the caller goes
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


async def nothing(asked: Asked, forward: Forward, memory: dict[str, Any]) -> Reply:
    """The layer that breaks nothing."""
    return await forward(asked)


# Names and starts


@fault("start.operation")
async def start_without_an_operation(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({"id": 7}) if asked.verb == "start" else await forward(asked)


@fault("start.readable")
async def start_before_it_is_stored(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "get" and asked.name not in memory:
        memory[asked.name] = True
        return refusal(404, "NOT_FOUND")
    return await forward(asked)


@fault("names.present", "names.same")
async def gets_without_name(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one.pop("name")) if asked.verb == "get" else reply


@fault("names.same")
async def gets_with_another_name(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = {"name": f"{asked.name}-x"}
    return reply.operations(lambda one: one.update(wrong)) if asked.verb == "get" else reply


@fault("names.unique")
async def starts_that_share_a_name(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb != "start":
        return await forward(asked)
    if asked.body not in memory:
        memory[asked.body] = await forward(asked)
    return memory[asked.body]


@fault("names.form")
async def names_with_another_collection(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.path = asked.path.replace("/jobs/", "/operations/")
    reply = await forward(asked)
    return reply.operations(
        lambda one: one.update(name=one["name"].replace("operations/", "jobs/"))
    )


@fault("names.unknown")
async def unknown_names_that_exist(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    made = asked.verb == "get" and reply.status == 404
    return replying({"name": asked.name}) if made else reply


@fault("names.unknown", "errors.no-defect")
async def unknown_names_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return refusal(500, "INTERNAL") if reply.status == 404 and asked.name else reply


@fault("names.malformed")
async def long_names_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(500, "INTERNAL") if len(asked.path) > 2000 else await forward(asked)


@fault("names.case")
async def names_without_case(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "start":
        reply = await forward(asked)
        memory[reply.json["name"].lower()] = reply.json["name"]
        return reply
    if asked.name.lower() in memory:
        asked.path = asked.path.replace(asked.name, memory[asked.name.lower()])
    return await forward(asked)


@fault("names.encoded")
async def paths_that_are_not_decoded(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(404, "NOT_FOUND") if "%" in asked.path else await forward(asked)


@fault("names.form")
async def names_with_an_empty_segment(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.path = asked.path.replace("operations//", "operations/")
    reply = await forward(asked)
    return reply.operations(
        lambda one: one.update(name=one["name"].replace("operations/", "operations//"))
    )


# Results


@fault("result.none-before-done")
async def response_before_the_end(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def change(one: dict[str, Any]) -> None:
        if not one.get("done"):
            one["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}

    return (await forward(asked)).operations(change)


@fault("result.success")
async def end_without_a_result(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one.pop("response", None))


@fault("result.one-when-done")
async def end_with_both(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def change(one: dict[str, Any]) -> None:
        if "response" in one:
            one["error"] = {"code": 5}

    return (await forward(asked)).operations(change)


@fault("result.error-code")
async def failure_with_code_zero(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(
        lambda one: one.update(error={"code": 0, "message": "no"}) if "error" in one else None
    )


@fault("result.error-code", "json.types")
async def failure_with_the_name_of_a_code(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(
        lambda one: one.update(error={"code": "ABORTED"}) if "error" in one else None
    )


@fault("result.error-message")
async def failure_without_a_message(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one.get("error", {}).pop("message", None))


@fault("result.failure")
async def failures_that_cannot_be_read(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    failed = asked.verb == "get" and reply.status == 200 and "error" in reply.json
    return refusal(400, "FAILED_PRECONDITION") if failed else reply


@fault("result.failure")
async def failures_that_succeed(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def change(one: dict[str, Any]) -> None:
        if one.pop("error", None):
            one["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}

    return (await forward(asked)).operations(change)


@fault("any.types")
async def metadata_without_type(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one["metadata"].pop("@type"))


@fault("any.types")
async def responses_without_type(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one.get("response", {}).pop("@type", 0))


@fault("any.metadata-type")
async def metadata_of_another_type_at_the_end(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def change(one: dict[str, Any]) -> None:
        if one.get("done"):
            one["metadata"]["@type"] = "type.googleapis.com/google.protobuf.Empty"

    return (await forward(asked)).operations(change)


@fault("any.metadata-type")
async def metadata_of_another_type_in_lists(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb != "list":
        return reply
    return reply.operations(
        lambda one: one["metadata"].update({"@type": "type.googleapis.com/acme.v1.Summary"})
    )


@fault("names.present")
async def ends_without_name(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one.pop("name") if one.get("done") else None)


@fault("states.final", "states.repeated-gets")
async def done_that_is_taken_back(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)

    def change(one: dict[str, Any]) -> None:
        if one.get("done"):
            memory[one["name"]] = memory.get(one["name"], 0) + 1
            if memory[one["name"]] % 2 == 0:
                for key in ("done", "error", "response"):
                    one.pop(key, None)

    return reply.operations(change) if asked.verb == "get" else reply


@fault("states.final", "states.many-gets")
async def results_that_differ(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def change(one: dict[str, Any]) -> None:
        memory["number"] = memory.get("number", 0) + 1
        if "response" in one:
            one["response"]["text"] = str(memory["number"])

    return (await forward(asked)).operations(change)


@fault("states.repeated-gets", "states.many-gets")
async def gets_that_fail_now_and_then(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "get" and b'"done"' in reply.body:
        memory["number"] = memory.get("number", 0) + 1
        return refusal(503, "UNAVAILABLE") if memory["number"] % 3 == 0 else reply
    return reply


@fault("metadata.times")
async def times_that_run_backwards(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(
        lambda one: one["metadata"].update(createTime="2999-01-01T00:00:00Z")
    )


# Methods


@fault("calls.get")
async def gets_that_are_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(403, "PERMISSION_DENIED") if asked.verb == "get" else await forward(asked)


@fault("calls.cancel")
async def cancel_without_a_route(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(404, "NOT_FOUND") if asked.verb == "cancel" else await forward(asked)


@fault("calls.delete")
async def delete_without_a_route(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(404, "NOT_FOUND") if asked.verb == "delete" else await forward(asked)


@fault("calls.list")
async def list_that_crashes(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(500, "INTERNAL") if asked.verb == "list" else await forward(asked)


@fault("calls.wait")
async def wait_that_is_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(403, "PERMISSION_DENIED") if asked.verb == "wait" else await forward(asked)


@fault("wait.done-at-once", "wait.until-end")
async def waits_that_last_their_timeout(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "wait" and asked.body:
        await asyncio.sleep(float(json.loads(asked.body).get("timeout", "0s").rstrip("s")))
    return await forward(asked)


@fault("wait.timeout", "wait.zero")
async def waits_that_outlast_their_timeout(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "wait":
        await asyncio.sleep(1.5)
    return await forward(asked)


@fault("wait.timeout")
async def waits_that_fail_at_their_timeout(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    late = asked.verb == "wait" and asked.body != b'{"timeout": "0s"}' and b"done" not in reply.body
    return refusal(504, "DEADLINE_EXCEEDED") if late else reply


@fault("wait.done-at-once")
async def waits_with_another_result(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb != "wait":
        return reply
    return reply.operations(lambda one: one.get("response", {}).update(text="another"))


@fault("wait.until-end")
async def waits_that_fail_at_the_end(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    ended = asked.verb == "wait" and b'"done"' in reply.body
    return refusal(409, "ABORTED") if ended else reply


@fault("wait.zero")
async def waits_of_zero_that_fail_later(asked: Asked, forward: Forward, memory: Any) -> Reply:
    zero = asked.verb == "wait" and asked.body == b'{"timeout": "0s"}'
    memory["number"] = memory.get("number", 0) + zero
    refused = zero and memory["number"] > 1
    return refusal(400, "INVALID_ARGUMENT") if refused else await forward(asked)


@fault("wait.waits")
async def waits_that_do_not_wait(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "wait":
        asked.body = b'{"timeout": "0s"}'
    return await forward(asked)


@fault("wait.negative")
async def negative_timeouts_taken_for_zero(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.body = asked.body.replace(b'"-1s"', b'"0s"')
    return await forward(asked)


@fault("wait.unknown")
async def waits_for_what_is_not_there(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return replying({"name": asked.name}) if asked.verb == "wait" and reply.status == 404 else reply


@fault("wait.beside-others")
async def waits_that_hold_up_the_others(asked: Asked, forward: Forward, memory: Any) -> Reply:
    async with memory.setdefault("lock", asyncio.Lock()):
        return await forward(asked)


@fault("cancel.empty")
async def cancel_that_answers_the_operation(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    done = asked.verb == "cancel" and reply.status == 200
    return replying({"name": asked.name, "done": True}) if done else reply


@fault("cancel.ends", end_seconds=0.3)
async def cancel_that_does_nothing(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({}) if asked.verb == "cancel" else await forward(asked)


@fault("cancel.at-once")
async def cancel_that_takes_its_time(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel":
        await asyncio.sleep(1.5)
    return await forward(asked)


@fault("cancel.code")
async def cancelled_with_another_code(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(
        lambda one: one["error"].update(code=10) if "error" in one else None
    )


@fault("cancel.code")
async def cancelled_and_removed(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel":
        asked.path, asked.method = asked.path.removesuffix(":cancel"), "DELETE"
    return await forward(asked)


@fault("cancel.again")
async def second_cancel_that_is_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel" and memory.setdefault(asked.name, 0):
        return refusal(400, "FAILED_PRECONDITION")
    memory[asked.name] = asked.verb == "cancel"
    return await forward(asked)


@fault("cancel.done-unchanged", "states.final")
async def cancel_that_overwrites_results(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "cancel":
        memory[asked.name] = True

    def change(one: dict[str, Any]) -> None:
        if one["name"] in memory and one.pop("response", None):
            one["error"] = {"code": 1, "message": "cancelled"}

    return reply.operations(change)


@fault("cancel.again")
async def cancel_of_what_is_done_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel":
        path = asked.path.removesuffix(":cancel")
        now = await forward(attrs.evolve(asked, method="GET", path=path, body=b""))
        if now.json.get("done"):
            return refusal(400, "FAILED_PRECONDITION")
    return await forward(asked)


@fault("cancel.done-unchanged")
async def cancel_of_what_is_done_crashes(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "get":
        reply = await forward(asked)
        memory[asked.name] = b'"done"' in reply.body
        return reply
    crash = asked.verb == "cancel" and memory.get(asked.name)
    return refusal(500, "INTERNAL") if crash else await forward(asked)


@fault("cancel.race")
async def second_cancel_that_crashes(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel" and memory.setdefault(asked.name, 0):
        return refusal(500, "INTERNAL")
    memory[asked.name] = asked.verb == "cancel"
    return await forward(asked)


@fault("cancel.unknown")
async def cancel_of_what_is_not_there(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return replying({}) if asked.verb == "cancel" and reply.status == 404 else reply


@fault("cancel.no-other")
async def cancel_of_all(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "start":
        memory[reply.json["name"]] = True
    for name in memory if asked.verb == "cancel" else ():
        await forward(attrs.evolve(asked, path=f"/v1/{name}:cancel"))
        await forward(attrs.evolve(asked, path=f"/v1/{name}:wait"))
    return reply


@fault("cancel.race")
async def observers_of_a_race_that_disagree(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "cancel":
        memory[asked.name] = 0

    def change(one: dict[str, Any]) -> None:
        if one.get("done") and one["name"] in memory:
            memory[one["name"]] += 1
            if memory[one["name"]] > 1:
                one.pop("response", None)
                one["error"] = {"code": 1, "message": f"by {memory[one['name']]}"}

    return reply.operations(change) if asked.verb == "get" else reply


@fault("delete.empty")
async def delete_that_answers_the_operation(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    done = asked.verb == "delete" and reply.status == 200
    return replying({"name": asked.name}) if done else reply


@fault("delete.gone", "pages.deleted")
async def delete_that_removes_nothing(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({}) if asked.verb == "delete" else await forward(asked)


@fault("delete.gone")
async def second_delete_that_succeeds(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "delete" and reply.status == 404 and asked.name in memory:
        return replying({})
    memory[asked.name] = asked.verb == "delete" and reply.status == 200
    return reply


@fault("delete.unknown")
async def delete_of_what_is_not_there(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return replying({}) if asked.verb == "delete" and reply.status == 404 else reply


@fault("delete.no-other")
async def delete_of_all(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "start":
        memory[reply.json["name"]] = True
    for name in memory if asked.verb == "delete" else ():
        await forward(attrs.evolve(asked, path=f"/v1/{name}"))
    return reply


@fault("delete.no-other")
async def delete_that_cancels_all(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "start":
        memory[reply.json["name"]] = True
    for name in memory if asked.verb == "delete" else ():
        path = f"/v1/{name}:cancel"
        await forward(attrs.evolve(asked, path=path, method="POST"))
        await forward(attrs.evolve(asked, path=f"/v1/{name}:wait", method="POST"))
    return reply


@fault("delete.running")
async def delete_of_what_is_done_alone(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "delete":
        now = await forward(attrs.evolve(asked, method="GET"))
        if not now.json.get("done") and now.status == 200:
            return refusal(400, "FAILED_PRECONDITION")
    return await forward(asked)


@fault("delete.stays-gone")
async def deleted_that_come_back_when_done(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "delete":
        memory[asked.name] = True
        return replying({})
    reply = await forward(asked)
    gone = asked.name in memory and asked.verb == "get" and not reply.json.get("done")
    return refusal(404, "NOT_FOUND") if gone else reply


# Lists


def page(*names: str, token: str = "", **more: Any) -> Reply:
    """A page of operations in progress."""
    return replying(
        {"operations": [{"name": one} for one in names], "nextPageToken": token, **more}
    )


@fault("pages.shape")
async def pages_as_objects(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = asked.verb == "list" and reply.status == 200
    return replying({"operations": {"a": {}}}) if wrong else reply


@fault("pages.shape")
async def pages_of_names(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = asked.verb == "list" and reply.status == 200
    return replying({"operations": ["operations/a"], "nextPageToken": 7}) if wrong else reply


@fault("pages.shape")
async def tokens_that_are_numbers(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = asked.verb == "list" and reply.status == 200
    return reply.saying({**reply.json, "nextPageToken": 7}) if wrong else reply


@fault("pages.contains", "pages.zero-size", "filters.empty")
async def lists_that_are_empty(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return replying({}) if asked.verb == "list" and reply.status == 200 else reply


@fault("pages.walk")
async def pages_that_repeat_an_operation(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    value = reply.json
    if asked.verb == "list" and asked.parameter("pageToken") and memory.get("last"):
        value.setdefault("operations", []).insert(0, memory["last"])
        reply = reply.saying(value)
    memory["last"] = (value.get("operations") or [None])[-1] if asked.verb == "list" else None
    return reply


@fault("pages.walk")
async def pages_that_skip_an_operation(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "list" and asked.parameter("pageToken") and reply.status == 200:
        value = reply.json
        return reply.saying({**value, "operations": value["operations"][1:]})
    return reply


@fault("pages.walk")
async def pages_without_end(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb != "list" or reply.status != 200:
        return reply
    value = reply.json
    if asked.parameter("pageToken") and "nextPageToken" not in value:
        return reply.saying({**value, "nextPageToken": asked.parameter("pageToken")})
    return reply


@fault("pages.size", "forms.camel-parameter")
async def page_sizes_that_are_ignored(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "list":
        known = {key: asked.parameter(key) for key in ("pageToken", "filter")}
        asked.query = "&".join(f"{key}={quote(value)}" for key, value in known.items())
        reply = await forward(asked)
        return reply.saying({**reply.json, "nextPageToken": "qqqq"})
    return await forward(asked)


@fault("pages.zero-size")
async def page_size_of_zero_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    zero = asked.verb == "list" and asked.parameter("pageSize") == "0"
    return refusal(400, "INVALID_ARGUMENT") if zero else await forward(asked)


@fault("pages.large-size")
async def large_page_sizes_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    large = asked.verb == "list" and len(asked.parameter("pageSize")) > 4
    return refusal(400, "INVALID_ARGUMENT") if large else await forward(asked)


@fault("pages.negative-size")
async def negative_page_sizes_accepted(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.query = asked.query.replace("pageSize=-1", "pageSize=1")
    return await forward(asked)


@fault("pages.bad-token", "pages.altered-token")
async def tokens_that_are_not_checked(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "list" and reply.status == 400 and asked.parameter("pageToken"):
        asked.query = ""
        return await forward(asked)
    return reply


@fault("pages.opaque-token")
async def tokens_that_are_offsets(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return await renamed_tokens(asked, forward, memory, lambda number: f"{number * 10}")


@fault("pages.opaque-token")
async def tokens_in_base64(asked: Asked, forward: Forward, memory: Any) -> Reply:
    def make(number: int) -> str:
        return base64.urlsafe_b64encode(b'{"offset": %d}' % number).decode().rstrip("=")

    return await renamed_tokens(asked, forward, memory, make)


@fault("pages.url-safe-token")
async def tokens_that_urls_cannot_have(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return await renamed_tokens(asked, forward, memory, lambda number: f"x/y+{number}")


async def renamed_tokens(
    asked: Asked, forward: Forward, memory: dict[str, Any], make: Callable[[int], str]
) -> Reply:
    """A layer whose server gives tokens of another form."""
    given = asked.parameter("pageToken")
    if given in memory:
        asked.query = asked.query.replace(quote(given, safe=""), memory[given])
    reply = await forward(asked)
    if asked.verb != "list" or "nextPageToken" not in reply.json:
        return reply
    token = make(len(memory) + 1)
    memory[token] = reply.json["nextPageToken"]
    return reply.saying({**reply.json, "nextPageToken": token})


@fault("pages.other-size")
async def page_size_that_must_stay(asked: Asked, forward: Forward, memory: Any) -> Reply:
    changed = asked.verb == "list" and asked.parameter("pageToken") and "pageSize=2" in asked.query
    return refusal(400, "INVALID_ARGUMENT") if changed else await forward(asked)


@fault("pages.other-size")
async def later_pages_of_any_size(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "list" and asked.parameter("pageToken") and reply.status == 200:
        return reply.saying({"operations": reply.json["operations"] * 3})
    return reply


@fault("pages.same-token")
async def tokens_for_one_use(asked: Asked, forward: Forward, memory: Any) -> Reply:
    token = asked.parameter("pageToken")
    if token and token in memory:
        return refusal(400, "INVALID_ARGUMENT")
    memory[token] = True
    return await forward(asked)


@fault("pages.other-filter")
async def tokens_with_any_filter(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.parameter("pageToken"):
        asked.query = re.sub(r"&?filter=[^&]*", "", asked.query)
    return await forward(asked)


@fault("pages.unknown-parent")
async def parents_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    foreign = asked.path.startswith("/v1/projects/")
    return refusal(500, "UNKNOWN") if foreign else await forward(asked)


@fault("pages.unknown-parent")
async def parents_that_are_ignored(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.path = re.sub("/v1/projects/.*", "/v1/operations", asked.path)
    return await forward(asked)


@fault("pages.agree")
async def lists_without_results(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb != "list":
        return reply
    return reply.operations(lambda one: one.pop("response", one.pop("error", None)))


@fault("pages.deleted")
async def lists_with_what_was_deleted(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "delete":
        memory[asked.name] = True
    if asked.verb == "list" and reply.status == 200:
        found = reply.json.get("operations", [])
        return reply.saying({"operations": [*found, *({"name": one} for one in memory)]})
    return reply


@fault("filters.done")
async def filters_that_are_ignored(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.query = re.sub(r"&?filter=[^&]*", "", asked.query)
    return await forward(asked)


@fault("filters.done")
async def filters_that_match_nothing(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({}) if asked.parameter("filter") else await forward(asked)


@fault("filters.empty")
async def empty_filters_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    empty = asked.query.endswith("filter=")
    return refusal(400, "INVALID_ARGUMENT") if empty else await forward(asked)


@fault("filters.malformed", "filters.unknown-field")
async def wrong_filters_that_match_nothing(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = asked.verb == "list" and reply.status == 400 and asked.parameter("filter")
    return replying({}) if wrong else reply


@fault("filters.malformed", "errors.no-defect")
async def wrong_filters_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    wrong = asked.verb == "list" and reply.status == 400 and asked.parameter("filter")
    return refusal(500, "INTERNAL") if wrong else reply


# HTTP


@fault("routes.unknown-path")
async def unknown_paths_with_a_page(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return replying({}) if "lro-conform" in asked.path and reply.status == 404 else reply


@fault("routes.unknown-verb")
async def unknown_verbs_that_succeed(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({}) if asked.path.endswith("Unknown") else await forward(asked)


@fault("routes.wrong-method")
async def put_that_succeeds(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return replying({}) if asked.method == "PUT" else await forward(asked)


@fault("routes.allow")
async def refused_method_without_allow(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers.pop("allow", None)
    return reply


@fault("routes.safe-get")
async def get_that_cancels(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.method == "GET" and asked.path.endswith(":cancel"):
        asked.method = "POST"
    return await forward(asked)


@fault("routes.head")
async def head_that_is_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(405, "UNIMPLEMENTED") if asked.method == "HEAD" else await forward(asked)


@fault("routes.options")
async def options_that_are_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(405, "UNIMPLEMENTED") if asked.method == "OPTIONS" else await forward(asked)


@fault("forms.empty-body")
async def empty_bodies_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    empty = asked.verb == "cancel" and not asked.body
    return refusal(400, "INVALID_ARGUMENT") if empty else await forward(asked)


@fault("forms.media-type")
async def charset_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    named = "charset" in asked.headers.get("content-type", "")
    return refusal(415, "INVALID_ARGUMENT") if named else await forward(asked)


@fault("forms.malformed-body")
async def bodies_that_are_not_read(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.body = b"{}" if asked.verb == "cancel" else asked.body
    return await forward(asked)


@fault("forms.malformed-body", "errors.no-defect")
async def malformed_bodies_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    crash = asked.verb == "cancel" and reply.status == 400
    return refusal(500, "INTERNAL") if crash else reply


@fault("forms.unknown-field")
async def unknown_fields_not_found(asked: Asked, forward: Forward, memory: Any) -> Reply:
    strange = b"lroConformUnknown" in asked.body
    return refusal(404, "NOT_FOUND") if strange else await forward(asked)


@fault("forms.unknown-parameter")
async def unknown_parameters_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    strange = "lroConformUnknown" in asked.query
    return refusal(500, "INTERNAL") if strange else await forward(asked)


@fault("forms.alt")
async def alt_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(400, "INVALID_ARGUMENT") if "alt=" in asked.query else await forward(asked)


@fault("forms.snake-parameter")
async def proto_names_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    refused = "page_size" in asked.query
    return refusal(400, "INVALID_ARGUMENT") if refused else await forward(asked)


@fault("forms.wrong-type")
async def wrong_types_taken_for_none(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.query = asked.query.replace("pageSize=many", "")
    return await forward(asked)


@fault("forms.timeout")
async def timeouts_without_a_unit(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.body = asked.body.replace(b'"1"', b'"0s"')
    return await forward(asked)


@fault("robust.paths")
async def bad_escapes_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(500, "UNKNOWN") if "%zz" in asked.path else await forward(asked)


@fault("robust.bodies")
async def deep_bodies_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(500, "UNKNOWN") if len(asked.body) > 99_999 else await forward(asked)


@fault("robust.queries")
async def bad_queries_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return refusal(500, "UNKNOWN") if "&&&" in asked.query else await forward(asked)


@fault("robust.get-body")
async def bodies_of_gets_that_crash(asked: Asked, forward: Forward, memory: Any) -> Reply:
    crash = asked.method == "GET" and asked.body
    return refusal(500, "UNKNOWN") if crash else await forward(asked)


@fault("robust.answers", call_seconds=3.0)
async def lists_that_never_answer(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "list":
        await asyncio.Event().wait()
    return await forward(asked)


TOKEN: Final = (("Authorization", "Bearer secret"),)


@fault("auth.anonymous", headers=TOKEN)
async def anonymous_callers_let_in(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return await forward(asked)


@fault("auth.challenge", headers=TOKEN)
async def anonymous_callers_not_challenged(asked: Asked, forward: Forward, memory: Any) -> Reply:
    known = "authorization" in asked.headers
    return await forward(asked) if known else refusal(401, "UNAUTHENTICATED")


@fault("http.content-type")
async def json_as_html(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["content-type"] = "text/html"
    return reply


@fault("http.content-type")
async def json_in_latin_1(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["content-type"] = "application/json; charset=iso-8859-1"
    return reply


@fault("http.no-store")
async def operations_for_caches(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["cache-control"] = "public, max-age=60"
    return reply


@fault("http.retry-after")
async def retry_after_in_words(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["retry-after"] = "soon"
    return reply


@fault("http.retry-after")
async def retry_after_with_an_offset(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["retry-after"] = "Wed, 25 Nov 2026 20:00:00 +0100"
    return reply


@fault("http.poll-interval")
async def no_poll_interval(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers.pop("retry-after", None)
    return reply


# Errors


@fault("errors.envelope", "json.utf8", "errors.message")
async def errors_in_plain_text(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply if reply.status < 400 else attrs.evolve(reply, body=b"not found")


@fault("json.utf8")
async def errors_without_a_body(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply if reply.status < 400 else attrs.evolve(reply, body=b"")


@fault("errors.envelope", "errors.code")
async def errors_with_a_code_as_text(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.update(code="404"))


@fault("errors.envelope")
async def errors_without_status(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.pop("status"))


@fault("errors.envelope-everywhere")
async def unknown_paths_in_plain_text(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    plain = "lro-conform" in asked.path and reply.status == 404
    return attrs.evolve(reply, body=b"not found") if plain else reply


@fault("errors.code")
async def errors_with_the_code_of_grpc(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.update(code=5))


@fault("errors.mapping")
async def errors_with_one_status(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply if reply.status < 400 else attrs.evolve(reply, status=400)


@fault("errors.message")
async def errors_without_message(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.pop("message"))


@fault("errors.no-internals")
async def errors_with_a_stack_trace(asked: Asked, forward: Forward, memory: Any) -> Reply:
    trace = 'Traceback (most recent call last):\n  File "/srv/app.py", line 7, in get'
    return (await forward(asked)).errors(lambda one: one.update(message=trace))


@fault("errors.detail-types")
async def details_without_type(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.update(details=[{"reason": "X"}]))


@fault("errors.details-once")
async def details_twice(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.update(details=one["details"] * 2))


@fault("errors.error-info")
async def errors_without_details(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one.pop("details"))


@fault("errors.error-info")
async def reasons_in_words(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one["details"][0].update(reason="not found"))


@fault("errors.error-info")
async def reasons_without_domain(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).errors(lambda one: one["details"][0].pop("domain"))


@fault("json.retry-info")
async def delays_in_milliseconds(asked: Asked, forward: Forward, memory: Any) -> Reply:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": 1500}
    return (await forward(asked)).errors(lambda one: one["details"].append(delay))


# JSON


def changed_body(reply: Reply, change: Callable[[bytes], bytes]) -> Reply:
    """A reply whose body is changed if it is a success."""
    return attrs.evolve(reply, body=change(reply.body)) if reply.status < 300 else reply


@fault("replies.readable")
async def lists_cut_off(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return changed_body(reply, lambda body: body[:-2]) if asked.verb == "list" else reply


@fault("replies.readable")
async def lists_without_an_object(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return changed_body(reply, lambda body: b"[]") if asked.verb == "list" else reply


@fault("json.strict")
async def keys_that_stand_twice(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return changed_body(reply, lambda body: body.replace(b'"name"', b'"name":"x","name"', 1))


@fault("json.strict")
async def numbers_that_are_none(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return changed_body(reply, lambda body: body.replace(b'"@type"', b'"ratio":NaN,"@type"', 1))


@fault("json.fields")
async def pages_with_proto_names(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return changed_body(reply, lambda body: body.replace(b"nextPageToken", b"next_page_token"))


@fault("json.fields")
async def operations_with_fields_of_their_own(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one.update(state="RUNNING"))


@fault("json.types")
async def done_as_text(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb != "list":
        return reply
    return reply.operations(lambda one: one.update(done="true"))


@fault("json.times")
async def times_without_offset(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(
        lambda one: one["metadata"].update(createTime="2026-01-01 12:00:00")
    )


@fault("json.metadata-names")
async def metadata_with_proto_names(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one["metadata"].update(progress_bar=1))


@fault("json.large-numbers")
async def large_numbers_as_numbers(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one["metadata"].update(bytes=[2**60]))
