"""A small client that supports all tasks of the kit; ``MISTAKE`` names a mistake to make.

``own-type`` is not a mistake: the client reports a message of another type with its type.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

LIMIT = 1 << 20
RETRYABLE = (502, 503, 504)
RESPONSE_TYPE = "type.googleapis.com/google.rpc.ResourceInfo"
KNOWN = {"name", "metadata", "done", "error", "response"}


def wrong(*mistakes: str) -> bool:
    return os.environ.get("MISTAKE", "") in mistakes


class Lost(Exception):
    """A call failed for good; the status code is optional."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code


class Passing(Exception):
    """A call failed temporarily; ``pause`` is the delay that the server asks for."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


class PlainClient:
    """Makes calls below ``/v1`` until a deadline on the monotonic clock."""

    def __init__(self, url: str, token: str, deadline: float) -> None:
        sent = {"authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=url, headers=sent, verify=False)
        self.token = token
        self.deadline = deadline
        self.asked = 0.0

    def left(self) -> float:
        return 1e6 if wrong("no-deadline") else self.deadline - time.monotonic()

    def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if self.left() <= 0:
            raise TimeoutError
        try:
            response, body = self._exchange(method, f"/v1/{path}", **more)
        except httpx.TimeoutException as exc:
            raise TimeoutError from exc
        except httpx.TransportError as exc:
            if wrong("cut-is-whole") and "peer closed connection" in str(exc):
                return {"done": True, "response": {"resourceName": "cut"}}
            raise Passing(str(exc)) from exc
        return self._read(response, body)

    def _exchange(self, method: str, path: str, **more: Any) -> tuple[httpx.Response, bytes]:
        seconds = None if wrong("no-read-timeout") else min(self.left(), 3600)
        body = b""
        with self.http.stream(method, path, timeout=seconds, **more) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > LIMIT:
                    raise Lost("the reply is too large")
                if self.left() <= 0 and not wrong("drip"):
                    raise TimeoutError
        if response.is_redirect and wrong("redirect"):
            other = {"authorization": f"Bearer {self.token}"}
            response = httpx.get(response.headers["location"], headers=other)
            body = response.content
        return response, body

    def _read(self, response: httpx.Response, body: bytes) -> dict[str, Any]:
        self.asked = retry_after(response)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        status = response.status_code
        if status == 200:
            if wrong("page-is-empty-operation") and value is None:
                return {"done": True, "response": {}}
            if isinstance(value, dict):
                return value
            if not body or body.startswith((b"{", b"null", b"[")):
                raise Passing("the reply is not an operation")
            raise Lost("the reply is not an operation")
        error = value.get("error") if isinstance(value, dict) else None
        if status in RETRYABLE and not wrong("no-retry"):
            for detail in error.get("details", []) if isinstance(error, dict) else []:
                self.asked = max(self.asked, float(detail.get("retryDelay", "0s")[:-1]))
            raise Passing(f"status {status}", self.asked)
        if wrong("denied-is-passing") and status in (401, 403):
            raise Passing(f"status {status}")
        if wrong("call-is-operation"):
            codes = {499: 1, 404: 5, 403: 7, 401: 16}
            return {"done": True, "error": {"code": codes.get(status, 2), "message": "failed"}}
        raise Lost(f"status {status}")

    def again(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Repeat a call with growing pauses until it succeeds."""
        pause = 0.05
        while True:
            try:
                return call()
            except Passing as exc:
                self.sleep(max(exc.pause, pause))
                pause *= 2

    def sleep(self, seconds: float) -> None:
        if not wrong("sleeps-past-deadline"):
            seconds = min(seconds, self.left())
        time.sleep(max(seconds, 0))


def retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    if wrong("no-retry-after"):
        return 0.0
    if text.isdigit():
        return float(text)
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0


def is_done(operation: dict[str, Any]) -> bool:
    if wrong("truthy-done"):
        return bool(operation.get("done"))
    if wrong("result-is-done") and "response" in operation:
        return True
    if not isinstance(operation.get("done", False), bool):
        raise Lost("done is not a bool")
    return bool(operation.get("done"))


