"""The allow list, and findings of ``breaking`` that no test vector covers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs
import pydantic
import pytest
from google.api import field_behavior_pb2

import lro
from lro import InvalidArgument
from lro.lint import Breaking, Severity, breaking, lint, read_allowances
from lro.protobuf import descriptor_set
from lro.stores.memory import MemoryStore
from tests.lint.sets import (
    BARE,
    BOOKS,
    GOOD,
    Declared,
    field,
    interface_file,
    located,
    packed,
    proto,
)

ALL = ("Request", "ExportResponse", "Metadata", "Inner")


def codes(*sets: bytes, **options: Any) -> list[str]:
    """Return the codes of the findings of ``breaking``, in their order."""
    return [one.code for one in breaking(*sets, **options)]


def test_finding_has_its_position_in_the_new_set() -> None:
    """A finding has its position in the new set, or in the old set if a method was removed."""
    old = packed(located(proto(GOOD), 6, 2))
    (removed,) = breaking(old, packed(located(proto(BARE), 9, 4)))
    assert (removed.code, removed.line, removed.column) == ("operation-info-removed", 10, 5)
    (gone,) = breaking(old, packed(proto(Declared("Import"))))
    assert (gone.code, gone.file, gone.line, gone.column) == ("method-removed", BOOKS, 7, 3)


@pytest.mark.parametrize(
    ("method", "old", "new", "said"),
    [
        (
            Declared("Export", ("ExportResponse", "Inner")),
            "acme.v1.Metadata",
            "acme.v1.Inner",
            "metadata_type was acme.v1.Metadata and is acme.v1.Inner; keep acme.v1.Metadata",
        ),
        (
            Declared("Export", ("", "Metadata")),
            "acme.v1.ExportResponse",
            "",
            "response_type was acme.v1.ExportResponse and is missing; keep acme.v1.ExportResponse",
        ),
        (
            Declared("Export", ("Metadata", "Metadata"), output="acme.v1.Metadata"),
            "",
            "",
            "returned google.longrunning.Operation, now returns acme.v1.Metadata;"
            " add a new method instead",
        ),
    ],
)
def test_finding_of_changed_type_has_both_names(
    method: Declared, old: str, new: str, said: str
) -> None:
    """A finding and its message have the old and the new type name; a missing new type is empty."""
    (found,) = breaking(packed(proto(GOOD, messages=ALL)), packed(proto(method, messages=ALL)))
    assert isinstance(found, Breaking)
    assert (found.old or "", found.new or "", found.message) == (old, new, said)


def test_added_missing_import_is_not_a_change() -> None:
    """Importing a file whose type the old set already used without an import is no change."""
    far = proto(name="far.proto", package="acme.v1", messages=["Far"])
    method = Declared("Export", ("ExportResponse", "Far"))
    old, new = proto(method), proto(method, imports=["far.proto"])
    assert breaking(packed(old, far), packed(new, far)) == []
    assert codes(packed(old), packed(new, far)) == ["metadata-type-changed"]


def test_omitted_operations_interface_is_not_a_removal() -> None:
    """If the new set lacks an imported file of the old set, no method counts as removed."""
    assert breaking(packed(proto(GOOD), interface_file()), packed(proto(GOOD))) == []


def numbered(*numbers: int, method: Declared = GOOD) -> bytes:
    """Return a set with the given field numbers in its four messages, in the order of ``ALL``."""
    file = proto(method, messages=ALL)
    for index, number in enumerate(numbers):
        field(file, index, "name", number)
    field(file, 2, "inner", 9, nested="acme.v1.Inner")
    field(file, 3, "inner", 9, nested="acme.v1.Inner")
    return packed(file)


def test_changed_field_number_is_a_finding() -> None:
    """A changed field number is a finding, also in a nested message: old callers misread it."""
    (found,) = breaking(numbered(1, 1, 1, 1), numbered(2, 3, 4, 5))
    assert found.code == "field-number-changed"
    assert found.message == (
        "acme.v1.Request.name was number 1 and is 2,"
        " acme.v1.ExportResponse.name was number 1 and is 3,"
        " acme.v1.Metadata.name was number 1 and is 4,"
        " acme.v1.Inner.name was number 1 and is 5; give them their old numbers"
    )


def required(*needed: int, fields: int = 2) -> bytes:
    """Return a set with fields in a request and its inner message; those ``needed`` are REQUIRED.

    The fields of the request have the numbers from 1 on, those of the inner message from 11 on.
    """
    file = proto(GOOD, messages=ALL)
    field(file, 0, "inner", 9, nested="acme.v1.Inner")
    for message, first in ((0, 1), (3, 11)):
        for number in range(first, first + fields):
            field(file, message, f"f{number}", number)
    for message in file.message_type:
        for one in message.field:
            if one.number in needed:
                behavior: Any = one.options.Extensions
                behavior[field_behavior_pb2.field_behavior].append(field_behavior_pb2.REQUIRED)
    return packed(file)


def test_field_of_the_request_that_became_required_is_a_finding() -> None:
    """New and present fields are found, in the request and in its messages."""
    (found,) = breaking(required(1, fields=1), required(1, 2, 11))
    assert (found.code, found.severity) == ("field-became-required", Severity.ERROR)
    assert found.message == (
        "acme.v1.Request.f2, acme.v1.Inner.f11 became required: stored requests lack it;"
        " give it a default"
    )
    assert breaking(required(1, 2), required(1)) == []
    assert breaking(required(1, fields=1), required(1)) == []
    assert breaking(required(), required(2), allow=["*:field-became-required"]) == []


def test_required_field_of_a_response_or_another_request_is_not_a_finding() -> None:
    """Only requests are sent by callers; a request of another type, or not in the set, is new."""
    file, other = proto(GOOD), proto(GOOD)
    field(other, 1, "f", 1)
    behavior: Any = other.message_type[1].field[0].options.Extensions
    behavior[field_behavior_pb2.field_behavior].append(field_behavior_pb2.REQUIRED)
    assert breaking(packed(file), packed(other)) == []
    bare = Declared("Export", None, request="acme.v1.Inner")
    assert breaking(packed(proto(BARE, messages=ALL)), packed(proto(bare, messages=ALL))) == []
    assert breaking(packed(proto(BARE, messages=ALL[1:])), packed(proto(BARE))) == []


def described(**fields: Any) -> bytes:
    """Return the set of a service whose request has these fields, as a pydantic model."""
    cls = pydantic.create_model("PrintRequest", title=(str, ""), **fields)
    return served(lro.message("acme.v1.PrintRequest")(cls))


def served(request: type) -> bytes:
    """Return the set of a service with a method that takes this request."""
    service = lro.Service(MemoryStore(), None, maintenance=False)
    service.declare("acme.v1.Prints.Print", request=request, response=lro.Empty)
    return descriptor_set(service)


def test_new_field_without_a_default_in_a_python_class_is_found() -> None:
    """A model that requires a new field cannot read stored requests; one with a default can."""
    old, fine, wrong = described(), described(copies=(int, 1)), described(copies=(int, ...))
    assert codes(old, fine) == codes(wrong, old) == []
    assert codes(old, wrong) == codes(fine, wrong) == ["field-became-required"]


@pytest.mark.parametrize(("kind", "wanted"), [(int, []), (datetime, ["field-became-required"])])
def test_new_field_of_an_attrs_class_is_found_if_it_has_no_zero(
    kind: type, wanted: list[str]
) -> None:
    """A missing number is read as zero, but a missing time has no such value."""
    title = attrs.field(type=str)
    old = attrs.make_class("PrintRequest", {"title": title})
    new = attrs.make_class("PrintRequest", {"title": title, "more": attrs.field(type=kind)})
    sets = [served(lro.message("acme.v1.PrintRequest")(cls)) for cls in (old, new)]
    assert codes(*sets) == wanted


def test_added_or_removed_field_is_not_a_changed_number() -> None:
    """Adding or removing a field or a whole message does not give a ``field-number-changed``."""
    assert breaking(numbered(1, 1), numbered(1, 1, 1)) == []
    assert breaking(numbered(1, 1, 1), numbered(1, 1)) == []
    bare = Declared("Export", None, request="acme.v1.Inner")
    assert breaking(numbered(1, method=BARE), numbered(2, method=bare)) == []


def test_target_file_may_be_in_the_old_or_the_new_set() -> None:
    """A target file may be in only one of the sets, because a method may move to another file."""
    old, new = packed(proto(GOOD)), packed(proto(GOOD, name="moved.proto"))
    assert breaking(old, new, old_targets=[BOOKS]) == []
    assert codes(old, packed(proto(GOOD)), new_targets=[]) == ["method-removed"]
    with pytest.raises(InvalidArgument, match="new_targets: no file"):
        breaking(old, new, new_targets=[BOOKS])
    with pytest.raises(InvalidArgument, match="old_targets: no file"):
        breaking(old, new, old_targets=["moved.proto"])


def test_error_says_which_set_cannot_be_read() -> None:
    """If a set cannot be read, the error says whether the old or the new set is meant."""
    with pytest.raises(InvalidArgument, match="old: "):
        breaking(b"x", packed(proto(GOOD)))
    with pytest.raises(InvalidArgument, match="new: "):
        breaking(packed(proto(GOOD)), b"")


def test_field_name_that_is_not_utf_8_is_refused() -> None:
    """A field name that is not UTF-8 is refused; the error names the message of the field."""
    old, new = numbered(1), numbered(2)
    with pytest.raises(InvalidArgument, match=r"new: acme\.v1\.Request: a field is named by"):
        breaking(old, new.replace(b"\x0a\x04name", b"\x0a\x04na\xffe"))


def test_allow_list_removes_its_findings() -> None:
    old, new = packed(proto(GOOD)), packed(proto(BARE))
    assert breaking(old, new, allow=["*:operation-info-removed"]) == []
    left = ["unused-allowance", "operation-info-removed"]
    assert codes(old, new, allow=["*:method-removed"]) == left


METHOD = "acme.v1.Books.Export"
DATA = packed(proto(Declared("Export", ("", "")), Declared("Import")))
FOUND = [
    (METHOD, "metadata-type-missing"),
    (METHOD, "response-type-missing"),
    ("acme.v1.Books.Import", "missing-operation-info"),
]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ([], FOUND),
        ([METHOD], FOUND[2:]),
        ([f"{METHOD}:metadata-type-missing"], FOUND[1:]),
        (["*:response-type-missing"], [FOUND[0], FOUND[2]]),
        ([METHOD, f"{METHOD}:metadata-type-missing", METHOD, "*:missing-operation-info"], []),
        (["*:method-removed", f"{METHOD}:return-type-changed"], FOUND),
    ],
)
def test_allowed_findings_are_left_out(allow: list[str], left: list[tuple[str, str]]) -> None:
    """An entry allows a method, a code or both; ``lint`` also accepts codes of ``breaking``."""
    assert [(one.method, one.code) for one in lint(DATA, allow=allow)] == left


@pytest.mark.parametrize("entry", ["*:response-type-empty", "acme.v1.Books.Gone"])
def test_an_unused_entry_is_a_warning(entry: str) -> None:
    """An entry that matches no finding is misspelled or outdated, so ``lint`` warns about it."""
    (unused,) = [one for one in lint(DATA, allow=[entry]) if one.code == "unused-allowance"]
    assert unused.severity == "warning"
    assert unused.method == entry.partition(":")[0]
    assert unused.message == f"the allowance {entry!r} matches no finding; remove it"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "is malformed; an entry is METHOD:CODE"),
        *[(one, "is malformed") for one in ("*", ":method-removed", f"{METHOD}:")],
        (f"{METHOD} method-removed", "is malformed"),
        ("*:typo", "has an unknown code; the codes are field-became-required, field-"),
        ("*:unused-allowance", "has an unknown code"),
    ],
)
def test_a_malformed_entry_is_refused(entry: str, why: str) -> None:
    """The error for a malformed entry quotes the entry and lists the valid forms or codes."""
    with pytest.raises(InvalidArgument, match=f"allow: .*{why}"):
        lint(DATA, allow=[entry])


def test_single_string_as_allow_list_is_refused() -> None:
    """A single string is refused, because each of its letters would be an entry."""
    with pytest.raises(InvalidArgument, match="pass a list of entries"):
        lint(DATA, allow="*:response-type-missing")


def test_allow_list_is_read_from_a_file() -> None:
    """``read_allowances`` ignores comments, spaces and empty lines."""
    text = f"# old ones\n\n  {METHOD}  # AIP-151 came later\r\n*:method-removed"
    assert list(read_allowances(text)) == [METHOD, "*:method-removed"]
