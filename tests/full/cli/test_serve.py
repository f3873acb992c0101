"""``lro serve`` and ``lro worker`` as processes, with real sockets and signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

pytest.importorskip("click")
pytest.importorskip("uvicorn")

import lro
from lro.cli import _processes
from lro.cli._serving import Health
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro_client import Client
from tests.cli.asking import Lro
from tests.cli.serving import (
    MEMORY,
    SQLITE,
    Server,
    StepsResponse,
    at_work,
    begun,
    lro_serve,
    write_service,
)
from tests.services.hosts import PATIENCE, running, until
from tests.services.ports import free_port

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups")

ONLY_HYPERCORN = """
import importlib.util
import sys

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "uvicorn" else find(name, *more)

from lro.cli import main
sys.exit(main())
"""


def process_of(client: Client, name: str) -> int:
    """Return the ID of the process that did the work of an operation."""
    handle = client.operation(name, response=StepsResponse, metadata=lro.OperationMetadata)
    return int(handle.result(timeout=PATIENCE).process)


def test_service_is_served_and_stopped_without_loss(here: Path) -> None:
    """After SIGTERM the server exits with 0, and the next server does the unfinished work."""
    write_service(here, drain_seconds=0)
    with at_work(here, "work:service") as (server, client, name):
        assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "ok"}
        assert server.host.stop() == 0
        assert "operations released: 1 of 1" in server.host.output
        assert "Traceback" not in server.host.output
    (here / "go").touch()
    with lro_serve(here, "work:service", log="second.log") as server, Client(server.url) as client:
        assert process_of(client, name) == server.host.process.pid
        server.host.process.send_signal(signal.SIGINT)
        assert server.host.end() == 130


@pytest.mark.parametrize("by", ["uvicorn", "hypercorn"])
def test_idle_connections_are_kept_for_longer_than_clients_keep_them(by: str, here: Path) -> None:
    """An idle connection is still open after 6 s, past the usual 5 s of servers and clients."""
    pytest.importorskip(by)
    write_service(here)
    (here / "program.py").write_text(ONLY_HYPERCORN)
    program = {"uvicorn": ("-m", "lro.cli"), "hypercorn": ("program.py",)}[by]
    limits = httpx.Limits(keepalive_expiry=60)
    with (
        running((*program, "serve", "work:service", "--port", "0"), here, "server.log") as host,
        httpx.Client(base_url=Server.of(host).url, limits=limits) as http,
    ):
        ports = []
        for seconds in (0, 6):
            time.sleep(seconds)
            stream = http.get("/healthz").extensions["network_stream"]
            ports.append(stream.get_extra_info("client_addr"))
    assert ports[0] == ports[1]


def test_second_signal_ends_the_drain(here: Path) -> None:
    """A second SIGTERM ends the drain at once: running work is released to other workers."""
    write_service(here, drain_seconds=3600)
    with at_work(here, "work:service") as (server, _, _):
        server.host.ask_to_stop()
        until(lambda: "waits up to" in server.host.output)
        assert server.host.stop() == 0
        assert "operations released: 1 of 1" in server.host.output


def test_running_work_may_end_while_the_server_drains(here: Path) -> None:
    """Work that ends while its server drains is stored by that server."""
    write_service(here, drain_seconds=3600)
    with at_work(here, "work:service", "--host", "localhost") as (server, client, name):
        server.host.ask_to_stop()
        until(lambda: "waits up to" in server.host.output)
        (here / "go").touch()
        assert server.host.end() == 0
        assert "has no authenticate hook" not in server.host.output
        first = server.host.process.pid
    with lro_serve(here, "work:service", log="second.log") as server, Client(server.url) as client:
        assert process_of(client, name) == first


def skip_without_grpc() -> None:
    """Skip a test in which the command calls the server over gRPC, if a package is missing."""
    for module in ("grpc", "google.longrunning.operations_proto_pb2", "rich"):
        pytest.importorskip(module)


def test_grpc_is_served_beside_http(here: Path) -> None:
    """With ``--grpc``, one service is served over HTTP and gRPC; the servers stop together."""
    skip_without_grpc()
    write_service(here)
    (here / "go").touch()
    with lro_serve(here, "work:service", "--grpc", "0") as server:
        assert server.grpc is not None
        asked = Lro.as_process("list", "--server", server.grpc)
        assert asked.returncode == 0, asked.stderr
        with Client(server.url) as client:
            started = server.start(client)
            started.result(timeout=PATIENCE)
        asked = Lro.as_process("get", started.name, "--server", server.grpc)
        assert "SUCCEEDED" in asked.stdout
        assert server.host.stop() == 0


def test_hypercorn_serves_where_uvicorn_is_missing(here: Path) -> None:
    """Without uvicorn, hypercorn serves: first line, health checks and shutdown are the same."""
    pytest.importorskip("hypercorn")
    write_service(here, drain_seconds=0)
    (here / "program.py").write_text(ONLY_HYPERCORN)
    command = ("program.py", "serve", "work:service", "--port", "0")
    with running(command, here, "server.log") as host:
        server = Server.of(host)
        assert httpx.get(f"{server.url}/readyz").headers["server"].startswith("hypercorn")
        with Client(server.url) as client:
            name = server.start(client).name
            until(lambda: begun(here) != [])
            assert host.stop() == 0
        assert "operations released: 1 of 1" in host.output
    (here / "go").touch()
    with lro_serve(here, "work:service", log="second.log") as server, Client(server.url) as client:
        assert process_of(client, name) == server.host.process.pid


def test_application_keeps_its_hooks_and_other_paths(here: Path) -> None:
    """An application keeps its fallback and ``authenticate``; health checks are added."""
    write_service(here)
    with lro_serve(here, "work:app") as server:
        assert httpx.get(f"{server.url}/mine").text == "mine"
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert server.host.stop() == 0
    with lro_serve(here, "work:closed", "--host", "0.0.0.0", log="closed.log") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/operations", headers={"x-caller": "ann"}).status_code == 200
        assert "has no authenticate hook" not in server.host.output
        assert server.host.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (("work:service",), ["evil.example", "api.example"]),
        (("work:app", "--allow-host", "API.example"), ["evil.example"]),
        (("work:closed",), []),
        (("work:service", "--host", "0.0.0.0"), []),
        (("work:service", "--host", "127.1"), ["evil.example", "api.example"]),
    ],
)
def test_calls_for_other_hosts_are_refused_by_an_open_server_on_this_machine(
    arguments: tuple[str, ...], refused: list[str], here: Path
) -> None:
    """A local server without hooks refuses requests for another host name (DNS rebinding)."""
    write_service(here)
    with lro_serve(here, *arguments) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        found = []
        for host in ("evil.example", "api.example", "localhost", "127.0.0.1", "[::1]"):
            headers = {"Host": f"{host}:{server.url.rpartition(':')[2]}", "X-Caller": "ann"}
            said = [httpx.get(f"{url}/v1/operations", headers=headers)]
            said.append(httpx.post(f"{url}/v1/works:work", json={}, headers=headers))
            assert httpx.get(f"{url}/healthz", headers=headers).status_code == 200
            if {one.status_code for one in said} == {403}:
                assert "name it by --allow-host" in said[0].json()["error"]["message"]
                found.append(host)
            else:
                assert {one.status_code for one in said} == {200}
        own = httpx.get(f"{url}/v1/operations", headers={"X-Caller": "ann"})  # the server's host
        assert own.status_code == 200
        assert ("is not a loopback" in server.host.output) is ("0.0.0.0" in arguments)
    assert found == refused


def test_open_server_warns_and_serves_what_its_options_say(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--no-starts`` and ``--parent`` are obeyed, and a server open to other machines warns."""
    monkeypatch.setenv("WEB_CONCURRENCY", "auto")  # a variable that other servers read
    write_service(here, store=f"import logging; logging.basicConfig()\n{MEMORY}")
    arguments = ("work:service", "--host", "0.0.0.0", "--no-starts", "--parent", "projects/*")
    with lro_serve(here, *arguments) as server:
        assert "has no authenticate hook, and 0.0.0.0 is not a loopback" in server.host.output
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/projects/p/operations").status_code == 200
        assert httpx.post(f"{url}/v1/works:work", json={}).status_code == 404
        assert server.host.stop() == 0
        assert "stopping: waits" not in server.host.output


