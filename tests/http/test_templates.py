"""Path templates (spec §5.1-§5.4, §5.15)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import DeclarationError, InvalidArgument
from lro._model.http_rules import Variable, Wild
from lro.errors import MalformedRequest
from lro.wire import Template
from tests.vector_files import vectors

CASES = vectors("path_match")["cases"]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


@pytest.mark.parametrize("case", of_kind("match"))
def test_match_vector(case: dict[str, Any]) -> None:
    """Every match of path_match.json binds, fails or is refused as it says."""
    template, expect = Template.parse(case["template"]), case["expect"]
    if "error" in expect:
        with pytest.raises(MalformedRequest) as refused:
            template.match(case["path"])
        assert refused.value.code.name == expect["error"]
    else:
        assert template.match(case["path"]) == (expect["bindings"] if expect["match"] else None)


@pytest.mark.parametrize("case", of_kind("template_error"))
def test_template_error_vector(case: dict[str, Any]) -> None:
    """Every wrong template of path_match.json is refused, with its text."""
    with pytest.raises(DeclarationError) as refused:
        Template.parse(case["template"])
    assert refused.value.subject == case["template"]


@pytest.mark.parametrize("case", of_kind("expand"))
def test_expand_vector(case: dict[str, Any]) -> None:
    """Every path of path_match.json is built, or its bindings are refused."""
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
        ("v1/x", "it must begin with a slash"),
        ("/v1/x:y:z", "at character 7: ':z'"),
        ("/v1/x:y/z", "at character 7: '/z'"),
        ("/v1/{a=x:y}", "no segment begins at character 4"),
        ("/v1/{a={b}}", "no segment begins at character 4"),
        ("/v1/a*", "at character 5: '*'"),
        ("/v1/**/x", "'**' may only be the last segment"),
        ("/v1/{a.b}/{c}/{a.b=x/*}", "the variable 'a.b' occurs twice"),
        ("/v1/{1a}", "no segment begins"),
        ("/v1/{a}\n", r"at character 7: '\n'"),
        ("/v1/%ff", "the bytes of '%ff' are not UTF-8"),
        ("/v1/x:%C3", "the bytes of '%C3' are not UTF-8"),
    ],
)
def test_error_of_invalid_template_names_its_place(text: str, says: str) -> None:
    """The sentence names the place or the rule."""
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
def test_match(template: str, path: str, bindings: dict[str, str] | None) -> None:
    """Escapes in literals and verbs, and what a verb leaves of a path."""
    assert Template.parse(template).match(path) == bindings


@pytest.mark.parametrize(
    "path", ["%zz", "/x//%", "/a:%c3", "/v1/\udcff", "/%c3:%a9", "/nothing/%0"]
)
def test_a_malformed_path_is_refused_before_it_is_matched(path: str) -> None:
    """Malformed escapes and bytes that are not UTF-8 are refused anywhere in any path."""
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
    """The error names the field, what it got and what it needs."""
    with pytest.raises(InvalidArgument) as refused:
        Template.parse(template).expand(bindings)
    assert str(refused.value) == says


@pytest.mark.parametrize("text", ["/v1/*/x", "/v1/**", "/v1/{a}/*"])
def test_a_bare_wildcard_cannot_be_built(text: str) -> None:
    """There is no value to put in the place of a wildcard outside a variable."""
    with pytest.raises(DeclarationError, match="stands outside a variable"):
        Template.parse(text).expand({"a": "1"})


def test_expand_copies_literals_and_drops_nothing_else() -> None:
    """Literals and the verb stay as written; an empty ** leaves no slash; others are not used."""
    template = Template.parse("/v%31/a@b/{x=**}:d%6F")
    assert template.expand({"x": "", "other": "?"}) == "/v%31/a@b:d%6F"
    assert template.expand({"x": "a@b"}) == "/v%31/a@b/a%40b:d%6F"


def test_the_more_specific_template_sorts_first() -> None:
    """A literal before * before **, segment by segment, and an exact end before **."""
    ordered = ["/a/b", "/a/b/**", "/a/*", "/a/{x=*/**}", "/a/**", "/{x}/b", "/{x}/*", "/{x=**}"]
    shuffled = [Template.parse(text) for text in sorted(ordered)]
    assert [t.text for t in sorted(shuffled, key=lambda t: t.specificity)] == ordered


LITERALS = st.sampled_from(["v1", "a", "b", "operations", "a@b", "%C3%a9", "%41", "x%20y"])
WILD_OR_LITERAL = LITERALS | st.just("*")


@st.composite
def variables(draw: st.DrawFn, number: int) -> str:
    segments = draw(st.lists(WILD_OR_LITERAL, max_size=3))
    return f"{{f{number}={'/'.join(segments)}}}" if segments else f"{{f{number}}}"


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Templates that can be built: no wildcard outside a variable."""
    count = draw(st.integers(1, 4))
    parts = [draw(LITERALS | variables(number)) for number in range(count)]
    if draw(st.booleans()):
        parts.append(draw(st.sampled_from(["{end=**}", "{end=a/**}", "{end=*/**}"])))
    verb = draw(st.sampled_from(["", "", ":do", ":c%61ncel", ":%3A"]))
    return "/" + "/".join(parts) + verb


