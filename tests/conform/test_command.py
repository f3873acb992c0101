"""The command ``lro conform`` over real sockets: reports, exit statuses, errors of usage."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("grpc")

from lro.asgi import OperationsApp
from lro.cli import main
from lro.errors import Unauthenticated
from lro_conform import Level, _options
from lro_conform._processes import RunningCommand, run_command
from lro_conform.server._judge import CHECKS
from lro_conform.server._starts import CommandStarter, StartFailed, StartKind
from tests.cli.asking import Ended, Lro
from tests.conform.broken import FAILED, FAULTS, Broken, Layer, again, refuses
from tests.conform.handmade import START, Operations, serving_handmade
from tests.conform.processes import has_ended
from tests.conform.works import REQUESTS, serving_works
from tests.http.servers import uvicorn_serving
from tests.services.ports import free_port

STARTS = (
    *("--start", REQUESTS[StartKind.LONG]),
    *("--start-soon", REQUESTS[StartKind.SOON]),
    *("--start-fail", REQUESTS[StartKind.FAIL]),
)
QUICK = ("names", "errors", "cancel.again", "cancel.code", "http.poll-interval", "auth")
ONLY = tuple(word for one in QUICK for word in ("--only", one))

STARTING = f"""
import os, sys
import grpc

kind = os.environ["LRO_CONFORM_KIND"]
if kind == "fail":
    sys.exit()  # this server does not fail
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import struct_pb2  # of the metadata
from google.protobuf.json_format import MessageToJson

with grpc.insecure_channel(os.environ["LRO_CONFORM_TARGET"]) as channel:
    start = channel.unary_unary({START!r})
    operation = pb.Operation.FromString(start(kind.encode()))