def test_several_processes_share_port_and_store(here: Path) -> None:
    """With ``--workers``, a killed process is replaced; all processes end with their supervisor."""
    skip_without_grpc()
    write_service(here, lease=1)
    grpc = str(free_port())
    arguments = ("work:service", "--workers", "2", "--grpc", grpc, "--starts", "--parent", "a/*")
    source = (here / "work.py").read_text(encoding="utf-8")
    with at_work(here, *arguments) as (server, client, name):
        (here / "work.py").write_text("(", encoding="utf-8")  # as if a deployment were half done
        os.kill(begun(here)[0], signal.SIGKILL)
        server.host.says(re.compile("could not begin, .* another one begins in 2 s"))
        (here / "work.py").write_text(source, encoding="utf-8")
        (here / "go").touch()
        assert process_of(client, name) != begun(here)[0]
        assert server.grpc == f"grpc://127.0.0.1:{grpc}"
        assert Lro.as_process("list", "a/b", "--server", server.grpc).returncode == 0
        server.host.process.send_signal(signal.SIGINT)
        assert server.host.end() == 130
        assert server.host.output.count("is served at") == 1
        until(lambda: not server.host.alive)
    with lro_serve(here, "work:service", "--workers", "2", log="second.log") as server:
        server.host.process.kill()
        assert server.host.end() == -signal.SIGKILL
        until(lambda: not server.host.alive)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_to_all_processes_lets_them_drain(here: Path, number: int, status: int) -> None:
    """A signal to all processes, as from a terminal, counts once, and the processes still drain."""
    write_service(here, drain_seconds=3600)
    with at_work(here, "work:service", "--workers", "2") as (server, client, name):
        os.killpg(server.host.process.pid, number)
        until(lambda: "waits up to" in server.host.output)
        (here / "go").touch()
        assert server.host.end() == status
        assert "released: 0 of 1" in server.host.output
    with lro_serve(here, "work:service", log="second.log") as server, Client(server.url) as client:
        assert [process_of(client, name)] == begun(here)


