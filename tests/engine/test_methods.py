"""Methods: names, OperationInfo, function annotations, and conventional metadata."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from lro import AnyMessage, DeclarationError, Job, Service
from lro._engine.method_spec import StandardMetadata
from lro._messages.shapes import shape_of
from lro._model.method_names import Signature
from lro.adapters import Record
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.types import MethodName, OperationInfo, OperationInfoRegistry
from tests.service_fixtures import MakeService
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("acme.images.v1.Images.Resize", ("acme.images.v1", "Images", "Resize")),
        ("Images.Resize", ("", "Images", "Resize")),
        ("a_1.B_2.C_3", ("a_1", "B_2", "C_3")),
    ],
)
def test_method_name_has_package_service_and_method(text, parts):
    """A method's full name consists of an optional package, a service and a method."""
    name = MethodName.parse(text)
    assert (name.package, name.service, name.name) == parts
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "Resize", "a.", ".a.b", "a..b", "a.b.1c", "a.b c", "a.é"])
def test_invalid_method_name_is_refused(text):
    """The error for an invalid name shows an example of a valid name."""
    with pytest.raises(DeclarationError, match=r"such as acme\.images\.v1\.Images\.Resize"):
        MethodName.parse(text)


def test_type_names_of_a_method():
    name = MethodName.parse("acme.v1.Works.Do")
    assert name.qualify("DoResponse") == "acme.v1.DoResponse"
    assert name.qualify("other.v1.Thing") == "other.v1.Thing"
    assert name.qualify(".Thing") == "Thing"
    assert MethodName.parse("Works.Do").qualify("DoResponse") == "DoResponse"


def test_operation_info_has_full_type_names():
    """A method's operation info gets full type names. An unconventional name is reported."""
    methods = OperationInfoRegistry()
    assert methods.register("acme.v1.Works.Do", OperationInfo("DoResponse", "M")) == []
    assert methods["acme.v1.Works.Do"] == OperationInfo("acme.v1.DoResponse", "acme.v1.M")
    assert "acme.v1.Works.Do" in methods
    assert list(methods) == ["acme.v1.Works.Do"]
    found = methods.register("acme.v1.Works.Undo", OperationInfo("DoResponse", "M"))
    assert found == ["response-type-convention"]
    with pytest.raises(DeclarationError, match="missing-operation-info"):
        methods["acme.v1.Works.None"]


@pytest.mark.parametrize(
    ("name", "info", "why"),
    [
        ("acme.v1.Works.Do", OperationInfo("R", "M"), "is declared twice"),
        ("acme.v1.Works.Undo", OperationInfo("", "M"), "response-type-missing"),
        ("acme.v1.Works.Undo", OperationInfo("R", ""), "metadata-type-missing"),
        ("Undo", OperationInfo("R", "M"), "is not a method's full name"),
    ],
)
def test_unregistered_types_are_refused(name, info, why):
    """If spec §8.2 has a code for a refused declaration, the error contains the code."""
    methods = OperationInfoRegistry()
    methods.register("acme.v1.Works.Do", OperationInfo("DoResponse", "M"))
    with pytest.raises(DeclarationError, match=why):
        methods.register(name, info)
    assert list(methods) == ["acme.v1.Works.Do"]


def plain(request: WorkRequest) -> WorkResponse: ...
def union(request: WorkRequest | None) -> WorkResponse | None: ...


def no_arguments(): ...
def three(a, b, c): ...
def swapped(job: Job[WorkMetadata], request: WorkRequest) -> WorkResponse: ...
def bare_swapped(job, request): ...
def lost(request: Missing) -> None: ...  # noqa: F821 - deliberately undefined


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_arguments, "must take the request"),
        (three, "must take the request"),
        (swapped, "^swapped: must take the request first, and then the job$"),
        (bare_swapped, "^bare_swapped: must take the request first, and then the job$"),
        (lost, "name 'Missing' is not defined"),
        (functools.partial(plain), "cannot be read"),
    ],
)
def test_missing_annotations_are_refused(function, why):
    """An error about annotations names the function if it has a name."""
    with pytest.raises(DeclarationError, match=why):
        Signature.of(function)


def struct(request: dict[str, object]) -> WorkResponse: ...
def bare_dict(request: WorkRequest) -> dict: ...
def bare_list(request: WorkRequest) -> list: ...
def texts(request: WorkRequest) -> list[str]: ...
def progress(request: WorkRequest, job: Job[dict[str, int]]) -> WorkResponse: ...


class Model:
    """A class of another library, like a pydantic model."""


def model(request: Model) -> WorkResponse: ...


