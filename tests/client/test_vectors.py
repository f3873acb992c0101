"""Test vectors for polling (spec §11.2-§11.5) and for reading errors (§11.8)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import respx

import lro
import lro.wire
from lro_client import CallError, ClientError, OperationFailed, Polling, PollTimeout, Retry
from lro_client.waits import wait_exponential
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, failed, refusal, reply, running, succeeded
from tests.vector_files import vectors

ROUNDING = 2e-6
"""The vectors are rounded half up to six digits, but Python rounds floats half to even."""


def cases(file: str, *kinds: str) -> list[Any]:
    """Return the cases of a vector file, or only the cases of the given kinds, as parameters."""
    found = vectors(file)["cases"]
    wanted = [case for case in found if not kinds or case["kind"] in kinds]
    return [pytest.param(case, id=case["id"]) for case in wanted]


def strict(case: Any) -> Polling:
    """Return the policy of the vectors: exponential pauses, and only UNAVAILABLE is retried."""
    poll, retry = case["config"], case["retry"]
    return Polling(
        wait=wait_exponential(poll["initial"], poll["multiplier"], poll["maximum"]),
        jitter=0.0,
        wait_first=False,
        retry=Retry(
            wait=wait_exponential(retry["initial"], retry["multiplier"], retry["maximum"]),
            attempts=retry["max_attempts"],
        ),
    )


def answer(said: Any) -> httpx.Response:
    if "error" in said:
        delay = said.get("retry_delay")
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay}s"}
        return refusal(lro.Code[said["error"]], "no", *([info] if delay is not None else ()))
    headers = {"retry_after": str(said["retry_after"])} if "retry_after" in said else {}
    return reply(state(said), **headers)


def state(said: Any) -> Any:
    """Return the state of an operation that a vector's reply describes."""
    if not said["done"]:
        return running()
    return failed() if said.get("outcome") == "FAILED" else succeeded()


def outcome(handle: Any, timeout: float | None) -> tuple[str, int | None]:
    """Return the outcome as the vectors name it, and the number of polls if the error has it."""
    try:
        handle.result(timeout)
    except PollTimeout as exc:
        return "POLL_TIMEOUT", exc.polls
    except OperationFailed:
        return "FAILED", None
    except CallError as exc:
        return exc.code.name, None
    return "RESULT", None


@pytest.mark.parametrize("case", cases("client_poll"))
def test_polls_follow_the_vector(case: Any, face: Face, clock: Clock, server: respx.Router) -> None:
    """Pauses, number of calls and outcome match the vector."""
    last = answer(case["replies"][-1])
    replies = iter([answer(said) for said in case["replies"]])
    route = server.get(f"/v1/{NAME}").mock(side_effect=lambda _: next(replies, last))
    first = lro.wire.operation_from_json(
        state(case["first"] or {"done": False}), lro.TypeRegistry()
    )
    client = face.client(clock=clock, polling=strict(case))

    found, polls = outcome(client.operation(first, **TYPES), case["config"]["timeout"])

    expect = case["expect"]
    assert clock.sleeps == pytest.approx(expect["sleeps"], abs=ROUNDING)
    assert (found, polls or route.call_count) == (expect["outcome"], expect["calls"])
    assert clock.now - 1000 == pytest.approx(expect["elapsed"], abs=ROUNDING)


def read_error(face: Face, server: respx.Router, http: int, body: str) -> CallError:
    """Return the error of a call that got this reply."""
    server.get(f"/v1/{NAME}").respond(http, text=body)
    with pytest.raises(ClientError) as caught:
        face.client(retry=Retry(attempts=1)).get(NAME)
    assert isinstance(caught.value, CallError)
    return caught.value


@pytest.mark.parametrize("case", cases("status_http", "http_to_code"))
def test_http_status_without_a_body_gives_the_code(
    case: Any, face: Face, server: respx.Router
) -> None:
    """Without a usable body, the code follows from the HTTP status (spec §11.8(2))."""
    error = read_error(face, server, case["http"], case["body"])
    assert (error.code.name, error.http_status) == (case["name"], case["http"])


@pytest.mark.parametrize("case", cases("status_http", "parse_error_body"))
def test_error_body_is_read(case: Any, face: Face, server: respx.Router) -> None:
    """Code, message and details are read from an AIP-193 error body (spec §11.8(1))."""
    error = read_error(face, server, case["http"], case["body_text"])
    found = {
        "code": error.status.code,
        "name": error.code.name,
        "message": error.status.message,
        "details": len(error.details()),
    }
    assert found == case["expect"]