def test_process_whose_supervisor_ends_before_it_serves_ends_too(here: Path) -> None:
    """If the supervisor ends before its process serves, the process exits with 0."""
    write_service(here)
    ours, link = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, link:
        ours.close()
        given = listener.fileno(), link.fileno()
        named: dict[str, object] = {"target": "work:service", "host": "127.0.0.1", "port": 0}
        named |= {"grpc_port": None, "workers": 2, "starts": None, "parents": [], "names": []}
        text = json.dumps({**named, "inherited": given})
        command = sys.executable, "-m", "lro.cli", "serve", "work:service", "--inherited", text
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, cwd=here, env=paths, pass_fds=given, timeout=PATIENCE)
    assert ended.returncode == 0


def supervised(script: str) -> _processes.Processes:
    """Supervise one process that runs a script, until a signal stops it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = _processes.Processes(
            lambda given: (sys.executable, "-c", script, str(given[1])), 1, listener
        )
        asyncio.run(processes.run(lambda: None))
    return processes


def test_process_that_does_not_serve_yet_is_stopped_too() -> None:
    """A signal also stops a process that does not yet read from its supervisor."""
    script = "import os, signal, time; os.kill(os.getppid(), {}); time.sleep(600)"
    assert not supervised(script.format(int(signal.SIGTERM))).interrupted
    assert supervised(script.format(int(signal.SIGINT))).interrupted


def test_stop_in_the_pause_after_a_crash_begins_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a signal arrives just after a process has crashed, no new process begins."""
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(_processes, "warn", stop)
    assert supervised("import os, sys; os.write(int(sys.argv[1]), b'.'); sys.exit(5)").status == 0
    assert lines == ["a worker process ended with status 5; another one begins in 1 s"]


def test_stopping_server_is_not_ready() -> None:
    """While the server stops, load balancers get 503 from ``/readyz``; ``/healthz`` returns 200."""
    with lro.Service(MemoryStore(), InlineExecutor()) as service:
        health = Health(service)
        health.stopping = True
        assert asyncio.run(health.reply(ready=True)).status == 503
        assert asyncio.run(health.reply(ready=False)).status == 200


def test_slow_hooks_do_not_hold_up_probes() -> None:
    """``/readyz`` is answered even if hooks occupy all threads of the event loop's executor."""

    async def ask(health: Health) -> int:
        ended, loop = threading.Event(), asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hook = loop.run_in_executor(None, ended.wait)
        try:
            return (await asyncio.wait_for(health.reply(ready=True), PATIENCE)).status
        finally:
            ended.set()
            await hook

    with lro.Service(MemoryStore(), InlineExecutor()) as service:
        assert asyncio.run(ask(Health(service))) == 200


LIMITED = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, {}))\n{}"


