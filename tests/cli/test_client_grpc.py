"""The commands over gRPC, which need descriptors to read binary messages."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("grpc")

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from lro.protobuf import descriptor_set
from lro_client._tokens import Token
from lro_client.cli._terminal import Exit
from tests.cli.asking import Lro, over
from tests.client.messages import ResizeMetadata, ResizeResponse
from tests.client.real_service import FULL_NAME, Harness
from tests.grpc.odd import odd_server, replying
from tests.grpc.serving import serving

START = json.dumps({"source": "a.png"})


@pytest.fixture
def address(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, call: Lro, here: Path
) -> Iterator[str]:
    """The gRPC address of a service, whose descriptors are in the file ``set``."""
    (here / "set").write_bytes(descriptor_set(harness.service))
    with serving("threads", harness.service) as found:
        monkeypatch.setenv("LRO_SERVER", f"grpc://{found}")
        yield found


def test_every_command_works_over_grpc(call: Lro, harness: Harness, address: str) -> None:
    name = over(harness, ResizeMetadata(40), ResizeResponse(7))
    assert call("list").lines == [f"{name}\tSUCCEEDED\t100%"]
    for named in (f"grpc://{address}/{name}", Token(name=name, server=address).text):
        call("wait", named, status=0)
    for verb in ("watch", "cancel", "delete"):
        call(verb, name, status=0)
    call("get", name, status=Exit.CALL_FAILED)


def test_messages_in_binary_form_are_sent_and_printed(
    call: Lro, harness: Harness, address: str
) -> None:
    name = over(harness, ResizeMetadata(40), ResizeResponse(7))
    (plain,) = call("get", "--json", name).json
    assert base64.b64decode(plain["response"]["value"]) == b"\x08\x07"
    (found,) = call("get", "--json", name, "--descriptors", "set").json
    assert found["response"]["sizeBytes"] == "7"
    assert found["metadata"]["percent"] == "40"


def test_start_over_grpc_uses_descriptors(call: Lro, harness: Harness, address: str) -> None:
    """With descriptors, ``start`` over gRPC accepts the full name or the path of a method."""
    harness.say(ResizeResponse(7))
    for target in (FULL_NAME, "/acme.images.v1.Images/Resize"):
        harness.say(ResizeResponse(7))
        found = call("start", target, START, "--wait", "--json", "--descriptors", "set")
        assert (found.status, found.json[0]["response"]["sizeBytes"]) == (0, "7")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([FULL_NAME, START], "needs --descriptors FILE over gRPC"),
        ([FULL_NAME, START, "--descriptors", "gone"], "gone: cannot be read"),
        (["acme.X.Y", START, "--descriptors", "set"], "is not a method of the services"),
        ([FULL_NAME, '{"width": 1}', "--descriptors", "set"], "width"),
    ],
)
def test_a_start_that_descriptors_do_not_describe_is_refused(
    call: Lro, address: str, arguments: list[str], expected: str
) -> None:
    assert expected in call("start", *arguments, status=Exit.MISUSED).err


def test_headers_and_token_are_sent_as_metadata(call: Lro, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--header`` and LRO_TOKEN are sent as gRPC metadata."""
    monkeypatch.setenv("LRO_TOKEN", "s3cret")
    with odd_server(replying(name="operations/a", done=True)) as odd:
        monkeypatch.setenv("LRO_SERVER", f"grpc://{odd.address}")
        assert call("get", "operations/a", "--header", "X-A: 1", "--header", "b-bin: 2").status == 0
        sent = odd.calls[0][2]
        assert (sent["x-a"], sent["b-bin"], sent["authorization"]) == ("1", b"2", "Bearer s3cret")
        call("get", "operations/a", "--header", "a$: 1", status=Exit.MISUSED)


def test_message_of_unknown_type_is_shown_in_base64(call: Lro) -> None:
    """A message of an unknown type, also in an error's details, is printed in base64."""
    with odd_server(
        replying(
            name="operations/a",
            done=True,
            metadata={"type_url": "x/acme.Odd", "value": b"\x01"},
            error={"code": 9, "details": [{"type_url": "x/acme.Odd", "value": b"\x02"}]},
        )
    ) as odd:
        (shown,) = call("get", "--json", "operations/a", "--server", f"grpc://{odd.address}").json
        assert shown["metadata"] == {"@type": "x/acme.Odd", "value": "AQ=="}
        assert shown["error"]["details"] == [{"@type": "x/acme.Odd", "value": "Ag=="}]
    odd_type = {"type_url": "x/acme.Odd", "value": b"\x01"}
    empty = {"type_url": "x/google.protobuf.Empty"}
    for only in (
        {"metadata": odd_type},
        {"done": True, "response": odd_type},
        {"done": True, "response": odd_type, "metadata": empty},
    ):
        with odd_server(replying(name="operations/a", **only)) as odd:
            shown = Lro(call.capsys, terminal=True)
            found = shown("get", "operations/a", "--server", f"grpc://{odd.address}")
            assert '"value": "AQ=="' in found.out


def test_grpcs_url_speaks_tls(call: Lro, address: str) -> None:
    """``grpcs://`` uses TLS: a call to a plaintext server fails, and the error names the URL."""
    options = ("--server", f"grpcs://{address}", "--call-timeout", "2s")
    said = call("get", "operations/a", *options, status=Exit.CALL_FAILED).err
    assert f"(asked was grpcs://{address})" in said


def test_host_named_like_a_grpcio_scheme_is_resolved_as_a_host(call: Lro) -> None:
    options = ("--server", "grpc://unix:1", "--call-timeout", "500ms")
    assert "No such file" not in call("get", "operations/a", *options, status=5).err


def test_missing_grpc_names_the_extra(call: Lro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lro_client.transports.grpc", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    said = call("get", "operations/a", "--server", "grpc://localhost:1", status=Exit.MISUSED).err
    assert "lro[grpc]" in said


PART = FileDescriptorProto(name="a.proto", dependency=["b.proto"])
ODD = FileDescriptorProto(name="a.proto", package="google.rpc", syntax="proto3")
ODD.enum_type.add(name="Status").value.add(name="NONE", number=0)
ODD.message_type.add(name="Odd").field.add(
    name="status", number=1, label=1, type=14, type_name=".google.rpc.Status"
)
UNUSABLE = {
    "no set": (b"syntax", "bytes are not a google.protobuf.FileDescriptorSet; make one by protoc"),
    "empty": (b"", "holds no file; make one by protoc"),
    "a part": (
        FileDescriptorSet(file=[PART]).SerializeToString(),
        "a.proto imports b.proto, which is not in the set",
    ),
    "an enum that is a message here": (
        FileDescriptorSet(file=[ODD]).SerializeToString(),
        "a.proto: is not a valid proto file",
    ),
}


@pytest.mark.parametrize(("content", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_descriptors_that_cannot_be_used_are_an_error_of_every_command(
    call: Lro, here: Path, address: str, content: bytes, expected: str
) -> None:
    """If the ``--descriptors`` file is unusable, the status is 2 and the error names the file."""
    (here / "odd.binpb").write_bytes(content)
    named = [[verb, "operations/a"] for verb in ("get", "wait", "watch")]
    for command in (*named, ["list"], ["start", FULL_NAME, START]):
        found = call(*command, "--descriptors", "odd.binpb")
        assert (found.status, found.out) == (Exit.MISUSED, "")
        assert "odd.binpb: " in found.err
        assert expected in found.err