print(operation.name if kind == "soon" else MessageToJson(operation))
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lro:
    """A function that runs ``lro`` with the given arguments."""
    monkeypatch.delenv("LRO_TOKEN", raising=False)
    return Lro(capsys)


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a correct server."""
    with (
        serving_works() as works,
        uvicorn_serving(OperationsApp(works.service, starts=True), lifespan="off") as port,
    ):
        yield f"http://127.0.0.1:{port}"


def conform(call: Lro, *arguments: str) -> Ended:
    """Run ``lro conform`` with these arguments."""
    return call("conform", *arguments)


def test_correct_server_conforms(call: Lro, url: str, tmp_path: Path) -> None:
    """If a server conforms, the last line, the exit status, and JSON and JUnit reports say so."""
    ended = conform(call, url, *STARTS, *ONLY)
    assert ended.status == 0, ended.out
    assert ended.lines[0] == "1 check skipped: no credentials were given"
    assert ended.lines[-1].startswith(f"{url} conforms (")
    report = json.loads(conform(call, url, *STARTS, *ONLY, "--format", "json").out)
    assert report["status"] == report["counts"]["must"]["failed"] == 0
    by_id = {one["id"]: one for one in report["checks"]}
    assert by_id["cancel.code"]["verdict"] == "passed"
    assert by_id["cancel.code"]["sources"][0]["document"] == "operations.proto"
    assert by_id["auth.challenge"]["verdict"] == "absent"
    file = tmp_path / "report.xml"
    names = ("--only", "names", "--only", "auth", "--format", "junit", "-o", str(file))
    ended = conform(call, url, *STARTS, *names)
    assert (ended.status, ended.out) == (0, "")
    start = b"<?xml version='1.0' encoding='UTF-8'?>\n<testsuites "
    assert file.read_bytes().startswith(start)  # in any locale
    root = ElementTree.parse(file).getroot()
    assert {one.get("name") for one in root} == {"http.names", "http.auth"}
    assert root.findall(".//failure") == []
    skipped = [one.get("name") for one in root.iter("testcase") if one.find("skipped") is not None]
    assert skipped == ["auth.anonymous", "auth.challenge"]


OTHER_CODE: Layer = FAULTS["cancel.code"][0]  # type: ignore[index]
CANCELS = ("--only", "cancel.again", "--only", "cancel.code", "--only", "http.poll-interval")
SECOND_REFUSED = refuses(again("cancel"), *FAILED)


@pytest.mark.parametrize(
    ("layer", "options", "status"),
    [
        (OTHER_CODE, (), 1),
        (SECOND_REFUSED, (), 0),
        (SECOND_REFUSED, ("--strict",), 1),
        (FAULTS["http.poll-interval"], ("--strict",), 0),
        (OTHER_CODE, ("--only", "names"), 0),
        (refuses("list", 501, "UNIMPLEMENTED"), ("--only", "calls"), 0),
        (refuses("list", 501, "UNIMPLEMENTED"), ("--only", "calls", "--require", "calls"), 1),
        (refuses("list", 501, "UNIMPLEMENTED"), ("--only", "names", "--require", "calls.list"), 1),
        (FAULTS["http.poll-interval"], ("--only", "names", "--require", "http.poll-interval"), 1),
    ],
    ids=(
        *("must", "should", "strict should", "strict info", "other", "absent", "required"),
        *("required beside others", "required info"),
    ),
)
def test_exit_status_counts_musts_and_with_strict_shoulds(
    call: Lro, layer: Layer, options: tuple[str, ...], status: int
) -> None:
    only = () if "--only" in options else CANCELS
    with serving_works() as works:
        app = Broken(OperationsApp(works.service, starts=True), layer)
        with uvicorn_serving(app, lifespan="off") as port:
            ended = conform(call, f"http://127.0.0.1:{port}", *STARTS, *only, *options)
    assert ended.status == status
    assert ("FAILED" in ended.out) == ("--only" not in options or "--require" in options)


def test_both_transports_are_judged_with_a_start_command(call: Lro, tmp_path: Path) -> None:
    """A start command prints a name or an Operation, or nothing for a kind that it cannot start."""
    script = tmp_path / "start.py"
    script.write_text(STARTING)
    with serving_handmade(Operations()) as address:
        starting = ("--start-command", shlex.join([sys.executable, str(script)]))
        asked = ("--grpc", f"grpc://{address}", "--only", "result", "--verbose")
        ended = conform(call, *asked, *starting)
    assert ended.status == 0, ended.out
    assert "PASSED should result.success (grpc)" in ended.out
    assert "SKIPPED must result.failure (grpc)" in ended.out
    assert "\nmust: 3 passed, 1 skipped\nshould: 1 passed, 1 skipped\n" in ended.out
    assert "the command prints nothing for the kind fail" in ended.out


def test_gRPC_beside_HTTP(call: Lro) -> None:
    """Operations are started over HTTP, and judged over both transports."""
    grpc_serving = pytest.importorskip("tests.grpc.serving").serving
    with (
        serving_works() as works,
        uvicorn_serving(OperationsApp(works.service, starts=True), lifespan="off") as port,
        grpc_serving("asyncio", works.service) as address,
    ):
        url = f"http://127.0.0.1:{port}"
        ended = conform(call, url, "--grpc", address, *STARTS, "--only", "names", "--format=json")
    report = json.loads(ended.out)
    assert ended.status == 0, ended.out
    assert report["target"] == f"{url}, {address}"
    assert {one["transport"] for one in report["checks"]} == {"http", "grpc"}


def known_caller(headers: Mapping[str, str]) -> str:
    """Return the caller whom the token identifies.

    Raises:
        Unauthenticated: The token is missing or wrong.
    """
    if headers.get("authorization") != "Bearer secret":
        raise Unauthenticated
    return "ann"


def test_token_of_a_file_or_the_environment_is_sent(
    call: Lro, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token comes from a file or the environment, with or without the word Bearer."""
    file = tmp_path / "token"
    file.write_text("Bearer secret\n")
    with serving_works() as works:
        app = OperationsApp(works.service, starts=True, authenticate=known_caller)
        with uvicorn_serving(app, lifespan="off") as port:
            url = f"http://127.0.0.1:{port}"
            refused = conform(call, url, *STARTS)
            assert (refused.status, "answered 401 UNAUTHENTICATED" in refused.err) == (2, True)
            monkeypatch.setenv("LRO_TOKEN", "pass word")
            refused = conform(call, url, *STARTS)
            assert (refused.status, "pass word" in refused.err) == (2, False)
            assert "the token has characters that a header cannot have" in refused.err
            options = ("--only", "auth", "--verbose")
            header = ("--header", "Authorization: Bearer secret")
            for more in (("--token-file", str(file)), header, ()):
                monkeypatch.setenv("LRO_TOKEN", "wrong" if more else "secret")
                ended = conform(call, url, *STARTS, *options, *more)
                assert ended.status == 0, ended.out
                assert "PASSED should auth.anonymous" in ended.out
                assert "PASSED must auth.challenge" in ended.out
                assert "secret" not in ended.out


