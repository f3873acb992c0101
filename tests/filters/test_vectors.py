"""The vectors of filters: what parses to which tree, what is refused, what matches."""

from __future__ import annotations

import pytest

from lro import Code
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import compiled, refusal
from tests.filters.messages import Row, row, types
from tests.filters.test_parse import tree_of
from tests.vector_files import by_id, vectors

PARSE_OK = vectors("filter_parse_ok")["cases"]
PARSE_ERROR = vectors("filter_parse_error")["cases"]
EVAL = vectors("filter_eval")
TYPES = types([*EVAL["metadata_types"], "google.protobuf.Struct"])
ROWS = [row(record) for record in EVAL["records"]]


@pytest.mark.parametrize("case", PARSE_OK, ids=by_id)
def test_a_filter_parses_to_its_tree(case):
    """Syntax alone gives the tree of spec §7.4."""
    assert tree_of(case["filter"]) == case["ast"]


@pytest.mark.parametrize("case", PARSE_ERROR, ids=by_id)
def test_a_text_that_is_not_a_filter_is_refused(case):
    """Every refusal names the place and says what was expected there."""
    with pytest.raises(InvalidFilter) as caught:
        tree_of(case["filter"])
    assert caught.value.code is Code[case["error"]]
    assert 0 <= caught.value.position <= len(case["filter"])
    assert len(caught.value.description) < 200


@pytest.mark.parametrize("case", EVAL["cases"], ids=by_id)
def test_a_filter_matches_these_records(case):
    """The whole way: read, check against the types, evaluate (no case has to wait)."""
    metadata = types(case.get("metadata_types", EVAL["metadata_types"]))
    response = types(EVAL["response_types"])
    if "error" in case["expect"]:
        with pytest.raises(InvalidFilter) as caught:
            compiled(case["filter"], metadata, response)
        assert caught.value.code is Code[case["expect"]["error"]]
        assert 0 <= caught.value.position <= len(case["filter"])
    else:
        found = compiled(case["filter"], metadata, response)
        assert [one.name for one in ROWS if found.matches(one)] == case["expect"]["names"]


def test_nothing_matches_without_types():
    """A test of metadata needs a registered type; presence does not."""
    assert compiled("-metadata:*", []).matches(Row())
    assert "no type is registered for metadata" in refusal("metadata.verb = export", [])