def outcome(operation: dict[str, Any]) -> dict[str, Any]:
    error, response = operation.get("error"), operation.get("response")
    if wrong("strict") and not operation.keys() <= KNOWN:
        raise KeyError("unknown field")
    if wrong("code-zero-is-ok") and error is not None and not error.get("code"):
        error = None
    if error is not None and not (wrong("response-first") and response):
        return {"outcome": "error", "code": error.get("code", 0), "message": error.get("message")}
    if response is None:
        if wrong("invents"):
            return {"outcome": "response", "response": {}}
        return {"outcome": "lost", "message": "there is no result"}
    if response.get("@type", RESPONSE_TYPE) != RESPONSE_TYPE:
        if wrong("any-type"):
            return {"outcome": "response", "response": {"resourceName": ""}}
        if not wrong("own-type"):
            return {"outcome": "lost", "message": "there is a response of another type"}
    return {"outcome": "response", "response": response}


def wait(client: PlainClient, name: str) -> dict[str, Any]:
    pause = 0.45 if wrong("hurries") else 0.05  # long enough to differ from chance
    while True:
        operation = client.again(lambda: client.call("GET", name))
        if is_done(operation):
            found = outcome(operation)
            if wrong("polls-after-end"):
                client.again(lambda: client.call("GET", name))
            if not (wrong("retries-result") and found.get("code") == 14):
                return found
        client.sleep(0.0 if wrong("spins") else max(pause, client.asked))
        if wrong("gives-up") and pause > 0.2:
            raise TimeoutError
        pause = max(pause * 0.8, 0.05) if wrong("hurries") else min(pause * 1.5, 2.0)


def wait_by_wait(client: PlainClient, name: str) -> dict[str, Any]:
    """Wait like a client that trusts WaitOperation, which is a mistake."""
    while True:
        try:
            operation = client.call("POST", f"{name}:wait", json={"timeout": "1s"})
        except Passing as exc:
            raise Lost(str(exc)) from exc
        if operation.get("done") or wrong("wait-is-done"):
            return outcome(operation)


def perform(client: PlainClient, task: str, name: str) -> dict[str, Any]:
    if task == "list":
        return {"outcome": "response", "response": list_names(client, name.rpartition("/")[0])}
    if task == "delete":
        try:
            client.again(lambda: client.call("DELETE", name))
        except Lost:
            if not wrong("ignores-refused-delete"):
                raise
        return {"outcome": "response"}
    if task == "cancel" and not wrong("never-cancels"):
        for _ in range(2 if wrong("cancels-twice") else 1):
            client.again(lambda: client.call("POST", f"{name}:cancel", json={}))
    if wrong("wait-is-done", "spins-on-wait"):
        return wait_by_wait(client, name)
    return wait(client, name)


def list_names(client: PlainClient, path: str) -> list[str]:
    names: list[str] = []
    token = ""
    while True:
        query = {"pageToken": token} if token else {}
        try:
            page = client.again(lambda: client.call("GET", path, params=query))  # noqa: B023
        except Lost:
            if wrong("cut-list") and names:
                return names
            raise
        found = page.get("operations", [])
        names += [one["name"] for one in found]
        token = page.get("nextPageToken", "")
        if not token or (wrong("empty-page-is-last") and not found):
            return names


def main() -> None:
    env = os.environ
    deadline = time.monotonic() + float(env["LRO_CONFORM_TIMEOUT"])
    client = PlainClient(env["LRO_CONFORM_URL"], env["LRO_CONFORM_TOKEN"], deadline)
    name = env["LRO_CONFORM_OPERATION"]
    try:
        said = perform(client, env["LRO_CONFORM_TASK"], name)
    except TimeoutError:
        said = {"outcome": "timeout"}
        if wrong("cancels-at-timeout"):
            client.http.post(f"/v1/{name}:cancel", json={})
    except Lost as exc:
        said = {"outcome": "lost", "code": exc.code, "message": str(exc)}
    if not wrong("says-nothing"):
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
