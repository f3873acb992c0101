"""Path templates (spec §5.1-§5.4, §5.15)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import DeclarationError, InvalidArgument
from lro.errors import MalformedRequest
from lro.wire import Template
from tests.vector_files import vectors

CASES = vectors("path_match")["cases"]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


@pytest.mark.parametrize("case", of_kind("match"))
def test_template_matches_as_the_vector_says(case: dict[str, Any]) -> None:
    """Each path of path_match.json gives its bindings, no match, or its error."""
    template, expect = Template.parse(case["template"]), case["expect"]
    if "error" in expect:
        with pytest.raises(MalformedRequest) as refused:
            template.match(case["path"])
        assert refused.value.code.name == expect["error"]
    else:
        assert template.match(case["path"]) == (expect["bindings"] if expect["match"] else None)


@pytest.mark.parametrize("case", of_kind("template_error"))
def test_invalid_template_has_the_error_of_the_vector(case: dict[str, Any]) -> None:
    """Each invalid template of path_match.json is refused, and the error contains the template."""
    with pytest.raises(DeclarationError) as refused:
        Template.parse(case["template"])
    assert refused.value.subject == case["template"]


@pytest.mark.parametrize("case", of_kind("expand"))
def test_template_expands_as_the_vector_says(case: dict[str, Any]) -> None:
    """Each template of path_match.json expands to its path, or refuses its bindings."""
    template, expect = Template.parse(case["template"]), case["expect"]
    if "error" in expect:
        with pytest.raises(InvalidArgument) as refused:
            template.expand(case["bindings"])
        assert refused.value.code.name == expect["error"]
        assert refused.value.field == template.variables[0].field
    else:
        assert template.expand(case["bindings"]) == expect["path"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it must begin with a slash"),
        ("/v1/x:y:z", "at character 7: ':z'"),
        ("/v1/{a=x:y}", "no segment begins at character 4"),
        ("/v1/{a={b}}", "no segment begins at character 4"),
        ("/v1/a*", "at character 5: '*'"),
        ("/v1/**/x", "'**' may only be the last segment"),
        ("/v1/{a.b}/{c}/{a.b=x/*}", "the variable 'a.b' occurs twice"),
        ("/v1/{a}\n", r"at character 7: '\n'"),
        ("/v1/%ff", "the bytes of '%ff' are not UTF-8"),
        ("/v1/x:%C3", "the bytes of '%C3' are not UTF-8"),
    ],
)
def test_error_of_invalid_template_names_its_place(text: str, says: str) -> None:
    """The message about an invalid template names the position or the rule."""
    with pytest.raises(DeclarationError) as refused:
        Template.parse(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("template", "path", "bindings"),
    [
        ("/v1/a%2fb/{x}", "/v1/a%2Fb/c", {"x": "c"}),
        ("/v1/{n=a%2fb/*}", "/v1/a%2Fb/c", {"n": "a%2Fb/c"}),
        ("/v1/{n=a%2fb}", "/v1/a%2Fb", {"n": "a/b"}),
        ("/v1/x:do%3Ait", "/v1/x:do%3Ait", {}),
        ("/v1/x:do%3Ait", "/v1/x:do:it", None),
        ("/v1/x:a%2Fb", "/v1/x:a/b", None),
        ("/{x=**}:do", "/:do", None),
        ("/{x=**}:do", ":do", None),
        ("/{x=**}:do", "/a:do", {"x": "a"}),
        ("/v1/{x=**}:do", "/v1:do", {"x": ""}),
        ("/v1/*", "/v1/é", {}),
        ("/{x}", "/%E2%82%AC", {"x": "€"}),
        ("/{x=**}", "/a%2fb/%25", {"x": "a%2fb/%"}),
        ("/{x}", "", None),
    ],
)
def test_escaped_literals_and_verbs_match(
    template: str, path: str, bindings: dict[str, str] | None
) -> None:
    """Literals and verbs are compared when decoded; a verb is not part of a variable's value."""
    assert Template.parse(template).match(path) == bindings