def test_list_has_every_check(call: Lro) -> None:
    """The list shows each check with its level and source, and no server is called."""
    ended = conform(call, "--list")
    assert (ended.status, len(ended.lines)) == (0, 2 * len(CHECKS))
    assert "cancel.code (must, optional; grpc, http; operations.proto CancelOperation)" in ended.out
    musts = json.loads(conform(call, "--list", "--format=json", "--level", "must").out)
    assert {one["id"] for one in musts} == {one.id for one in CHECKS if one.level is Level.MUST}


NOWHERE = ("--grpc", "unix:///nowhere/socket", "--call-timeout", "1")
START_X = ("http://x", "--start", "POST /x")
UNUSABLE = [
    ((), "give the URL of a server, or --grpc TARGET"),
    (("http://x",), "give either --start or --start-command"),
    (("http://x", "--start-soon", "POST /x"), "--start and the URL are needed, too"),
    (("--grpc", "x:1", "--start", "POST /x"), "--start and the URL are needed, too"),
    (("ftp://x", "--start", "POST /x"), "'ftp://x' is not a URL of http or https"),
    (("http://x", "--start", "GET /x"), "'GET /x' is not of the form 'POST /PATH JSON'"),
    (("http://x", "--start", "POST /x {"), "the body of 'POST /x {' is not JSON"),
    ((*START_X, "--header", "x"), "'x' is not of the form 'Name: value'"),
    ((*START_X, "--only", "nothing"), "'nothing' names no check"),
    ((*START_X, "--require", "nothing"), "'nothing' names no check"),
    (("--list", "--require", "nothing"), "'nothing' names no check"),
    ((*START_X, "--require", "grpc"), "grpc is required, and cannot be judged over http"),
    (("--list", "--format", "junit"), "--list prints human or json"),
    (("--list", "-o", "/nowhere/list"), "/nowhere/list: No such file or directory"),
    ((*START_X, "--token-file", "/nowhere"), "cannot be read"),
    (("http://x", "--start-command", "/nowhere/start"), "'/nowhere/start' cannot be run"),
    (("http://x", "--start-command", "false"), "the command 'false' ended with status 1"),
    (("http://x", "--start-command", "true"), "the command prints nothing for the kind long"),
    (("http://x", "--start-command", "echo {"), "the command printed what is not JSON"),
    (("http://x", "--start-command", "'"), "'--start-command': No closing quotation"),
    (("http://x", "--start-command", "echo two words"), 'printed what is not a name: "two words'),
    (("http://x", "--start-command", "echo /"), 'the command printed what is not a name: "/"'),
    (("http://x", "--start-command", "echo '{}'"), "the command printed no Operation: it has no"),
    (("http://x", "--start-command", "head -c 99999 /dev/zero"), "printed 99999 bytes instead"),
    (("http://x", "--start-command", "a\0b"), "cannot be run: embedded null byte"),
    (("http://x", "--start", 'POST /x "\udcff"'), "surrogates not allowed"),
    (("http://x", "--start", "POST /x " + "[" * 99_999), "is not JSON: it is nested too deeply"),
    ((*START_X, "-o", "/nowhere/x"), "/nowhere/x: No such file or dir"),
    (("http://user:secret@x",), "give credentials by --header or --token-file, not in the URL"),
    (("http://x?a=1",), "the URL has a query or a fragment"),
    (("http://x:99999",), "'http://x:99999' is not a URL of http or https"),
    (("http://[::1",), "'http://[::1' is not a URL of http or https"),
    (("http://xn--a-/",), "'http://xn--a-/' is not a URL of http or https"),
    (("http:///v1",), "'http:///v1' is not a URL of http or https"),
    (("--grpc", "x y:1"), "'x y:1' is not a target"),
    (("http://x", "--prefix", "v1"), "'v1' is not a path that begins with a slash"),
    (("http://x", "--parent", "\udcff"), "is not a name"),
    (("http://x", "--header", "Content-Length: 5"), "Content-Length is set by the requests"),
    (
        ("--grpc", "x:1", "--start-command", "true", "--header", "x-bin: a"),
        "the header x-bin cannot be sent over gRPC",
    ),
    (("http://127.0.0.1:1", "--start", "POST /x"), "POST /x: no reply (ConnectError"),
    ((*NOWHERE, "--start-command", "echo operations/x"), "unix:/nowhere/socket"),
]