VALUES = st.text("aé/%:@ +2F\x00€", min_size=0, max_size=8)


@st.composite
def bound_templates(draw: st.DrawFn) -> tuple[Template, dict[str, str]]:
    """A template with values that fit its variables."""
    template = Template.parse(draw(templates()))
    return template, {v.field: draw(fitting(v)) for v in template.variables}


def fitting(variable: Variable) -> st.SearchStrategy[str]:
    """The values that fit a variable; one that is a whole segment may contain slashes."""
    any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    if variable.segments == (Wild.ONE,):
        return any_text
    words = any_text.map(lambda text: text.replace("/", ":"))
    choices = {Wild.ONE: words.map(lambda word: [word]), Wild.MANY: st.lists(words, max_size=3)}
    pieces = [choices[s] if isinstance(s, Wild) else st.just([s.text]) for s in variable.segments]
    return st.tuples(*pieces).map(lambda lists: "/".join(itertools.chain(*lists)))


def built(template: Template, bindings: dict[str, str]) -> str | InvalidArgument:
    try:
        return template.expand(bindings)
    except InvalidArgument as refused:
        return refused


def fields(template: Template) -> set[str]:
    return {variable.field for variable in template.variables}


@given(bound_templates())
def test_expand_then_match_gives_the_bindings_back(case: tuple[Template, dict[str, str]]) -> None:
    """Every binding that fits is found again in the path that was built from it."""
    template, bindings = case
    path = built(template, bindings)
    if isinstance(path, InvalidArgument):
        assert path.description == "a path needs at least one segment"
    else:
        assert template.match(path) == bindings
        assert path.isascii()


@given(templates(), st.dictionaries(st.sampled_from(["f0", "f1", "f2", "end"]), VALUES))
def test_any_bindings_are_built_or_refused(text: str, bindings: dict[str, str]) -> None:
    """A value that is accepted comes back whatever it is; any other is an InvalidArgument."""
    template = Template.parse(text)
    path = built(template, bindings)
    if isinstance(path, InvalidArgument):
        assert path.field in fields(template)
    else:
        found = template.match(path)
        assert found is not None
        assert found.items() <= bindings.items()


@given(st.text("/v1{}=*.:a%4", max_size=14).map(lambda text: f"/{text}"))
def test_a_template_is_read_or_refused(text: str) -> None:
    """Whatever the text, it gives a template of that text or a DeclarationError."""
    found: Template | DeclarationError
    try:
        found = Template.parse(text)
    except DeclarationError as refused:
        found = refused
    assert text == (found.text if isinstance(found, Template) else found.subject)


@given(templates(), st.text(max_size=20) | st.text("/v1ab:%4\udc80é", max_size=20))
def test_no_path_raises_anything_else(text: str, path: str) -> None:
    """Whatever the path, it is matched or refused as malformed."""
    template = Template.parse(text)
    try:
        found = template.match(path)
    except MalformedRequest:
        found = None
    assert found is None or (path.startswith("/") and found.keys() == fields(template))
