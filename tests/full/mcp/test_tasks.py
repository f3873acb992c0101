"""Operations as MCP tasks: each state and each error, over HTTP (SEP-2663)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.types import ErrorInfo, TypeRegistry
from tests.full.mcp.polling import TASKS
from tests.full.mcp.served import METHOD, Serve, envelope
from tests.http.counting_service import (
    DOMAIN,
    NOW,
    URL,
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    build,
)

NOTHING = "task not found: there is no operation with this id"
AT = "2030-01-02T03:04:05.000Z"
MONTH_MS = 30 * 24 * 3600 * 1000
TASK = {"status": "working", "createdAt": AT, "lastUpdatedAt": AT, "ttlMs": None}
DONE = {**TASK, "ttlMs": MONTH_MS}
VALUE = {
    "resultType": "complete",
    "content": [{"type": "text", "text": '{"total":3}'}],
    "structuredContent": {"total": 3},
    "isError": False,
    "_meta": {f"{DOMAIN}/response-type": f"{URL}acme.v1.CountResponse"},
}
RPCS = ("tasks/get", "tasks/update", "tasks/cancel")
NO_VALUE = {"resultType": "complete", "content": [], "isError": False}


def status_of(code: int, message: str, reason: str, domain: str = DOMAIN) -> dict[str, Any]:
    """Return the JSON of a Status with an ErrorInfo."""
    info = {"@type": f"{URL}google.rpc.ErrorInfo", "reason": reason, "domain": domain}
    return {"code": code, "message": message, "details": [info]}


def fail(worker: lro.Reporter, reason: str, domain: str = DOMAIN) -> None:
    """Fail an operation with an error that has this ErrorInfo reason."""
    info = TypeRegistry().pack(ErrorInfo(reason=reason, domain=domain))
    assert worker.fail(lro.Status(lro.Code.ABORTED, "it broke", (info,)))


def by_work(status: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the expected task of an operation that failed with an error of its own work."""
    content = [{"type": "text", "text": text}]
    result = {"resultType": "complete", "content": content, "isError": True}
    meta = {f"{DOMAIN}/status": status}
    return {**DONE, "status": "completed", "result": {**result, "_meta": meta}}


Act = Callable[[CountService, lro.Reporter], object]

