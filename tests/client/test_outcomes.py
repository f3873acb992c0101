"""What comes of an operation: its result, its error, its metadata (spec §2.5, §11.6, §11.7)."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import attrs
import pytest
import respx

import lro
import lro.wire
from lro_client import (
    CallError,
    DecodingError,
    OperationCancelled,
    OperationFailed,
)
from tests.client.faces import Face
from tests.client.messages import (
    NAME,
    TYPES,
    Phase,
    ResizeMetadata,
    ResizeResponse,
    failed,
    packed,
    refusal,
    reply,
    running,
    succeeded,
)


@pytest.fixture
def ending(face: Face, server: respx.Router) -> Any:
    """Gives the handle of an operation that the next poll finds in a state."""

    def handle(state: dict[str, Any], classes: Any = TYPES, **options: Any) -> Any:
        server.route().mock(return_value=reply(state))
        return face.client(**options).operation(NAME, **classes)

    return handle


def done(**response: Any) -> dict[str, Any]:
    """A success with this response."""
    return {"name": NAME, "done": True, "response": response}


def test_the_response_is_typed(ending: Any) -> None:
    """The result is an instance of the declared class."""
    handle = ending(done(**packed("ResizeResponse", sizeBytes="90", note="ok")))
    assert handle.result() == ResizeResponse(size_bytes=90, note="ok")
    assert handle.done
    assert handle.operation.state == "SUCCEEDED"


def test_the_metadata_is_typed(ending: Any) -> None:
    """Metadata is what the last state seen says, None before the first."""
    handle = ending({**running(), "metadata": packed("ResizeMetadata", percent=5, phase="WRITING")})
    assert handle.metadata is None
    assert handle.refresh() is handle.operation
    assert handle.metadata == ResizeMetadata(percent=5, phase=Phase.WRITING)


def test_the_last_metadata(ending: Any) -> None:
    """A finished operation keeps its metadata."""
    handle = ending({**succeeded(), "metadata": packed("ResizeMetadata", percent=100)})
    handle.result()
    assert handle.metadata == ResizeMetadata(percent=100)


def test_unknown_fields_and_enum_names_are_ignored(ending: Any) -> None:
    """A newer server may say more than this client knows (spec §1.8(5))."""
    state = {
        **succeeded(),
        "response": packed("ResizeResponse", sizeBytes=1, newField={"a": [1]}),
        "metadata": packed("ResizeMetadata", percent=2, phase="SHARPENING", more=True),
        "somethingElse": None,
        "anotherOne": [1, 2],
    }
    handle = ending(state)
    assert handle.result() == ResizeResponse(size_bytes=1)
    assert handle.metadata == ResizeMetadata(percent=2)


def test_done_without_a_result(ending: Any) -> None:
    """It is a success without a value (spec §2.5)."""
    handle = ending({"name": NAME, "done": True})
    assert handle.result() is None
    assert handle.operation.state == "SUCCEEDED"


def test_an_empty_response(ending: Any) -> None:
    """An Empty is a message like any other, whatever servers put beside its type."""
    empty = packed("google.protobuf.Empty", value={})
    assert ending(done(**empty), {**TYPES, "response": lro.Empty}).result() == lro.Empty()


def test_well_known_types(ending: Any) -> None:
    """A method may respond with a type that has a JSON form of its own."""
    types = {"response": lro.Duration, "metadata": lro.Struct}
    handle = ending(done(**packed("google.protobuf.Duration", value="1.5s")), types)
    assert handle.result() == lro.Duration(1, 500_000_000)


@attrs.frozen
class Unnamed:
    percent: int = 0


@dataclasses.dataclass(frozen=True)
class ResizeReport:
    pages: int = 0
    took: timedelta | None = None


def test_classes_without_a_full_name(ending: Any) -> None:
    """They stand for any message of their simple name, in whatever package."""
    response = packed("elsewhere.v7.ResizeReport", pages=3, took="2s")
    state = {**done(**response), "metadata": packed("other.Outer.Unnamed", percent=4)}
    handle = ending(state, {"response": ResizeReport, "metadata": Unnamed})
    assert handle.result() == ResizeReport(pages=3, took=timedelta(seconds=2))
    assert handle.metadata == Unnamed(percent=4)


@pytest.mark.parametrize(
    ("name", "cls", "wanted"),
    [
        ("acme.images.v2.ResizeResponse", ResizeResponse, "acme.images.v1.ResizeResponse"),
        ("acme.images.v1.CropResponse", ResizeResponse, "acme.images.v1.ResizeResponse"),
        ("acme.images.v1.resizeReport", ResizeReport, "a ResizeReport"),
        ("acme.images.v1.TheResizeReport", ResizeReport, "a ResizeReport"),
    ],
)
def test_a_response_of_another_type(name: str, cls: type, wanted: str, ending: Any) -> None:
    """The name in the type URL must be the declared one; the raw Any stays reachable."""
    handle = ending(done(**packed(name, pages=1)), {**TYPES, "response": cls})
    with pytest.raises(DecodingError, match=f"response.* must be {wanted}, got {name}") as caught:
        handle.result()
    assert caught.value.packed is handle.operation.response
    assert caught.value.packed.payload == {"pages": 1}
    assert caught.value.name == NAME
    assert handle.done


@pytest.mark.parametrize("cls", [ResizeResponse, ResizeReport])
def test_a_response_that_does_not_fit(cls: type, ending: Any) -> None:
    """A field of the wrong type is a decoding error that names the field."""
    response = packed(f"acme.images.v1.{cls.__name__}", sizeBytes="many", pages="many")
    with pytest.raises(DecodingError, match=r"response does not fit: (size_bytes|pages)"):
        ending(done(**response), {**TYPES, "response": cls}).result()


def test_an_empty_any(ending: Any) -> None:
    """A response without a type is a decoding error."""
    with pytest.raises(DecodingError, match=r"must be .*ResizeResponse, got nothing"):
        ending(done()).result()
    with pytest.raises(DecodingError, match="must be a ResizeReport, got nothing"):
        ending(done(), {**TYPES, "response": ResizeReport}).result()


def test_metadata_of_another_type(ending: Any) -> None:
    """It does not disturb a caller who does not look at it."""
    handle = ending({**succeeded(), "metadata": packed("acme.images.v9.Progress", at="x")})
    assert handle.result() == ResizeResponse(size_bytes=7)
    with pytest.raises(DecodingError, match="metadata does not fit: @type"):
        _ = handle.metadata
    assert handle.operation.metadata.type_name == "acme.images.v9.Progress"


def test_a_payload_in_binary_form(face: Face) -> None:
    """Bytes that are no such message are reported, as is a missing protobuf extra."""
    packed_bytes = lro.Any("type.googleapis.com/acme.ResizeReport", b"\xff")
    operation = lro.Operation(name=NAME, done=True, result=packed_bytes)
    handle = face.client().operation(operation, response=ResizeReport, metadata=Unnamed)
    with pytest.raises(DecodingError, match="its response does not fit"):
        handle.result()


class Foreign:
    """A message of a library that we do not know."""

    def __init__(self, size: int) -> None:
        self.size = size


class ForeignCodec:
    python = Foreign
    shape = None

    def dump(self, message: Foreign) -> lro.types.Json:
        return {"size": message.size}

    def load(self, payload: Any, *, strict: bool) -> Foreign:
        return Foreign(payload["size"])


def test_classes_of_another_library(ending: Any) -> None:
    """A registry with a codec for them makes them results, and their errors decoding errors."""
    types = lro.TypeRegistry(factories=[lambda cls: ForeignCodec() if cls is Foreign else None])
    types.register(Foreign, "acme.Foreign")
    wanted = {**TYPES, "response": Foreign}
    handle = ending(done(**packed("acme.Foreign", size=3)), wanted, types=types)
    assert handle.result().size == 3
    handle = ending(done(**packed("acme.Foreign")), wanted, types=types)
    with pytest.raises(DecodingError, match="does not fit: 'size'"):
        handle.result()


def test_a_failed_operation(ending: Any) -> None:
    """It raises the status that it ended with, each time it is asked for."""
    handle = ending({**failed(9, "not now"), "metadata": packed("ResizeMetadata", percent=33)})
    for _ in range(2):
        with pytest.raises(OperationFailed) as caught:
            handle.result()
    error = caught.value
    assert (error.code, error.status.message) == (lro.Code.FAILED_PRECONDITION, "not now")
    assert str(error) == "operations/abc ended with FAILED_PRECONDITION: not now"
    assert not isinstance(error, (OperationCancelled, CallError))
    assert error.operation is handle.operation
    assert handle.metadata == ResizeMetadata(percent=33)
    assert handle.wait().error is error.status


def test_waiting_raises_no_outcome(ending: Any) -> None:
    """``wait`` gives the last state, whatever it is."""
    assert ending(failed()).wait().state == "FAILED"


DETAILS = (
    packed("google.rpc.ErrorInfo", reason="TOO_BIG", domain="acme.test", metadata={"size": "9"}),
    packed("google.rpc.RetryInfo", retryDelay="5s"),
    packed("no.such.Type", a=1),
    packed("acme.images.v1.ResizeMetadata", percent=3),
    packed("google.rpc.RetryInfo", retryDelay="soon"),
)


def test_decoded_details(ending: Any) -> None:
    """Details are messages; those of unknown types, and broken ones, are kept as they came."""
    with pytest.raises(OperationFailed) as caught:
        ending(failed(8, "no", DETAILS)).result()
    info, retry, unknown, ours, broken = caught.value.details()
    assert info == lro.types.ErrorInfo(reason="TOO_BIG", domain="acme.test", metadata={"size": "9"})
    assert retry == lro.types.RetryInfo(retry_delay=timedelta(seconds=5))
    assert isinstance(unknown, lro.Any)
    assert (unknown.type_name, unknown.payload) == ("no.such.Type", {"a": 1})
    assert isinstance(ours, lro.Any)
    assert isinstance(broken, lro.Any)
    decoded = caught.value.details(lro.TypeRegistry(ResizeMetadata))
    assert decoded[3] == ResizeMetadata(percent=3)


def test_details_of_a_failed_call(face: Face, server: respx.Router) -> None:
    """The details of a call's error are decoded by the same rules."""
    server.get().mock(return_value=refusal(lro.Code.INVALID_ARGUMENT, "no", *DETAILS))
    with pytest.raises(CallError) as caught:
        face.client().get(NAME)
    found = caught.value.details(lro.TypeRegistry(ResizeMetadata))
    assert [type(detail).__name__ for detail in found] == [
        "ErrorInfo",
        "RetryInfo",
        "Any",
        "ResizeMetadata",
        "Any",
    ]