@pytest.mark.parametrize("other", ["uvicorn", "hypercorn"])
@pytest.mark.parametrize(("most", "said"), [(64, 1), (512, 0)])
def test_connections_wait_for_descriptors(most: int, said: int, other: str, here: Path) -> None:
    """A server raises its limit of file descriptors; if all are used, connections wait."""
    pytest.importorskip("hypercorn")
    write_service(here, MEMORY)
    program = ONLY_HYPERCORN.replace("uvicorn", other)
    (here / "program.py").write_text(LIMITED.format(most, program))
    command = ("program.py", "serve", "work:service", "--port", "0")
    with (
        running(command, here, "server.log") as host,
        httpx.Client(base_url=Server.of(host).url, timeout=PATIENCE) as client,
        contextlib.ExitStack() as idle,
    ):
        assert client.get("/readyz").status_code == 200
        for _ in range(100):
            address = (client.base_url.host, client.base_url.port)
            idle.enter_context(socket.create_connection(address))
        until(lambda: host.output.count("new connections wait: Too many open files") == said)
        asked = client.get if said else httpx.get  # httpx.get opens a further connection
        assert asked(client.base_url.join("/readyz")).status_code == 200
        idle.close()
        assert host.stop() == 0
        assert host.output.count("new connections wait") == said
        assert "Traceback" not in host.output


def test_several_processes_that_cannot_begin_end_the_command(here: Path) -> None:
    pytest.importorskip("grpc")
    write_service(here)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ("-m", "lro.cli", "serve", "work:service", "--port", "0", "--workers", "2")
        with running((*command, "--grpc", port), here, "server.log") as host:
            assert host.end() == 2
            assert f"cannot listen on 127.0.0.1:{port}" in host.output
            until(lambda: not host.alive)


OTHER_THREAD_GETS_SIGNALS = """
import signal, threading

def wait():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Event().wait()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.parametrize("more", ["", OTHER_THREAD_GETS_SIGNALS])
def test_worker_takes_over_what_a_killed_server_has_begun(here: Path, more: str) -> None:
    """A worker takes the work of a killed server, and after SIGTERM another worker takes it.

    A signal that another thread receives interrupts no wait of the main thread. The same is true
    of a signal that comes just before such a wait.
    """
    write_service(here, lease=1, drain_seconds=0)
    module = here / "work.py"
    module.write_text(module.read_text() + more)
    with at_work(here, "work:service") as (server, _, name):
        server.host.process.kill()
    command = ("-m", "lro.cli", "worker", "work:service")
    with running(command, here, "worker.log") as worker:
        until(lambda: worker.process.pid in begun(here))
        assert "work:service takes work\n" in worker.output  # other lines may come first
        assert worker.stop() == 0
        assert "operations released: 1 of 1" in worker.output
    (here / "go").touch()
    with running(command, here, "second.log") as worker:
        until(lambda: worker.process.pid in begun(here))
        with lro_serve(here, "work:service", log="s.log") as server, Client(server.url) as client:
            assert process_of(client, name) == worker.process.pid
        worker.process.send_signal(signal.SIGINT)
        assert worker.end() == 130


ON_LOOP = """
import asyncio, os
from datetime import timedelta
import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.stores.sqlite import SQLiteStore

executor = AsyncioExecutor(loop="running")
service = lro.Service(SQLiteStore("operations.db"), executor, drain=timedelta(hours=1))

