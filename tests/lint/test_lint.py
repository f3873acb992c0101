"""Findings of ``lint``, the sets that it refuses, and the test vectors of spec §8."""

from __future__ import annotations

import base64
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import DeclarationError, InvalidArgument
from lro.lint import BREAKING_CODES, LINT_CODES, Finding, breaking, lint, operation_infos
from lro.lint._descriptors import DescriptorSet
from lro.lint._lint import resolved_info
from lro.types import OperationInfo
from tests.lint.sets import (
    BARE,
    BOOKS,
    GOOD,
    OPERATION,
    Declared,
    empty_file,
    field,
    interface_file,
    located,
    packed,
    proto,
)
from tests.vector_files import vectors

EMPTY = "google.protobuf.Empty"


def codes(found: list[Finding]) -> list[str]:
    """Return the codes of the findings, in their order."""
    return [one.code for one in found]


def said(method: Declared, *messages: str, **more: object) -> str:
    """Return the message of the method's only finding, in a set that includes Google's files."""
    book = proto(method, messages=messages, imports=["google/protobuf/empty.proto"])
    (found,) = lint(packed(book, empty_file(), interface_file()))
    return found.message


def test_finding_has_the_line_and_column_of_the_method() -> None:
    """If the set has source positions, a finding has the method's line and column, from 1."""
    (known,) = lint(packed(located(proto(BARE), 41, 2)))
    assert (known.file, known.line, known.column) == (BOOKS, 42, 3)
    (unknown,) = lint(packed(proto(BARE)))
    assert (unknown.file, unknown.line, unknown.column) == (BOOKS, None, None)
    assert known == attrs.evolve(unknown, line=42, column=3)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (
            Declared("Export", ("ExportResponse", "no.Pe")),
            "metadata_type 'no.Pe' is not a message of the set,"
            " looked up as no.Pe or acme.v1.no.Pe",
        ),
        (
            Declared("Export", ("ExportResponse", "Empty")),
            "metadata_type 'Empty' is not a message of its own package in the set;"
            " if google.protobuf.Empty is meant, write it in full;"
            " if acme.v1.Empty is meant, its file is missing from the set",
        ),
        (
            Declared("Export", ("ExportResponse", OPERATION)),
            "metadata_type 'google.longrunning.Operation' is google.longrunning.Operation in"
            " google/longrunning/operations.proto, which is not imported; import this file",
        ),
        (
            Declared("Export", ("M", "M")),
            "response_type is acme.v1.M; it must be ExportResponse, or a message with the option"
            " google.api.resource",
        ),
        (
            Declared("CreateBook", ("M", "M")),
            "response_type is acme.v1.M; for Create it must be Book",
        ),
        (
            Declared("DeleteBook", ("M", "M")),
            "response_type is acme.v1.M; for Delete it must be Book or google.protobuf.Empty",
        ),
    ],
)
def test_finding_says_what_was_found_and_expected(method: Declared, wanted: str) -> None:
    """The message of a finding says what was found and what is expected."""
    assert said(method, "Request", "ExportResponse", "M") == wanted


def test_unknown_target_error_suggests_similar_files() -> None:
    """The error about an unknown target names only the few most similar files."""
    names = [f"acme/part{number}/v1/part{number}.proto" for number in range(300)]
    files = [proto(BARE, name=name, package=f"p{at}") for at, name in enumerate(names)]
    with pytest.raises(InvalidArgument) as refused:
        lint(packed(*files), targets=["acme/part17/v1/prat17.proto"])
    start = "no file 'acme/part17/v1/prat17.proto' in the set; the nearest of 300 with services: "
    assert refused.value.description.startswith(f"{start}acme/part17/v1/part17.proto, ")
    assert refused.value.description.count("acme/") == 4