STATES: dict[str, tuple[Act, dict[str, Any]]] = {
    "not begun": (lambda counting, worker: None, TASK),
    "with metadata": (
        lambda counting, worker: worker.report(CountMetadata(percent=40)),
        {
            **TASK,
            "statusMessage": '{"percent":40}',
            "_meta": {
                f"{DOMAIN}/metadata": {"@type": f"{URL}acme.v1.CountMetadata", "percent": 40}
            },
        },
    ),
    "asked to stop": (
        lambda counting, worker: counting.service.cancel(worker.name),
        {**TASK, "statusMessage": "cancellation requested"},
    ),
    "succeeded": (
        lambda counting, worker: worker.complete(CountResponse(total=3)),
        {**DONE, "status": "completed", "result": VALUE},
    ),
    "succeeded without a value": (
        lambda counting, worker: worker.finish(),
        {**DONE, "status": "completed", "result": NO_VALUE},
    ),
    "failed by the work": (
        lambda counting, worker: fail(worker, "NOTHING_TO_COUNT"),
        by_work(status_of(10, "it broke", "NOTHING_TO_COUNT"), "it broke"),
    ),
    "failed by the work, with a reason of another service": (
        lambda counting, worker: fail(worker, "WORKER_LOST", "other.example"),
        by_work(status_of(10, "it broke", "WORKER_LOST", "other.example"), "it broke"),
    ),
    "failed by the service": (
        lambda counting, worker: fail(worker, "WORKER_LOST"),
        {
            **DONE,
            "status": "failed",
            "error": {
                "code": -32603,
                "message": "it broke",
                "data": status_of(10, "it broke", "WORKER_LOST"),
            },
        },
    ),
    "cancelled": (
        lambda counting, worker: (
            counting.service.cancel(worker.name),
            worker.acknowledge_cancel(),
        ),
        {**DONE, "status": "cancelled"},
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_each_operation_state_has_its_task_form(
    serve: Serve, state: str, counting: CountService
) -> None:
    act, wanted = STATES[state]
    caller = serve(counting.service, poll_seconds=3)
    created = caller.call({"steps": 3}).result
    task_id = created["taskId"]
    more = {"taskId": task_id, "pollIntervalMs": 3000}
    assert created == {**TASK, "resultType": "task", **more}
    worker = counting.service.reporter(f"operations/{task_id}")
    act(counting, worker)
    assert caller.task("tasks/get", task_id).result == {**wanted, "resultType": "complete", **more}


def test_task_in_progress_has_the_text_of_the_read_tool(serve: Serve) -> None:
    """Before the end, ``statusMessage`` is the progress that ``operations_get`` says."""
    counting = build()
    own = counting.declare("acme.v1.Things.Own", metadata=lro.OperationMetadata)
    caller = serve(counting.service, own, wait=0)
    task_id = caller.call({"steps": 3}, "Things_Own").result["taskId"]
    assert "statusMessage" not in caller.task("tasks/get", task_id).result
    worker = counting.service.reporter(f"operations/{task_id}")
    worker.report(lro.OperationMetadata(progress_percent=20, status_message="page 2 of 5"))
    said = caller.task("tasks/get", task_id).result["statusMessage"]
    assert said == "20 % done, page 2 of 5"
    read = caller.call({"id": task_id}, "operations_get", declared=False).result
    assert f" Its progress: {said}. " in read["content"][0]["text"]
    counting.service.cancel(f"operations/{task_id}")
    assert caller.task("tasks/get", task_id).result["statusMessage"] == "cancellation requested"
    assert worker.finish()
    assert "statusMessage" not in caller.task("tasks/get", task_id).result


def test_hidden_and_missing_tasks_have_the_same_error(serve: Serve) -> None:
    moment = NOW
    counting = build(MemoryStore(lambda: moment), keep_for=timedelta(minutes=1))
    caller = serve(counting.service)
    deleted, expired = (counting.start().removeprefix("operations/") for _ in range(2))
    counting.service.delete(f"operations/{deleted}")
    counting.finish(f"operations/{expired}")
    moment += timedelta(hours=1)
    there = counting.start()
    for task_id in (deleted, expired, "2a7c", "ä", f"a/{there}", there):
        headers = {"Mcp-Name": "=?base64?w6Q=?="} if task_id == "ä" else {}
        for rpc in RPCS:
            refused = caller.task(rpc, task_id, headers=headers)
            assert refused.status == 400
            assert refused.error == {"code": -32602, "message": NOTHING}


def test_time_to_live_counts_from_creation_and_only_after_the_end(serve: Serve) -> None:
    moment = NOW
    counting = build(MemoryStore(lambda: moment), keep_for=timedelta(seconds=60))
    caller = serve(counting.service)
    name = counting.start()
    moment += timedelta(seconds=90, microseconds=900)
    counting.finish(name)
    shown = caller.task("tasks/get", name.removeprefix("operations/")).result
    assert shown["ttlMs"] == 150_000
    assert (shown["createdAt"], shown["lastUpdatedAt"]) == (AT, "2030-01-02T03:05:35.000Z")


def test_server_announces_exactly_the_task_capability(serve: Serve) -> None:
    assert serve(build().service).ask("server/discover").message["result"] == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {
            "extensions": {TASKS: {}},
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
        },
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "things", "version": ""}},
    }