@pytest.mark.parametrize(
    ("function", "where", "instead"),
    [
        (struct, "the parameter 'request' of struct", "lro.Struct is the one for any JSON object"),
        (bare_dict, "the return of bare_dict: dict", "lro.Struct is the one for any JSON object"),
        (bare_list, "the return of bare_list: list", "put the list in a field of one"),
        (texts, "the return of texts", "put the list in a field of one"),
        (progress, "the parameter 'job' of progress", "lro.Struct is the one for any JSON object"),
        (union, "the parameter 'request' of union", "which is not a class"),
        (model, "the parameter 'request' of model: Model", "write it as one, or give"),
    ],
)
def test_annotation_that_is_not_a_message_class_is_refused(function, where, instead, make_service):
    """The error about an annotation names the method and the function, and suggests a class."""
    metadata = None if function is progress else WorkMetadata
    with pytest.raises(DeclarationError) as caught:
        make_service().method("acme.v1.Works.Odd", metadata=metadata)(function)
    assert str(caught.value).startswith(f"acme.v1.Works.Odd: {where}")
    assert instead in str(caught.value)


def test_option_that_is_not_a_message_class_is_refused(make_service):
    """If a class in an option is not a message class, the error names only the class."""
    with pytest.raises(DeclarationError, match=r"^Model: is not an attrs class"):
        make_service().method("acme.v1.Works.Odd", request=Model, metadata=WorkMetadata)(plain)


def record(**fields):
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    known = {"create_time": moment, "update_time": moment, **fields}
    return Record(name="operations/a", parent="", method="M", **known)


@attrs.frozen
class Other:
    """A class whose fields have conventional names but mostly other types."""

    create_time: str = ""
    end_time: datetime | None = None
    cancel_requested: str = ""
    requested_cancellation: bool = False


def test_conventional_fields_are_found_by_type():
    """A conventional field counts only as a timestamp or, for the flag, a bool (spec §9.6)."""
    known = StandardMetadata.of(shape_of(WorkMetadata))
    assert known.times == {
        "create_time": "createTime",
        "start_time": "startTime",
        "end_time": "endTime",
        "expire_time": "expireTime",
    }
    assert known.cancel_flag == "cancelRequested"
    other = StandardMetadata.of(shape_of(Other))
    assert (other.times, other.cancel_flag) == ({"end_time": "endTime"}, "requestedCancellation")
    assert StandardMetadata.of(None) == StandardMetadata({}, "")


def test_stamp_fills_in_what_the_record_knows():
    """A stamp keeps fields that the function set. It returns the same object if nothing changes."""
    known = StandardMetadata.of(shape_of(WorkMetadata))
    stamped = known.stamp(record(metadata=AnyMessage("x/a.M", {"percent": 1, "endTime": "mine"})))
    create = {"createTime": "2030-01-01T00:00:00Z"}
    assert stamped == AnyMessage("x/a.M", {"percent": 1, "endTime": "mine", **create})
    cancelled = known.stamp(record(metadata=stamped, cancel_requested=True))
    assert cancelled.payload["cancelRequested"] is True
    assert known.stamp(record(metadata=cancelled, cancel_requested=True)) is cancelled
    assert known.stamp(record(metadata=stamped)) is stamped
    for untouched in (
        None,
        AnyMessage("x/a.M", b"\x08"),
        AnyMessage("x/google.protobuf.Duration", "1s"),
    ):
        assert known.stamp(record(metadata=untouched)) is untouched


@pytest.mark.parametrize("own", ["get", "list_async", "cancel", "start"])
def test_service_with_verbs_of_its_own_is_refused(own):
    """A subclass that overrides verbs is refused, because servers would skip the overrides."""
    with pytest.raises(DeclarationError, match=f"Mine: overrides {own}, which edges do not call"):
        type("Mine", (Service,), {own: lambda *_: None})
    with pytest.raises(DeclarationError, match=f"Mine: overrides {own}, "):
        type("Mine", (type("Mixin", (), {own: lambda *_: None}), Service), {})
    type("Mine", (Service,), {"helper": lambda *_: None})


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("rate_limit", "'rate'"),
        ("autoretry_for", "retry=lro.Retry(...)"),
        ("retry_backoff", "retry=lro.Retry(...)"),
        ("max_retries", "retry=lro.Retry(...)"),
        ("acks_late", "'at_most_once'"),
        ("soft_time_limit", "'time_limit'"),
    ],
)
def test_option_of_another_library_is_refused_with_the_name_here(
    make_service: MakeService, argument: str, meant: str
) -> None:
    options: dict[str, Any] = {argument: 1}
    with pytest.raises(TypeError) as caught:
        make_service().method("acme.v1.Works.Work", **options)
    assert str(caught.value) == f"method takes no argument {argument!r}: did you mean {meant}?"


@pytest.mark.parametrize("name", ["delay", "apply_async", "starts"])
def test_missing_attribute_of_a_method_names_start(make_service: MakeService, name: str) -> None:
    service = make_service()
    method = service.declare("acme.v1.Works.Work", request=WorkRequest, response=WorkResponse)
    with pytest.raises(AttributeError) as caught:
        getattr(method, name)
    assert str(caught.value) == f"Method has no attribute {name!r}: did you mean 'start'?"


def test_number_of_workers_by_another_name_is_refused() -> None:
    options: Any = {"max_workers": 4}
    for executor in (ThreadExecutor, ProcessExecutor):
        with pytest.raises(TypeError) as caught:
            executor(**options)
        wanted = f"{executor.__name__} takes no argument 'max_workers': did you mean 'workers'?"
        assert str(caught.value) == wanted