def test_unqualified_name_is_resolved_in_the_nearest_package() -> None:
    far = [
        proto(name=f"{package}.proto", package=package, messages=["Report"])
        for package in ("aaa.v1", "acme.common", "acme.other.v1", "acme.common.deep.v1")
    ]
    here = proto(Declared("Export", ("Report", "Metadata")), messages=["Request", "Metadata"])
    (found,) = lint(packed(here, *far))
    assert found.code == "response-type-not-qualified"
    assert "if acme.common.Report is meant, write it in full" in found.message


def test_a_package_of_many_parts_takes_little_memory() -> None:
    method = Declared("Export", ("ExportResponse", "no.Pe"))
    data = packed(proto(method, package="a." * 10_000 + "v1", messages=["Request"]))
    tracemalloc.start()
    try:
        lint(data)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "targets", "said"),
    [
        (packed(proto(BARE)), ["x"], "targets: no file 'x' in the set; .* acme/v1/books"),
        (packed(proto()), ["x"], "no file 'x' in the set; none has services"),
        (b"", None, "descriptor_set: holds no file"),  # an empty set is an error
        (b"syntax = 'proto3';", None, "bytes that are not a FileDescriptorSet.*protoc.*buf"),
        (b"\x0a\x02\x0a", None, "bytes that are not a FileDescriptorSet.*protoc.*buf"),  # cut short
        (b"\x0a\x04\x0a\x02\xff\xff", None, "bytes that are not a FileDescriptorSet"),  # bad UTF-8
        # These bytes parse as a set by chance.
        (packed(proto(GOOD, name="")), None, "a file without a name"),
        (
            packed(proto(BARE)) + packed(proto(GOOD)),
            None,
            r"books\.proto: two different files of this name",
        ),
    ],
)
def test_input_that_cannot_be_examined_is_refused_with_one_error(
    data: bytes, targets: list[str] | None, said: str
) -> None:
    """A set that cannot be examined gives one error, which suggests files for unknown targets."""
    with pytest.raises(InvalidArgument, match=said):
        lint(data, targets=targets)


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("BatchDeleteBooks", EMPTY, []),
        ("DeleteBook", EMPTY, []),
        ("BatchCreateBooks", EMPTY, ["response-type-empty"]),
        ("BatchDeleteBooks", "BatchDeleteBooksResponse", []),  # a soft delete (AIP-235)
    ],
)
def test_a_delete_of_many_or_one_may_respond_with_empty(
    name: str, response: str, expected: list[str]
) -> None:
    """AIP-235 and AIP-135 let delete methods respond with Empty; other batch methods must not."""
    messages = ["Request", "BatchDeleteBooksResponse", "M"]
    method = Declared(name, (response, "M"))
    here = proto(method, imports=["google/protobuf/empty.proto"], messages=messages)
    assert codes(lint(packed(here, empty_file()))) == expected


def test_file_may_be_in_the_set_twice() -> None:
    """A set may have a file twice, as joined sets do, even with different source positions."""
    assert codes(lint(packed(proto(BARE)) + packed(located(proto(BARE), 1, 1)))) == [
        "missing-operation-info"
    ]


def test_public_imports_of_missing_files_are_skipped() -> None:
    """A set may lack imported files and have invalid dependency indexes (spec §8.3(4))."""
    far = proto(name="far.proto", package="far", messages=["Far"])
    via = proto(name="via.proto", package="via", messages=[], imports=["far.proto", "gone.proto"])
    via.public_dependency.extend([0, 1, 7, -1])
    method = Declared("Export", ("ExportResponse", "far.Far"))
    book = proto(method, imports=["via.proto", "gone.proto", "via.proto"])
    assert lint(packed(book, via, far)) == []


def test_message_in_two_files_is_found_in_the_imported_one() -> None:
    """If a message is in two files of the set, the copy in the imported file is used."""
    moved = [proto(name=name, package="far", messages=["Far"]) for name in ("a.proto", "b.proto")]
    method = Declared("Export", ("ExportResponse", "far.Far"))
    assert lint(packed(proto(method, imports=["b.proto"]), *moved)) == []