@pytest.mark.parametrize("code", [0, 99, -1, None])
def test_codes_that_are_none(code: int | None, ending: Any) -> None:
    """Code 0 and numbers outside the list are UNKNOWN (spec §11.7)."""
    state = failed()
    state["error"] = {"message": "odd"} if code is None else {"code": code, "message": "odd"}
    with pytest.raises(OperationFailed, match="ended with UNKNOWN: odd") as caught:
        ending(state).result()
    assert caught.value.code is lro.Code.UNKNOWN
    assert caught.value.status.code == (code or 0)


def test_a_cancelled_operation(ending: Any) -> None:
    """Code 1 is a kind of failure of its own."""
    handle = ending(failed(1, "stopped"))
    with pytest.raises(OperationCancelled, match="ended with CANCELLED: stopped") as caught:
        handle.result()
    assert isinstance(caught.value, OperationFailed)
    assert caught.value.code is lro.Code.CANCELLED


def test_a_call_that_was_cancelled(face: Face, server: respx.Router) -> None:
    """The same code of a call says nothing of the operation."""
    server.route().mock(return_value=refusal(lro.Code.CANCELLED, "the call was cut"))
    with pytest.raises(CallError) as caught:
        face.client().operation(NAME, **TYPES).result()
    assert not isinstance(caught.value, OperationFailed)