@service.method("cli.v1.Works.Work")
async def work(request: lro.Struct) -> lro.Struct:
    with open("begun", "a") as file:
        print(os.getpid(), file=file)
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    return request
"""


@pytest.mark.parametrize("second", [False, True])
def test_worker_runs_async_functions_on_its_own_loop(here: Path, second: bool) -> None:
    """During the drain the loop of a worker goes on; a second signal releases the work at once."""
    (here / "work.py").write_text(ON_LOOP)

    def work(request: lro.Struct) -> lro.Struct:
        return request  # not called: this process has no executor

    with lro.Service(SQLiteStore(here / "operations.db"), None, maintenance=False) as front:
        name = front.method("cli.v1.Works.Work")(work).start(lro.Struct({"a": 1})).name
        command = ("-m", "lro.cli", "worker", "work:service")
        with running(command, here, "worker.log") as worker:
            until(lambda: worker.process.pid in begun(here))
            worker.ask_to_stop()
            until(lambda: "(drain) for running operations: 1" in worker.output)
            if second:
                worker.ask_to_stop()
            else:
                (here / "go").touch()
            assert worker.end() == 0
        assert front.get(name).done is not second


POSTGRES = """
from lro.stores.postgres import PostgresStore
store = PostgresStore({url!r}, schema={schema!r})
"""


def test_server_waits_for_an_unavailable_database(here: Path) -> None:
    """A server and a worker start without their database, and work once it is up."""
    psycopg = pytest.importorskip("psycopg")
    from tests.services.postgres import new_server

    database = new_server()
    write_service(here, POSTGRES.format(url=database.url, schema="away"), drain_seconds=0)
    with database.away(), running(("-m", "lro.cli", "worker", "work:service"), here, "w") as worker:
        until(lambda: "takes work" in worker.output)
        assert "for now no work is found: the operations database cannot be" in worker.output
        with lro_serve(here, "work:service") as server:
            assert "for now calls are answered UNAVAILABLE: the operations" in server.host.output
            assert "Connection refused" in server.host.output
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            refused = httpx.get(f"{server.url}/readyz")
            assert refused.status_code == 503
            assert refused.json()["error"]["status"] == "UNAVAILABLE"
            assert httpx.post(f"{server.url}/v1/works:work", json={}).status_code == 503
            database.start()
            until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
            with Client(server.url) as client:
                server.start(client)
            with psycopg.connect(database.url, autocommit=True) as plain:
                for change, status in (("SET {} = on", 503), ("RESET {}", 200)):
                    setting = change.format("default_transaction_read_only")
                    plain.execute(f"ALTER SYSTEM {setting}")
                    plain.execute("SELECT pg_reload_conf()")
                    until(lambda: httpx.get(f"{server.url}/readyz").status_code, status.__eq__)
            assert server.host.stop() == 0
            until(lambda: worker.process.pid in begun(here))
            assert worker.stop() == 0
            database.stop()
    database.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "nowhere:service"], "nowhere:service: cannot be imported: ModuleNotFoundError"),
        (["serve", "work"], "work: is not module:service"),
        (["serve", "work:nothing"], "there is no 'nothing' in it"),
        (["serve", "work:attrs"], "is module, not an lro.Service or an lro.asgi.OperationsApp"),
        (["serve", "work:app", "--no-starts"], "which has its own starts and parents"),
        (["serve", "work:app", "--parent", "a/*"], "which has its own starts and parents"),
        (["serve", "work:closed", "--grpc", "0"], "has an authenticate hook for HTTP"),
        (["serve", "work:service", "--parent", "a/"], "parent"),
        (["serve", "work:service", "--allow-host", "a.example:80"], "without scheme and port"),
        (["serve", "work:service", "--allow-host", "https://a.example"], "without scheme and port"),
        (["serve", "work:service", "--workers", "2"], "cannot share a MemoryStore"),
        (
            ["serve", "shared:service", "--workers", "2", "--grpc", "0"],
            "a port, which must be given",
        ),
        (["serve", "work:service", "--port", "65536"], "65536"),
        (["serve", "work:service", "--port", "{}"], "on 127.0.0.1:{}: Address already in use"),
        (["serve", "work:service", "--host", "no.such.host.invalid"], "cannot listen on no.such"),
        (["serve", "work:service", "--host", "a" * 80], "cannot listen on aaa"),
        (["serve", "work:service", "--host", "::1%nowhere"], "cannot listen on [::1%nowhere]:8000"),
        (["worker", "work:service"], "has a MemoryStore, in which only its own process finds"),
        (["worker", "idle:service"], "was made with maintenance=False"),
        (["worker", "work:app"], "is OperationsApp, not an lro.Service"),
    ],
)
def test_invalid_target_is_refused_in_one_sentence(
    arguments: list[str], said: str, here: Path, command: Lro
) -> None:
    """An invalid target or option gets exit status 2 and one sentence."""
    write_service(here, MEMORY)
    write_service(here, SQLITE, name="idle", maintenance=False)
    write_service(here, SQLITE, name="shared")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = command(*(one.format(port) for one in arguments), status=2)
    assert said.format(port) in ended.err
    assert ended.err.startswith(("Error: ", "Usage: "))
    assert ended.out == ""
    for module in [sys.modules.pop(name, None) for name in ("work", "idle", "shared")]:
        if module is not None:
            module.service.close(0)


def test_several_processes_need_a_system_that_passes_sockets_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, command: Lro
) -> None:
    write_service(here, name="unshared")
    monkeypatch.delattr("os.fork")
    ended = command("serve", "unshared:service", "--workers", "2", status=2)
    assert "--workers: must be 1 on this system" in ended.err
    sys.modules.pop("unshared").service.close(0)


def test_missing_servers_are_a_missing_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, command: Lro
) -> None:
    """Without uvicorn and hypercorn, the error names the extra ``serve``."""
    write_service(here, MEMORY, name="unserved")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'lro[serve]'" in command("serve", "unserved:service", status=2).err
    sys.modules.pop("unserved", None)