def test_registry_is_filled_from_a_descriptor_set() -> None:
    """``operation_infos`` maps full method names to types; methods with findings are left out."""
    bad = Declared("Import", ("ImportResponse", "Metadata"))
    registry = operation_infos(packed(proto(GOOD, bad), interface_file()))
    assert list(registry) == ["acme.v1.Books.Export"]
    assert registry["acme.v1.Books.Export"] == OperationInfo(
        "acme.v1.ExportResponse", "acme.v1.Metadata"
    )


def test_method_declared_by_two_files_is_refused() -> None:
    """A set in which two files declare the same method is refused."""
    files = proto(GOOD), proto(GOOD, name="again.proto")
    with pytest.raises(DeclarationError, match="declared twice"):
        operation_infos(packed(*files))


def some() -> bytes:
    """Return a descriptor set with every kind of element."""
    file = located(proto(GOOD, Declared("Get", ("far.Far", ""))), 3, 4)
    field(file, 0, "inner", 1, nested="acme.v1.Metadata")
    field(file, 2, "percent", 1)
    return packed(file, empty_file())


SOME = some()


@given(st.data())
def test_any_bytes_give_findings_or_an_error(data: st.DataObject) -> None:
    """``lint`` and ``breaking`` return findings or raise InvalidArgument, whatever the bytes."""
    at = data.draw(st.integers(0, len(SOME)))
    cut = data.draw(st.integers(0, 3))
    altered = SOME[:at] + data.draw(st.binary(max_size=4)) + SOME[at + cut :]
    try:
        found = [*lint(altered), *breaking(altered, SOME), *breaking(SOME, altered)]
    except InvalidArgument:
        return
    assert set(codes(found)) <= {*LINT_CODES, *BREAKING_CODES}


def cases(name: str) -> list[Any]:
    """Return the cases of a vector file, each with the imports that all cases share."""
    content = vectors(name)
    assert len(content["cases"]) == content["count"]
    base = base64.b64decode(content["base_files"])
    return [pytest.param(case, base, id=case["id"]) for case in content["cases"]]


def facts_of(finding: Finding, *names: str) -> dict[str, object]:
    """Return the attributes of a finding with these names, without None values."""
    facts = {name: getattr(finding, name) for name in names}
    return {name: fact for name, fact in facts.items() if fact is not None}


def names_of(info: OperationInfo) -> dict[str, str]:
    """Return the response and metadata type names of a declaration, without empty names."""
    named = {"response_type": info.response_type, "metadata_type": info.metadata_type}
    return {field: name for field, name in named.items() if name}


@pytest.mark.parametrize(("case", "base"), cases("opinfo_lint"))
def test_findings_of_lint_are_those_of_the_vector(case: dict[str, Any], base: bytes) -> None:
    """``lint`` returns the findings of the vector, in the same order."""
    data = base + base64.b64decode(case["files"])
    found = lint(data, targets=case["targets"])
    assert [facts_of(one, "method", "code", "severity") for one in found] == case["expect"][
        "findings"
    ]
    files = DescriptorSet(data)
    infos = {str(rpc.name): resolved_info(files, rpc) for rpc in files.rpcs("", case["targets"])}
    resolved = {method: names_of(info) for method, info in infos.items() if info is not None}
    assert {method: found for method, found in resolved.items() if found} == case["expect"][
        "resolved"
    ]
    registry = operation_infos(data)
    complete = {method for method, found in resolved.items() if len(found) == 2}
    assert {method: names_of(registry[method]) for method in registry} == {
        method: resolved[method] for method in complete
    }


@pytest.mark.parametrize(("case", "base"), cases("opinfo_breaking"))
def test_findings_of_breaking_are_those_of_the_vector(case: dict[str, Any], base: bytes) -> None:
    """``breaking`` returns the findings of the vector, with the old and the new type."""
    found = breaking(
        base + base64.b64decode(case["old_files"]),
        base + base64.b64decode(case["new_files"]),
        old_targets=case["old_targets"],
        new_targets=case["new_targets"],
    )
    said = [facts_of(one, "method", "code", "old", "new") for one in found]
    assert said == case["expect"]