def test_an_operation_without_a_name(face: Face) -> None:
    """A failed validation is raised without one."""
    operation = lro.Operation(done=True, result=lro.Status(3, "no"))
    with pytest.raises(OperationFailed, match=r"^the operation ended with INVALID_ARGUMENT: no$"):
        face.client().operation(operation, **TYPES).result()


def test_a_final_state_stays(face: Face, server: respx.Router) -> None:
    """A replica that lags behind does not undo what was seen (spec §2.9)."""
    answers = [reply(running(99)), reply(succeeded())]
    server.route().mock(side_effect=lambda _: answers.pop())
    handle = face.client().operation(NAME, **TYPES)
    handle.wait()
    assert handle.refresh().done
    assert handle.done


def test_the_name_stays(face: Face, server: respx.Router) -> None:
    """A server that leaves the name out of a reply does not make the handle forget it."""
    server.route().mock(return_value=reply({**succeeded(), "name": ""}))
    handle = face.client().operation(NAME, **TYPES)
    handle.wait()
    assert handle.name == NAME


def test_the_repr_of_a_handle_has_name_and_state(ending: Any) -> None:
    """Its repr has the name and the last state seen."""
    handle = ending(succeeded())
    assert "OperationHandle 'operations/abc' IN_PROGRESS>" in repr(handle)
    handle.wait()
    assert "OperationHandle 'operations/abc' SUCCEEDED>" in repr(handle)


def test_the_verbs_of_a_handle(face: Face, server: respx.Router) -> None:
    """Cancel and delete are calls for its name; neither changes what was seen."""
    server.route().mock(return_value=reply({}))
    handle = face.client().operation(NAME, **TYPES)
    assert handle.cancel() is None
    assert handle.delete() is None
    asked = [(call.request.method, call.request.url.path) for call in server.calls]
    assert asked == [("POST", f"/v1/{NAME}:cancel"), ("DELETE", f"/v1/{NAME}")]
    assert not handle.done


def test_a_class_whose_name_is_taken(face: Face) -> None:
    """Two classes have the same full name, so the second is refused."""

    @lro.message("acme.images.v1.ResizeResponse")
    @attrs.frozen
    class Other:
        pass

    client = face.client()
    client.operation(NAME, **TYPES)
    with pytest.raises(lro.DeclarationError, match="is the name of"):
        client.operation(NAME, response=Other, metadata=ResizeMetadata)


def test_a_reply_is_bounded(
    face: Face, server: respx.Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply larger than the limit is not read on: a small one may unpack to gigabytes."""
    monkeypatch.setattr("lro_client.transports.http.MAX_REPLY", 1000)
    server.get("/v1/operations/a").respond(200, content=b"x" * 1001)
    with pytest.raises(CallError, match="larger than 1000 bytes"):
        face.client().get("operations/a")
