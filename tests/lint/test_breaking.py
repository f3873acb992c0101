"""The allow list, and findings of ``breaking`` that no test vector covers."""

from __future__ import annotations

from typing import Any

import pytest

from lro import InvalidArgument
from lro.lint import Breaking, breaking, lint, read_allowances
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
        ("*:typo", "has an unknown code; the codes are field-number-changed, metadata-"),
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
