"""Allowances: what they take away, and that none goes stale unseen."""

from __future__ import annotations

import pytest

from lro import InvalidArgument
from lro.lint import lint, read_allowances
from tests.lint.sets import Declared, packed, proto

METHOD = "acme.v1.Books.Export"
DATA = packed(proto(Declared("Export", ("", "")), Declared("Import")))
ALL = [
    (METHOD, "metadata-type-missing"),
    (METHOD, "response-type-missing"),
    ("acme.v1.Books.Import", "missing-operation-info"),
]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ([], ALL),
        ([METHOD], ALL[2:]),
        ([f"{METHOD}:metadata-type-missing"], ALL[1:]),
        (["*:response-type-missing"], [ALL[0], ALL[2]]),
        ([METHOD, f"{METHOD}:metadata-type-missing", METHOD, "*:missing-operation-info"], []),
        (["*:method-removed", f"{METHOD}:return-type-changed"], ALL),
    ],
)
def test_allowed_findings_are_left_out(allow: list[str], left: list[tuple[str, str]]) -> None:
    """By method, by code, by both; entries for ``breaking`` in the same list do no harm."""
    assert [(one.method, one.code) for one in lint(DATA, allow=allow)] == left


@pytest.mark.parametrize("entry", ["*:response-type-empty", "acme.v1.Books.Gone"])
def test_an_unused_entry_is_a_warning(entry: str) -> None:
    """What it was written for has been mended, or is misspelt."""
    (unused,) = [one for one in lint(DATA, allow=[entry]) if one.code == "unused-allowance"]
    assert unused.severity == "warning"
    assert unused.method == entry.partition(":")[0]
    assert unused.message == f"the allowance {entry!r} matches no finding; remove it"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "cannot be read; an entry is METHOD:CODE"),
        *[(one, "cannot be read") for one in ("*", ":method-removed", f"{METHOD}:")],
        (f"{METHOD} method-removed", "cannot be read"),
        ("*:typo", "has an unknown code; there are field-number-changed, metadata-"),
        ("*:unused-allowance", "has an unknown code"),
    ],
)
def test_a_malformed_entry_is_refused(entry: str, why: str) -> None:
    """With its text, and the forms or codes that there are."""
    with pytest.raises(InvalidArgument, match=f"allow: .*{why}"):
        lint(DATA, allow=[entry])


def test_single_string_as_allow_list_is_refused() -> None:
    """It would be read as its letters."""
    with pytest.raises(InvalidArgument, match="give a list of entries"):
        lint(DATA, allow="*:response-type-missing")


def test_a_file_of_allowances() -> None:
    """Comments, spaces and empty lines do not count."""
    text = f"# old ones\n\n  {METHOD}  # AIP-151 came later\r\n*:method-removed"
    assert list(read_allowances(text)) == [METHOD, "*:method-removed"]