def test_update_of_a_task_is_acknowledged_and_changes_nothing(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    task_id = caller.call().result["taskId"]
    before = caller.task("tasks/get", task_id).result
    asked = {"taskId": task_id, "inputResponses": {"unknown": {"action": "accept"}}}
    assert caller.ask("tasks/update", asked).result == {"resultType": "complete"}
    assert caller.task("tasks/get", task_id).result == before


def test_cancel_is_acknowledged_whether_or_not_the_work_is_over(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    task_id = caller.call().result["taskId"]
    assert caller.task("tasks/cancel", task_id).result == {"resultType": "complete"}
    assert caller.task("tasks/get", task_id).result["statusMessage"] == "cancellation requested"
    counting.finish(f"operations/{task_id}")
    assert caller.task("tasks/cancel", task_id).result == {"resultType": "complete"}
    shown = caller.task("tasks/get", task_id).result
    assert (shown["status"], "statusMessage" in shown) == ("completed", False)


def test_clients_that_declare_no_tasks_and_earlier_requests_are_refused(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    task_id = counting.start().removeprefix("operations/")
    for declared in (True, False):
        for rpc in ("tasks/list", "tasks/result"):
            refused = caller.ask(rpc, meta=envelope(declared=declared))
            assert refused.refusal == (404, -32601)
    for rpc in RPCS:
        refused = caller.task(rpc, task_id, meta=envelope(declared=False))
        assert refused.refusal == (400, -32021)
        assert refused.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_name_header_of_a_task_request_has_the_id_of_the_task(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    task_id = counting.start().removeprefix("operations/")
    encoded = base64.b64encode(task_id.encode()).decode()
    for rpc in RPCS:
        for name in (task_id, f"=?base64?{encoded}?=", None):
            answered = caller.task(rpc, task_id, headers={"Mcp-Name": name})
            assert answered.result["resultType"] == "complete"
        for name in ("", f"operations/{task_id}", f"=?base64?{task_id}?=", "=?base64??="):
            answered = caller.task(rpc, task_id, headers={"Mcp-Name": name})
            assert answered.refusal == (400, -32020)


# -- errors of starts -------------------------------------------------------------------------


Refusal = tuple[Exception, tuple[int, int] | str]

AT_STARTS: dict[str, Refusal] = {
    "INVALID_ARGUMENT": (lro.errors.InvalidArgument("steps", "is odd"), "steps: is odd"),
    "a ValueError of validate": (ValueError("three is odd"), "three is odd"),
    "TARGET_BUSY": (lro.errors.TargetBusy("things/3"), "things/3"),
    "RESOURCE_EXHAUSTED": (
        lro.errors.ResourceExhausted("the queue is full", timedelta(seconds=7)),
        "the queue is full (try again in 7 s)",
    ),
    "PERMISSION_DENIED": (lro.errors.PermissionDenied("not today"), "not today"),
    "NOT_FOUND of the application": (
        lro.StatusError(lro.Code.NOT_FOUND, "no such thing"),
        "no such thing",
    ),
    "UNAVAILABLE": (lro.errors.Unavailable("the disk is away"), (200, -32603)),
    "DEADLINE_EXCEEDED": (lro.errors.DeadlineExceeded("too late"), (200, -32603)),
    "a bug": (RuntimeError("a secret"), (200, -32603)),
    "UNIMPLEMENTED": (lro.StatusError(lro.Code.UNIMPLEMENTED, "not here"), (404, -32601)),
    "UNAUTHENTICATED": (lro.errors.Unauthenticated("who are you?"), (400, -32600)),
}


def refusing(service: lro.Service) -> Any:
    """Return a method that refuses a start for the reason in the request's label."""

    def validate(request: CountRequest) -> None:
        raise AT_STARTS[request.label][0]

    return service.declare(
        "acme.v1.Things.Refuse",
        request=CountRequest,
        response=CountResponse,
        options=lro.Options(validate=validate),
    )


def test_errors_of_starts_are_for_the_model_where_it_can_do_something(serve: Serve) -> None:
    service = build().service
    caller = serve(service, refusing(service))
    for reason, (_, wanted) in AT_STARTS.items():
        answered = caller.call({"label": reason}, "Things_Refuse")
        assert "secret" not in json.dumps(answered.message)
        if isinstance(wanted, str):
            assert answered.result["isError"] is True
            assert wanted in answered.result["content"][0]["text"]
            assert answered.result["_meta"][f"{DOMAIN}/status"]["code"]
        else:
            assert answered.refusal == wanted, reason
            assert answered.error["data"]["code"]


def test_arguments_that_do_not_fit_are_the_result_of_the_tool(serve: Serve) -> None:
    counting = build()
    refused = serve(counting.service).call({"steps": "many"}).result
    assert refused["isError"] is True
    assert refused["content"][0]["text"].startswith("steps: ")
    violations = refused["_meta"][f"{DOMAIN}/status"]["details"][1]["fieldViolations"]
    assert violations[0]["field"] == "steps"


def test_start_with_a_known_request_id_gives_the_same_task(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    known = {f"{DOMAIN}/request-id": "0b9f5d0e-6a0e-4f0a-9a53-0d3a6f6f7c11"}
    first = caller.call({"steps": 3}, meta=known).result
    assert caller.call({"steps": 3}, meta=known).result == first
    other = caller.call({"steps": 3}, meta={f"{DOMAIN}/request-id": "call-7"}).result
    assert other["taskId"] != first["taskId"]
    assert caller.call({"steps": 3}, meta={f"{DOMAIN}/request-id": "call-7"}).result == other
    conflict = caller.call({"steps": 4}, meta=known)
    assert conflict.refusal == (400, -32602)
    assert conflict.error["data"]["details"][0]["reason"] == "REQUEST_ID_CONFLICT"
    counting.finish(f"operations/{first['taskId']}")
    assert caller.call({"steps": 3}, meta=known).result == VALUE
    assert caller.call({"steps": 3}).result["taskId"] not in (first["taskId"], other["taskId"])


def test_invalid_request_id_is_refused(serve: Serve) -> None:
    caller = serve(build().service)
    for given in (7, ["a"], {"a": 1}, True, "00000000-0000-0000-0000-000000000000"):
        refused = caller.call({}, meta={f"{DOMAIN}/request-id": given})
        assert refused.refusal == (400, -32602)
        assert refused.error["data"]["details"][0]["reason"] == "INVALID_REQUEST_ID"


def test_work_that_ends_at_once_returns_its_result_without_a_task(serve: Serve) -> None:
    service = lro.Service(MemoryStore(), InlineExecutor(), domain=DOMAIN, maintenance=False)

    @service.method("acme.v1.Things.Count")
    def count(request: CountRequest) -> CountResponse:
        if request.steps < 0:
            raise lro.errors.InvalidArgument("steps", "is negative")
        if not request.steps:
            raise RuntimeError("a secret")
        return CountResponse(total=request.steps)

    caller = serve(service)
    assert caller.call({"steps": 3}).result == VALUE
    assert caller.call({"steps": -3}).result["isError"] is True
    failed = caller.call({"steps": 0})
    assert failed.refusal == (200, -32603)
    assert "secret" not in json.dumps(failed.message)
    assert failed.error["data"]["details"][0]["reason"] == "METHOD_FAILED"
    service.close()


def test_operation_that_ends_during_a_read_is_returned_as_ended(serve: Serve) -> None:
    counting = build()
    found = counting.service.edges.access.visible_record

    def finish_first(name: str, caller: str) -> Any:
        counting.finish(name)
        return found(name, caller)

    counting.service.edges.access.visible_record = finish_first  # type: ignore[method-assign]
    assert serve(counting.service).call({"steps": 3}).result == VALUE


# -- errors of other calls --------------------------------------------------------------------


def test_verb_that_is_switched_off_is_not_found_but_get_always_works(serve: Serve) -> None:
    counting = build(verbs=("GetOperation",))
    caller = serve(counting.service)
    task_id = caller.call().result["taskId"]
    assert caller.task("tasks/get", task_id).result["status"] == "working"
    refused = caller.task("tasks/cancel", task_id)
    assert refused.refusal == (404, -32601)
    assert refused.error["data"]["details"][0]["reason"] == "METHOD_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (lro.errors.PermissionDenied("not you"), (400, -32602)),
        (lro.errors.Unavailable("not now"), (200, -32603)),
        (RuntimeError("a secret"), (200, -32603)),
    ],
)
def test_errors_of_the_hook_authorize_have_their_codes(
    serve: Serve, error: Exception, wanted: tuple[int, int]
) -> None:
    def authorize(_: str, verb: str, __: str) -> None:
        if verb != METHOD:
            raise error

    caller = serve(build(authorize=authorize).service)
    # A caller who may not read the task gets no task from a start either.
    for refused in (caller.call(), *(caller.task(rpc, "2a7c") for rpc in RPCS)):
        assert refused.refusal == wanted
        assert "secret" not in json.dumps(refused.message)
        assert wanted != (400, -32602) or refused.error["message"] == NOTHING


# -- callers ----------------------------------------------------------------------------------


def by_header(headers: Any) -> str:
    """Return the caller that a header names."""
    name: str | None = headers.get("x-caller")
    if name is None:
        raise lro.errors.Unauthenticated("say who you are")
    return name


def test_task_of_another_caller_is_not_found(serve: Serve) -> None:
    counting = build(owner_only=True)
    caller = serve(counting.service, authenticate=by_header)
    ann, ben = {"X-Caller": "ann"}, {"X-Caller": "ben"}
    task_id = caller.call(headers=ann).result["taskId"]
    for rpc in RPCS:
        refused = caller.task(rpc, task_id, headers=ben)
        unknown = caller.task(rpc, "2a7c", headers=ben)
        assert refused.refusal == (400, -32602)
        assert refused.error == unknown.error
        assert caller.task(rpc, task_id, headers=ann).status == 200
    for tool in ("operations_get", "operations_cancel"):
        theirs = caller.call({"id": task_id}, tool, headers=ben)
        unknown = caller.call({"id": "2a7c"}, tool, headers=ben)
        assert theirs.result == unknown.result
        assert theirs.result["content"][0]["text"] == NOTHING
    # The same request ID of two callers starts two tasks.
    key = {f"{DOMAIN}/request-id": "call-7"}
    first = caller.call(meta=key, headers=ann).result["taskId"]
    assert caller.call(meta=key, headers=ben).result["taskId"] != first


def test_caller_who_is_refused_gets_an_invalid_request(serve: Serve) -> None:
    caller = serve(build().service, authenticate=by_header)
    refusals = [caller.call(), caller.task("tasks/get", "2a7c"), caller.call(tool="operations_get")]
    assert [one.refusal for one in refusals] == [(400, -32600)] * 3
    assert refusals[0].error["message"] == "say who you are"


def test_hook_gets_the_scope_of_the_request(serve: Serve, counting: CountService) -> None:
    def by_scope(headers: Any, scope: Any) -> str:
        assert headers["x-caller"] == "ann"
        return f"{scope['type']}:{scope['path']}"

    caller = serve(counting.service, authenticate=by_scope)
    task_id = caller.call(headers={"X-Caller": "ann"}).result["taskId"]
    record = counting.service.store.get(f"operations/{task_id}")
    assert record.caller == "http:/mcp"


def test_ids_of_tasks_stand_under_the_parent_of_their_caller(serve: Serve) -> None:
    counting = build()
    options: dict[str, Any] = {"authenticate": by_header, "parent": lambda who: f"people/{who}"}
    caller = serve(counting.service, **options)
    ann, ben = {"X-Caller": "ann"}, {"X-Caller": "ben"}
    task_id = caller.call(headers=ann).result["taskId"]
    assert counting.service.get(f"people/ann/operations/{task_id}")
    assert caller.task("tasks/get", task_id, headers=ann).result["taskId"] == task_id
    assert caller.task("tasks/get", task_id, headers=ben).refusal == (400, -32602)


def test_method_that_gives_parents_needs_one_for_each_caller(serve: Serve) -> None:
    service = build().service
    method = service.declare(
        "acme.v1.Things.Placed",
        request=CountRequest,
        response=CountResponse,
        options=lro.Options(parent=lambda _: "places/a"),
    )
    parents = {"ann": "people/ann", "ben": ""}
    caller = serve(service, method, authenticate=by_header, parent=parents.__getitem__)
    answers = [caller.call(tool="Things_Placed", headers={"X-Caller": who}) for who in parents]
    assert answers[0].result["resultType"] == "task"
    assert answers[1].refusal == (200, -32603)
    assert not service.list(lro.wire.ListOperationsRequest("places/a")).operations
