"""Pollers of Azure's own clients, azure-core and @azure/core-lro, work with real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("azure.core")
pytest.importorskip("uvicorn")

from azure.core import PipelineClient
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.policies import RequestIdPolicy
from azure.core.polling import LROPoller
from azure.core.polling.base_polling import LROBasePolling
from azure.core.rest import HttpRequest

import lro
from lro import asgi, wsgi
from lro.azure import AzureEdge
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.azure.works import PATH, TranscodeRequest, TranscodeResponse
from tests.http.servers import HOST, uvicorn_serving, waitress_serving
from tests.services.npm import AZURE, node_modules, run_node

ROOT: Final = Path(__file__).resolve().parents[3]
VERSION: Final = "2026-11-01"
FINALLY: Final = [None, {"final-state-via": "operation-location"}]


class Polled:
    """A service behind a server; its operations end at the second poll or later."""

    def __init__(self, service: lro.Service, url: str) -> None:
        self.service = service
        self.url = url

    def request(self, source: str) -> HttpRequest:
        """Return the request that starts an operation."""
        query = {"api-version": VERSION}
        return HttpRequest("POST", f"{self.url}{PATH}", params=query, json={"source": source})

    def cancel(self, initial: Any) -> None:
        """Cancel an operation, because no poller can cancel it."""
        self.service.cancel(f"operations/{initial['id']}")


@pytest.fixture(params=["uvicorn", "waitress"], scope="module")
def polled(request: pytest.FixtureRequest) -> Iterator[Polled]:
    """A service behind uvicorn or waitress; tests run with each."""
    service = lro.Service(MemoryStore(), ThreadExecutor(4), domain="media.example.com")

    @service.method("media.v1.Videos.Transcode", path=PATH)
    def transcode(request: TranscodeRequest, job: lro.Job) -> TranscodeResponse:
        if request.source == "wait":
            job.sleep(600)
        job.sleep(0.2)  # so that a poller has to wait
        if request.source == "refused":
            raise lro.StatusError(lro.Code.NOT_FOUND, "there is no video", why="NO_VIDEO")
        return TranscodeResponse(uri="b.mp4")

    options: Any = {"starts": True, "api_versions": [VERSION]}
    serve, app = (
        (uvicorn_serving, asgi.EdgeApp(AzureEdge(service, **options)))
        if request.param == "uvicorn"
        else (waitress_serving, wsgi.EdgeApp(AzureEdge(service, **options)))
    )
    with serve(app) as port:
        yield Polled(service, f"http://{HOST}:{port}")
    service.close(timedelta(0))


def body_of(response: Any) -> Any:
    """Return the body of a poller's last response."""
    return json.loads(response.http_response.text())


def poller(polled: Polled, client: Any, source: str, lro_options: Any) -> LROPoller[Any]:
    """Start an operation, and return a poller for the operation."""
    initial = client.send_request(polled.request(source), _return_pipeline_response=True)
    if source == "wait":
        polled.cancel(body_of(initial))
    return LROPoller(client, initial, body_of, LROBasePolling(30, lro_options=lro_options))


def polled_to_the_end(polled: Polled, source: str, lro_options: Any) -> Any:
    """Return the result of polling an operation to its end."""
    with client_of(polled) as client:
        return poller(polled, client, source, lro_options).result(timeout=120)


def client_of(polled: Polled) -> PipelineClient[Any, Any]:
    return PipelineClient(polled.url, policies=[RequestIdPolicy()])


@pytest.mark.parametrize("lro_options", FINALLY, ids=["default", "operation-location"])
def test_azure_poller_returns_the_result_or_raises_the_error(
    polled: Polled, lro_options: Any
) -> None:
    """The poller returns the last monitor, or raises the error of the operation."""
    found = polled_to_the_end(polled, "a.mov", lro_options)
    assert (found["status"], found["result"]) == ("Succeeded", {"uri": "b.mp4"})
    for source, status, code, says in (
        ("refused", "Failed", "NO_VIDEO", "there is no video"),
        ("wait", "Canceled", "CANCELLED", "the"),
    ):
        with pytest.raises(HttpResponseError) as raised:
            polled_to_the_end(polled, source, lro_options)
        error: Any = raised.value
        assert error.status_code in (200, 202)
        assert error.error.code == code
        assert str(error.error.message).startswith(says)
        assert json.loads(error.response.text())["status"] == status


RESUMING: Final = """
import sys
from azure.core.polling import LROPoller
from azure.core.polling.base_polling import LROBasePolling
from tests.full.azure.test_judges import Polled, body_of, client_of

with client_of(Polled(None, sys.argv[1])) as client:
    resumed = LROPoller.from_continuation_token(
        LROBasePolling(30), sys.argv[2], client=client, deserialization_callback=body_of
    )
    print(resumed.result(timeout=120)["result"]["uri"])
"""


def test_continuation_token_is_resumed_in_another_process(polled: Polled) -> None:
    """A continuation token has the monitor's URL, so another process needs nothing else."""
    with client_of(polled) as client:
        token = poller(polled, client, "a.mov", None).continuation_token()
    command = [sys.executable, "-c", RESUMING, polled.url, token]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.strip()) == (0, "b.mp4"), run.stderr


POLLING: Final = """
import { createHttpPoller } from "@azure/core-lro";

const [url, source] = process.argv.slice(2);

async function call(method, path, body) {
  const reply = await fetch(path, {
    method,
    headers: body ? { "content-type": "application/json" } : {},
    body: body && JSON.stringify(body),
  });
  const headers = Object.fromEntries(reply.headers.entries());
  const read = await reply.json();
  return {
    flatResponse: read,
    rawResponse: { statusCode: reply.status, headers, body: read, request: { method, url: path } },
  };
}

const poller = createHttpPoller(
  {
    sendInitialRequest: () => call("POST", url, { source }),
    sendPollRequest: (path) => call("GET", path),
  },
  { intervalInMs: 50 },
);
let result;
try {
  result = await poller.pollUntilDone();
} catch (error) {
  result = { failed: String(error.message ?? error) };
}
const state = poller.operationState;
console.log(JSON.stringify({ status: state.status, result }));
"""


@pytest.mark.parametrize(("source", "status"), [("a.mov", "succeeded"), ("refused", "failed")])
def test_javascript_poller_returns_the_result_or_the_error(
    polled: Polled, source: str, status: str
) -> None:
    """The poller of @azure/core-lro returns the result, or raises the error of the operation."""
    home = node_modules(AZURE)
    url = f"{polled.url}{PATH}?api-version={VERSION}"
    found = json.loads(run_node(home, POLLING, url, source).splitlines()[-1])
    assert found["status"] == status
    if status == "succeeded":
        assert found["result"]["result"] == {"uri": "b.mp4"}
    else:
        assert "there is no video" in found["result"]["failed"]
