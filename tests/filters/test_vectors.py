"""The vectors of filters: what parses to which tree, what is refused, what matches."""

from __future__ import annotations

import pytest

from lro import Code
from lro._filters.filter import compile_filter
from lro._filters.parse import parse
from lro.errors import InvalidFilter
from tests.filters.messages import Row, row, types
from tests.filters.tree_printing import to_json
from tests.vector_files import vectors

PARSE_OK = vectors("filter_parse_ok")["cases"]
PARSE_ERROR = vectors("filter_parse_error")["cases"]
EVAL = vectors("filter_eval")
ROWS = [row(record) for record in EVAL["records"]]


def by_id(case):
    return case["id"]


@pytest.mark.parametrize("case", PARSE_OK, ids=by_id)
def test_a_filter_parses_to_its_tree(case):
    """Syntax alone gives the tree of spec §7.4."""
    assert to_json(parse(case["filter"])) == case["ast"]


@pytest.mark.parametrize("case", PARSE_ERROR, ids=by_id)
def test_a_text_that_is_not_a_filter_is_refused(case):
    """Every refusal names the place and says what was expected there."""
    with pytest.raises(InvalidFilter) as caught:
        parse(case["filter"])
    assert caught.value.code is Code[case["error"]]
    assert 0 <= caught.value.position <= len(case["filter"])
    assert len(caught.value.description) < 200


@pytest.mark.parametrize("case", EVAL["cases"], ids=by_id)
def test_a_filter_matches_these_records(case):
    """The whole way: read, check against the types, evaluate (no case has to wait)."""
    registered = {
        "metadata": types(case.get("metadata_types", EVAL["metadata_types"])),
        "response": types(EVAL["response_types"]),
    }
    if "error" in case["expect"]:
        with pytest.raises(InvalidFilter) as caught:
            compile_filter(case["filter"], **registered)
        assert caught.value.code is Code[case["expect"]["error"]]
        assert 0 <= caught.value.position <= len(case["filter"])
    else:
        compiled = compile_filter(case["filter"], **registered)
        assert [one.name for one in ROWS if compiled.matches(one)] == case["expect"]["names"]


def test_nothing_matches_without_types():
    """A test of metadata needs a registered type; presence does not."""
    assert compile_filter("-metadata:*", metadata=[], response=[]).matches(Row())
    with pytest.raises(InvalidFilter, match="no type is registered for metadata"):
        compile_filter("metadata.verb = export", metadata=[], response=[])
