"""The pages on authentication: client certificates over real TLS, and calls of the hook."""

from __future__ import annotations

import os
import re
import runpy
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest

import lro
import lro.asgi
import lro.wsgi
from lro.errors import Unauthenticated
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.http.servers import asgi_inside, wsgi_inside
from tests.page_texts import fences
from tests.services.hosts import running
from tests.services.ports import free_port
from tests.waiting import PATIENCE
from tests.webhooks.certificates import issue

PAGE: Final = "how-to/client-certificates.md"
FILE: Final = re.compile(r"# (\w+\.py)\n")
WORK: Final = """
import lro
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore

service = lro.Service(MemoryStore(), InlineExecutor(), owner_only=True)

@service.method("work.v1.Works.Touch", path="/v1/works:touch")
def touch(request: lro.Empty) -> None:
    pass

started = {name: touch.start(lro.Empty(), caller=name).name for name in ("billing", "other")}

def nameless(headers, scope):
    assert "tls" not in scope.get("extensions", {}), "uvicorn passes certificates on by now"

app = OperationsApp(service, authenticate=nameless)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the page's files, a module that they import, and certificates of one authority."""
    for text in fences(PAGE, "python"):
        if named := FILE.match(text):
            (tmp_path / named[1]).write_text(text)
    (tmp_path / "work.py").write_text(WORK)
    issue(tmp_path, {"server": "localhost", "client": "billing"})
    return tmp_path


def presenting(folder: Path, *, certificate: bool) -> ssl.SSLContext:
    """Return the TLS context of a client, with or without a client certificate."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if certificate:
        context.load_cert_chain(folder / "client.pem", folder / "client.key")
    return context


@pytest.fixture
def page_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run the page's module with its gRPC server, and yield the module."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    with ExitStack() as stack:
        stack.callback(sys.modules.pop, "work", None)
        module = SimpleNamespace(**runpy.run_path("mtls_grpc.py"))
        stack.callback(module.service.close)
        stack.callback(lambda: module.server.stop(None).wait())
        module.server.start()
        yield module


def test_grpc_caller_is_that_of_the_certificate(page_module: Any, folder: Path) -> None:
    """A gRPC caller needs a certificate and sees only operations of the certificate's owner."""
    import grpc
    from google.longrunning import operations_pb2_grpc
    from google.longrunning.operations_proto_pb2 import GetOperationRequest

    from lro_client import CallError, Client
    from lro_client.transports.grpc import GrpcTransport

    root, key, chain = (
        (folder / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem")
    )
    started = sys.modules["work"].started
    address = f"localhost:{page_module.port}"
    with_own = grpc.ssl_channel_credentials(root, key, chain)
    with Client(transport=GrpcTransport(address, credentials=with_own)) as client:
        assert [one.name for one in client.list()] == [started["billing"]]
        with pytest.raises(CallError) as caught:
            client.get(started["other"])
        assert caught.value.code is lro.Code.NOT_FOUND
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(root)) as channel:
        stub = operations_pb2_grpc.OperationsStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.GetOperation(GetOperationRequest(name=started["billing"]))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # the TLS handshake fails


def command_of(server: str) -> list[str]:
    """Return the page's command for this server, as a list of words."""
    text = "".join(fences(PAGE, "console"))
    (command,) = re.findall(rf"^\$ ({server} .*)$", text, re.MULTILINE)
    return str(command).split()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups")
@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_http_servers_ask_for_certificates(folder: Path, server: str) -> None:
    """gunicorn and uvicorn require a certificate; gunicorn also tells the app who owns it."""
    pytest.importorskip(server)
    port = free_port()
    bound = {
        "gunicorn": ["-c", "/dev/null", "--bind", f"localhost:{port}"],
        "uvicorn": ["--host", "localhost", "--port", str(port)],
    }
    command = [*command_of(server), *bound[server]]
    with running(("-m", *command), folder, "server.log") as host:
        host.says(re.compile(r"Listening at|running on"))
        options: Any = {"base_url": f"https://localhost:{port}", "timeout": PATIENCE}
        with httpx.Client(verify=presenting(folder, certificate=True), **options) as client:
            assert client.get("/v1/operations").status_code == 200
            if server == "gunicorn":
                started = client.post("/v1/works:touch", json={}).json()["name"]
                names = {one["name"] for one in client.get("/v1/operations").json()["operations"]}
                assert started in names
                assert len(names) == 2
        with (
            httpx.Client(verify=presenting(folder, certificate=False), **options) as client,
            pytest.raises(httpx.TransportError),
        ):
            client.get("/v1/operations")


@pytest.mark.parametrize("inside", [asgi_inside, wsgi_inside])
def test_caller_is_authenticated_once_and_before_the_body_is_read(inside: Any) -> None:
    """An invalid body from a caller who is refused gets 401, not a parse error."""
    asked: list[str] = []

    def authenticate(headers: Mapping[str, str]) -> str:
        asked.append(headers.get("authorization", ""))
        if not asked[-1]:
            raise Unauthenticated("a token is needed")
        return asked[-1]

    with lro.Service(MemoryStore(), InlineExecutor()) as service:
        edge = lro.asgi if inside is asgi_inside else lro.wsgi
        with inside(edge.OperationsApp(service, authenticate=authenticate)) as call:
            refused = call("POST", "/v1/operations/a:wait", content=b"{" * 2_000_000)
            assert refused.status_code == 401
            assert call("GET", "/v1/operations", headers={"authorization": "a"}).status_code == 200
    assert asked == ["", "a"]