@pytest.mark.parametrize(("arguments", "said"), UNUSABLE)
def test_unusable_argument_gives_exit_status_2(
    call: Lro, arguments: tuple[str, ...], said: str
) -> None:
    ended = conform(call, *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err
    assert "secret" not in ended.err


def test_run_without_a_report_leaves_no_file(call: Lro, tmp_path: Path) -> None:
    """A run without a report leaves no empty file (invalid XML), and keeps an existing file."""
    away = ("http://127.0.0.1:1", "--start", "POST /x", "--format", "junit", "-o")
    fresh, kept = tmp_path / "fresh.xml", tmp_path / "kept.xml"
    kept.write_text("of yesterday")
    for file in (fresh, kept):
        assert conform(call, *away, str(file)).status == 2
    assert (fresh.exists(), kept.read_text()) == (False, "of yesterday")


@pytest.mark.parametrize(("name", "value"), [("NO_PROXY", "fd00::/8"), ("ALL_PROXY", "ftp://x")])
def test_unusable_proxy_variable_gives_exit_status_2(
    call: Lro, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error about an unusable proxy says that an environment variable is the cause."""
    monkeypatch.setenv(name, value)
    ended = conform(call, *START_X)
    assert ended.status == 2
    assert ended.err.startswith("Error: a variable such as HTTPS_PROXY or NO_PROXY cannot be used")


def test_daemon_left_by_a_hook_is_not_waited_for(tmp_path: Path) -> None:
    """A daemon left by a hook is neither awaited nor killed, because it may run the operation."""
    number = tmp_path / "number"
    script = f"sleep 60 & echo $! > {shlex.quote(str(number))}; echo operations/x"
    starter = CommandStarter(("sh", "-c", script), "here", seconds=50)
    answer = asyncio.run(starter.start(StartKind.LONG))
    os.kill(int(number.read_text()), signal.SIGKILL)  # fails if the daemon was killed
    assert answer.body == {"name": "operations/x"}


def test_hook_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    number = tmp_path / "number"
    script = f"trap '' TERM; sleep 600 & echo $! > {shlex.quote(str(number))}; wait"
    starter = CommandStarter(("sh", "-c", script), "here", seconds=5)
    with pytest.raises(StartFailed, match="has not ended within 5 s"):
        asyncio.run(starter.start(StartKind.LONG))
    assert has_ended(int(number.read_text()))


def test_command_that_is_cancelled_while_it_begins_is_killed() -> None:
    """A command is killed even if its task is cancelled before the task knows the process id."""

    async def cancelled() -> int:
        numbers = []
        begun = RunningCommand.connection_made

        def connection_made(self: RunningCommand, transport: asyncio.BaseTransport) -> None:
            begun(self, transport)
            numbers.append(self._number)
            task.cancel()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunningCommand, "connection_made", connection_made)
            task = asyncio.ensure_future(run_command(("sleep", "600"), {}, most=10))
            with pytest.raises(asyncio.CancelledError):
                await task
        return numbers[0]

    assert has_ended(asyncio.run(cancelled()))


def test_SIGTERM_ends_the_judging() -> None:
    """After SIGTERM, the exit status is the one that shells use for this signal."""

    async def judging() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as raised:
        _options.run_judging(judging())
    assert raised.value.code == 143


def test_cancellation_without_a_signal_is_passed_on() -> None:
    """A CancelledError without a signal is raised unchanged."""

    async def judging() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        _options.run_judging(judging())


def test_colours_are_left_out_where_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR (https://no-color.org) turns colours off; so does a terminal without colours."""
    for terminal, asked, plain in (("xterm", "", False), ("dumb", "", True), ("xterm", "1", True)):
        monkeypatch.setenv("TERM", terminal)
        monkeypatch.setenv("NO_COLOR", asked)
        assert _options._plain() is plain


def test_command_works_outside_the_main_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside the main thread, where signal handlers cannot be set, the command sets none."""
    statuses = []
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ["conform", url, "--start", "POST /x"]
    thread = threading.Thread(target=lambda: statuses.append(main(arguments)))
    thread.start()
    thread.join()
    assert statuses == [2]