@pytest.mark.parametrize(
    "path", ["%zz", "/x//%", "/a:%c3", "/v1/\udcff", "/%c3:%a9", "/nothing/%0"]
)
def test_a_malformed_path_is_refused_before_it_is_matched(path: str) -> None:
    """Malformed escapes and bytes that are not UTF-8 are refused anywhere in a path."""
    with pytest.raises(MalformedRequest) as refused:
        Template.parse("/v1/x").match(path)
    assert refused.value.field == "path"


@pytest.mark.parametrize(
    ("template", "bindings", "says"),
    [
        ("/v1/{a}/{b}", {"a": "1"}, "b: is missing, /v1/{a}/{b} needs it"),
        ("/v1/{n=a/*}", {"n": "a/"}, "n: 'a/' does not have the form 'a/*'"),
        ("/v1/{n=a%20b/**}", {"n": "a/c"}, "n: 'a/c' does not have the form 'a b/**'"),
        ("/v1/{n}", {"n": "\udc80"}, r"n: '\udc80' is no Unicode text"),
        ("/{x=**}:do", {"x": ""}, "x: a path needs at least one segment"),
    ],
)
def test_bindings_that_do_not_fit_are_refused(
    template: str, bindings: dict[str, str], says: str
) -> None:
    """The error about wrong bindings names the field, its value and the expected form."""
    with pytest.raises(InvalidArgument) as refused:
        Template.parse(template).expand(bindings)
    assert str(refused.value) == says


@pytest.mark.parametrize("text", ["/v1/*/x", "/v1/**", "/v1/{a}/*"])
def test_wildcard_outside_a_variable_cannot_be_expanded(text: str) -> None:
    """A wildcard outside a variable has no value that could be inserted."""
    with pytest.raises(DeclarationError, match="stands outside a variable"):
        Template.parse(text).expand({"a": "1"})


def test_expand_keeps_literals_and_verbs_as_written() -> None:
    """Literals and verbs stay as written; an empty ** adds no slash; other bindings are ignored."""
    template = Template.parse("/v%31/a@b/{x=**}:d%6F")
    assert template.expand({"x": "", "other": "?"}) == "/v%31/a@b:d%6F"
    assert template.expand({"x": "a@b"}) == "/v%31/a@b/a%40b:d%6F"


def test_the_more_specific_template_sorts_first() -> None:
    """Per segment, a literal sorts before *, and * before **; the end of a path sorts before **."""
    ordered = ["/a/b", "/a/b/**", "/a/*", "/a/{x=*/**}", "/a/**", "/{x}/b", "/{x}/*", "/{x=**}"]
    shuffled = [Template.parse(text) for text in sorted(ordered)]
    assert [t.text for t in sorted(shuffled, key=lambda t: t.specificity)] == ordered


TEMPLATES = [
    Template.parse(text)
    for text in (
        *("/v1/{id}", "/v1/{a.b}/x/{c}:do", "/v1/{name=operations/**}:c%61ncel", "/{x=**}:%3A"),
        *("/v1/{n=a%2fb/*}/{end=*/**}", "/v1/x%20y/{n=projects/*/locations/*}/operations"),
    )
]
TEXTS = st.text("aé/%:@ +2F\x00€", max_size=8) | st.text(max_size=8)
VALUES = st.tuples(
    st.sampled_from(["", "", "operations/", "a%2fb/", "projects/p/locations/", "a/b/"]), TEXTS
).map("".join)
BINDINGS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["id", "a.b", "c", "name", "x", "n", "end"], VALUES)
)


@given(st.sampled_from(TEMPLATES), BINDINGS)
def test_bindings_survive_expand_and_match_or_are_refused(
    template: Template, bindings: dict[str, str]
) -> None:
    """Matching a path that was built from valid values returns these values."""
    fields = {variable.field for variable in template.variables}
    try:
        path = template.expand(bindings)
    except InvalidArgument as refused:
        assert refused.field in fields
    else:
        assert path.isascii()
        assert template.match(path) == {name: bindings[name] for name in fields}


@given(st.sampled_from(TEMPLATES), st.text(max_size=20) | st.text("/v1ab:%4\udc80é", max_size=20))
def test_any_path_matches_or_raises_only_our_errors(template: Template, path: str) -> None:
    try:
        found = template.match(path)
    except MalformedRequest:
        found = None
    assert found is None or path.startswith("/")
