"""The outcome of an operation: its result, error and metadata (spec §2.5, §11.6, §11.7)."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import attrs
import pytest
import respx

import lro
import lro.wire
from lro_client import CallError, DecodingError, OperationCancelled, OperationFailed
from tests.client.faces import Face
from tests.client.messages import (
    NAME,
    TYPES,
    Phase,
    ResizeMetadata,
    ResizeResponse,
    failed,
    packed,
    reply,
    running,
    succeeded,
)


@pytest.fixture
def handle_ending_as(face: Face, server: respx.Router) -> Any:
    """Makes the handle of an operation; the next poll finds the operation in a given state."""

    def handle(state: dict[str, Any], classes: Any = TYPES, **options: Any) -> Any:
        server.route().mock(return_value=reply(state))
        return face.client(**options).operation(NAME, **classes)

    return handle


def done(**response: Any) -> dict[str, Any]:
    """Return the state of an operation that succeeded with this response."""
    return {"name": NAME, "done": True, "response": response}


def test_response_is_an_instance_of_the_declared_class(handle_ending_as: Any) -> None:
    """A result is an instance of the declared class. Metadata is that of the last state seen."""
    metadata = packed("ResizeMetadata", percent=5, phase="WRITING")
    response = packed("ResizeResponse", sizeBytes="90", note="ok")
    handle = handle_ending_as({**done(**response), "metadata": metadata})
    assert handle.metadata is None
    assert handle.refresh() is handle.operation
    assert handle.metadata == ResizeMetadata(percent=5, phase=Phase.WRITING)
    assert handle.result() == ResizeResponse(size_bytes=90, note="ok")
    assert handle.done
    assert handle.operation.state == "SUCCEEDED"


@pytest.mark.parametrize(
    ("state", "response", "result"),
    [
        ({"name": NAME, "done": True}, ResizeResponse, None),  # a success without a value
        (done(**packed("google.protobuf.Empty", value={})), lro.Empty, lro.Empty()),
        (
            done(**packed("google.protobuf.Duration", value="1.5s")),
            lro.Duration,
            lro.Duration(1, 500_000_000),
        ),
    ],
)
def test_results_without_fields_are_returned(
    state: Any, response: type, result: Any, handle_ending_as: Any
) -> None:
    """A missing value, an empty message, and a message with its own JSON form are valid results."""
    handle = handle_ending_as(state, {"response": response, "metadata": lro.Struct})
    assert handle.result() == result
    assert handle.operation.state == "SUCCEEDED"


def test_unknown_fields_and_enum_names_are_ignored(handle_ending_as: Any) -> None:
    """Fields and enum names that only a newer server knows are ignored (spec §1.8(5))."""
    state = {
        **succeeded(),
        "response": packed("ResizeResponse", sizeBytes=1, newField={"a": [1]}),
        "metadata": packed("ResizeMetadata", percent=2, phase="SHARPENING", more=True),
        "somethingElse": None,
        "anotherOne": [1, 2],
    }
    handle = handle_ending_as(state)
    assert handle.result() == ResizeResponse(size_bytes=1)
    assert handle.metadata == ResizeMetadata(percent=2)


@attrs.frozen
class Unnamed:
    percent: int = 0


@dataclasses.dataclass(frozen=True)
class ResizeReport:
    pages: int = 0
    took: timedelta | None = None


def test_class_without_a_full_name_accepts_its_simple_name(handle_ending_as: Any) -> None:
    """A class without a full name accepts a message of its simple name from any package."""
    response = packed("elsewhere.v7.ResizeReport", pages=3, took="2s")
    state = {**done(**response), "metadata": packed("other.Outer.Unnamed", percent=4)}
    handle = handle_ending_as(state, {"response": ResizeReport, "metadata": Unnamed})
    assert handle.result() == ResizeReport(pages=3, took=timedelta(seconds=2))
    assert handle.metadata == Unnamed(percent=4)


UNFIT = [
    (
        "acme.images.v2.ResizeResponse",
        ResizeResponse,
        "must be acme.images.v1.ResizeResponse, got ",
    ),
    ("acme.images.v1.CropResponse", ResizeResponse, "must be acme.images.v1.ResizeResponse, got "),
    ("acme.images.v1.resizeReport", ResizeReport, "must be a ResizeReport, got "),
    ("acme.images.v1.TheResizeReport", ResizeReport, "must be a ResizeReport, got "),
    ("acme.images.v1.ResizeResponse", ResizeResponse, "response does not fit: size_bytes"),
    ("acme.images.v1.ResizeReport", ResizeReport, "response does not fit: pages"),
    ("", ResizeResponse, "must be acme.images.v1.ResizeResponse, got nothing"),
    ("", ResizeReport, "must be a ResizeReport, got nothing"),
]


@pytest.mark.parametrize(("name", "cls", "problem"), UNFIT)
def test_response_of_another_type_is_an_error_with_the_raw_any(
    name: str, cls: type, problem: str, handle_ending_as: Any
) -> None:
    """If the type or a field of a response does not match, the error has the raw Any."""
    payload = {"sizeBytes": "many", "pages": "many"}
    response = packed(name, **payload) if name else {}
    handle = handle_ending_as(done(**response), {**TYPES, "response": cls})
    wanted = problem + name if problem.endswith("got ") else problem
    with pytest.raises(DecodingError, match=wanted) as caught:
        handle.result()
    assert caught.value.packed is handle.operation.response
    assert caught.value.packed.payload == (payload if name else {})
    assert caught.value.name == NAME
    assert handle.done


@pytest.mark.parametrize("cls", [dict, lro.AnyMessage, ResizeResponse])
def test_error_info_in_place_of_a_response_is_not_a_result(
    cls: type, handle_ending_as: Any
) -> None:
    """In a list, an ErrorInfo replaces a response that the server cannot read (spec §1.14(3))."""
    response = packed("google.rpc.ErrorInfo", reason="MESSAGE_UNREADABLE")
    handle = handle_ending_as(done(**response), {**TYPES, "response": cls})
    with pytest.raises(DecodingError, match="the server cannot read its response"):
        handle.result()


def test_metadata_of_another_type_fails_only_its_reader(handle_ending_as: Any) -> None:
    """Metadata of another type raises an error only when the caller reads the metadata."""
    handle = handle_ending_as(
        {**succeeded(), "metadata": packed("acme.images.v9.Progress", at="x")}
    )
    assert handle.result() == ResizeResponse(size_bytes=7)
    with pytest.raises(DecodingError, match="metadata does not fit: @type"):
        _ = handle.metadata
    assert handle.operation.metadata.type_name == "acme.images.v9.Progress"


def test_undecodable_binary_payload_is_a_decoding_error(face: Face) -> None:
    """Invalid bytes, like a missing protobuf extra, are reported as a DecodingError."""
    packed_bytes = lro.AnyMessage("type.googleapis.com/acme.ResizeReport", b"\xff")
    operation = lro.Operation(name=NAME, done=True, result=packed_bytes)
    handle = face.client().operation(operation, response=ResizeReport, metadata=Unnamed)
    with pytest.raises(DecodingError, match="its response does not fit"):
        handle.result()


class Model:
    """A class like one of pydantic, for which this library has no codec."""

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> Model:
        made = cls()
        made.size = value["size"]
        return made


class ModelCodec:
    python, shape = Model, None

    def load(self, payload: Any, *, strict: bool) -> Model:
        return Model.model_validate(payload)


@pytest.mark.parametrize(("payload", "problem"), [({"size": 3}, ""), ({}, "does not fit: 'size'")])
def test_registry_codec_decodes_classes_of_another_library(
    payload: Any, problem: str, face: Face
) -> None:
    """The codec of the registry decodes its class; an error of the codec is a DecodingError."""
    types = lro.TypeRegistry(factories=[lambda cls: ModelCodec() if cls is Model else None])
    types.register(Model, "acme.Model")
    result = lro.AnyMessage("type.googleapis.com/acme.Model", payload)
    operation = lro.Operation(name=NAME, done=True, result=result)
    handle = face.client(types=types).operation(operation, response=Model, metadata=lro.Struct)
    if problem:
        with pytest.raises(DecodingError, match=problem):
            handle.result()
    else:
        assert handle.result().size == 3


def test_failed_operation_raises_its_status(handle_ending_as: Any) -> None:
    """The error of a failed operation is raised each time the result is read."""
    handle = handle_ending_as(
        {**failed(9, "not now"), "metadata": packed("ResizeMetadata", percent=33)}
    )
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


DETAILS = (
    packed("google.rpc.ErrorInfo", reason="TOO_BIG", domain="acme.test", metadata={"size": "9"}),
    packed("google.rpc.RetryInfo", retryDelay="5s"),
    packed("no.such.Type", a=1),
    packed("acme.images.v1.ResizeMetadata", percent=3),
    packed("google.rpc.RetryInfo", retryDelay="soon"),
)


def test_error_details_are_decoded(handle_ending_as: Any) -> None:
    """Details of known types are decoded; unknown and invalid details are returned as they came."""
    with pytest.raises(OperationFailed) as caught:
        handle_ending_as(failed(8, "no", DETAILS)).result()
    info, retry, unknown, ours, broken = caught.value.details()
    assert info == lro.types.ErrorInfo(reason="TOO_BIG", domain="acme.test", metadata={"size": "9"})
    assert retry == lro.types.RetryInfo(retry_delay=timedelta(seconds=5))
    assert isinstance(unknown, lro.AnyMessage)
    assert (unknown.type_name, unknown.payload) == ("no.such.Type", {"a": 1})
    assert isinstance(ours, lro.AnyMessage)
    assert isinstance(broken, lro.AnyMessage)
    decoded = caught.value.details(lro.TypeRegistry(ResizeMetadata))
    assert decoded[3] == ResizeMetadata(percent=3)


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [(1, OperationCancelled, "CANCELLED")]
    + [(code, OperationFailed, "UNKNOWN") for code in (0, 99, -1, None)],
)
def test_failure_codes_have_their_error_classes(
    code: int | None, kind: type, name: str, handle_ending_as: Any
) -> None:
    """CANCELLED has its own error class; 0 and unknown codes count as UNKNOWN (spec §11.7)."""
    state = failed()
    state["error"] = {"message": "odd"} if code is None else {"code": code, "message": "odd"}
    with pytest.raises(OperationFailed, match=f"ended with {name}: odd") as caught:
        handle_ending_as(state).result()
    assert type(caught.value) is kind
    assert caught.value.code.name == name
    assert caught.value.status.code == (code or 0)


def test_final_state_is_not_undone_by_a_stale_reply(face: Face, server: respx.Router) -> None:
    """A later reply of a replica that lags behind does not undo the final state (spec §2.9)."""
    answers = [reply(running(99)), reply(succeeded())]
    server.route().mock(side_effect=lambda _: answers.pop())
    handle = face.client().operation(NAME, **TYPES)
    handle.wait()
    assert handle.refresh().done
    assert handle.done


def test_the_repr_of_a_handle_has_name_and_state(handle_ending_as: Any) -> None:
    handle = handle_ending_as(succeeded())
    assert "OperationHandle 'operations/abc' IN_PROGRESS>" in repr(handle)
    handle.wait()
    assert "OperationHandle 'operations/abc' SUCCEEDED>" in repr(handle)


def test_handle_cancels_and_deletes_by_name(face: Face, server: respx.Router) -> None:
    """``cancel`` and ``delete`` send the name, and do not change the state of the handle."""
    server.route().mock(return_value=reply({}))
    handle = face.client().operation(NAME, **TYPES)
    assert handle.cancel() is None
    assert handle.delete() is None
    asked = [(call.request.method, call.request.url.path) for call in server.calls]
    assert asked == [("POST", f"/v1/{NAME}:cancel"), ("DELETE", f"/v1/{NAME}")]
    assert not handle.done


def test_second_class_with_the_same_full_name_is_refused(face: Face) -> None:
    """A second class with the same full name as a known class is refused."""

    @lro.message("acme.images.v1.ResizeResponse")
    @attrs.frozen
    class Other:
        pass

    client = face.client()
    client.operation(NAME, **TYPES)
    with pytest.raises(lro.DeclarationError, match="is the name of"):
        client.operation(NAME, response=Other, metadata=ResizeMetadata)
