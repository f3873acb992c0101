"""Query parameters (spec §5.8, §1.6(2))."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import LroError
from lro._http.requests import Query, parse_query
from lro.errors import InvalidPageSize, MalformedRequest
from tests.vector_files import vectors

CASES = vectors("http_query")["cases"]
RPCS = ["ListOperations", "GetOperation", "DeleteOperation", "CancelOperation", "WaitOperation"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_query_gives_the_fields_of_its_vector(case: dict[str, Any]) -> None:
    """Each query of http_query.json gives its fields or its error."""
    expect = case["expect"]
    if "error" in expect:
        with pytest.raises(LroError) as refused:
            parse_query(case["rpc"], case["query"])
        assert refused.value.status_code.name == expect["error"]
    else:
        view = expect["request"].pop("view", "BASIC")
        assert parse_query(case["rpc"], case["query"]) == Query(expect["request"], view=view)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", False),
        ("alt=json", False),
        ("alt=json;enum-encoding=int", True),
        ("%24alt=json%3Benum-encoding%3Dint", True),
        ("$alt=json%3Benum-encoding%3Dint&alt=json", True),
        ("$prettyPrint=true&quotaUser=me&$key=k", False),
    ],
)
@pytest.mark.parametrize("rpc", RPCS)
def test_system_parameters_are_accepted(rpc: str, query: str, wanted: bool) -> None:
    """Every RPC accepts system parameters; only the enum encoding of ``alt`` has an effect."""
    assert parse_query(rpc, query) == Query({}, enum_numbers=wanted)


@pytest.mark.parametrize(
    ("query", "error", "field"),
    [
        *[
            (f"pageSize={size}", InvalidPageSize, "page_size")
            for size in ("2147483648", "-2147483649", "%D9%A1", "1%0A")
        ],
        ("page_size=" + "9" * 5000, InvalidPageSize, "page_size"),
        ("filter=a&filter=a", MalformedRequest, "filter"),
        ("pageToken=a&page_token=", MalformedRequest, "page_token"),
        ("returnPartialSuccess=false&return_partial_success=true", MalformedRequest, "return"),
        ("returnPartialSuccess", MalformedRequest, "return_partial_success"),
        ("name=", MalformedRequest, "name"),
        ("n%61me=x", MalformedRequest, "name"),
        *[
            (query, MalformedRequest, "query")
            for query in ("Filter=x", "filter=%ff", "%zz=1", "key=%")
        ],
        ("alt=media", MalformedRequest, "alt"),
        ("returnPartialSuccess=true&foo=1", MalformedRequest, "query"),
    ],
)
def test_query_error_names_the_parameter(
    query: str, error: type[MalformedRequest], field: str
) -> None:
    """An error in a query names the parameter in its proto spelling."""
    with pytest.raises(error) as refused:
        parse_query("ListOperations", query)
    assert refused.value.field.startswith(field)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("rpc", [*RPCS[1:], "BatchGetOperations"])
@pytest.mark.parametrize("parameter", ["filter=a", "pageSize=1", "returnPartialSuccess=true"])
def test_only_list_has_fields_in_its_query(rpc: str, parameter: str) -> None:
    """Other RPCs refuse the query fields of List."""
    with pytest.raises(MalformedRequest, match=r"it knows (none|view)$"):
        parse_query(rpc, parameter)


def test_page_size_may_have_leading_zeros() -> None:
    """A page size may have any number of leading zeros; the whole range of int32 is read."""
    for number in (0, 7, 2**31 - 1):
        query = f"pageSize={'0' * 5000}{number}"
        assert parse_query("ListOperations", query).fields == {"page_size": number}
    assert parse_query("ListOperations", f"pageSize={-(2**31)}").fields == {"page_size": -(2**31)}


@given(TEXT, st.integers(-(2**31), 2**31 - 1), TEXT)
def test_query_by_urlencode_is_read_back(text: str, size: int, token: str) -> None:
    """Parsing a form-encoded request returns the original fields."""
    query = urlencode({"filter": text, "pageSize": size, "page_token": token})
    fields = {"filter": text, "page_size": size, "page_token": token}
    assert parse_query("ListOperations", query) == Query(fields)


def test_longest_filter_fits_into_a_query() -> None:
    """The longest filter fits into a query, even if each character needs twelve when escaped."""
    text = "\U0001f600" * 8192
    assert parse_query("ListOperations", "filter=" + quote(text)).fields == {"filter": text}
