"""JSON text is parsed strictly and within limits, with the same result with and without orjson."""

from __future__ import annotations

import dataclasses
import http
import importlib.util
import json
import math
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro._messages import json_text
from lro.wire import dumps, loads, loads_strict
from tests.messages.scalars_message import JSON

MAX_DEPTH = 100
READERS = {"loads": loads, "strict": loads_strict}


@pytest.fixture(params=["orjson", "standard"])
def library(request, monkeypatch):
    if request.param == "standard":
        monkeypatch.setattr(json_text, "orjson", None)
    else:
        pytest.importorskip("orjson")
    return request.param


@pytest.fixture(params=READERS)
def read(request, library):
    return READERS[request.param]


def nested(levels, inner="1"):
    return "[" * levels + inner + "]" * levels


NOT_JSON = [
    "", " \n", '{"a":1} x', "{}{}", "[1,]", "[1] // no", "{'a': 1}", "{a: 1}", '{"a":', "[NaN]",
    "[-Infinity]", "[01]", "[+1]", '["\n"]', '["\\x41"]', "\ufeff{}",
    b"\xff\xfe{}", b'["\xed\xa0\x80"]', b'["\xc0\xaf"]', b'"\x80"',
]  # fmt: skip


@pytest.mark.parametrize("data", NOT_JSON)
def test_invalid_json_is_refused(read, data):
    """Invalid JSON is refused, and so is any encoding other than UTF-8 (spec §1.8(6))."""
    for form in (data, data.encode()) if isinstance(data, str) else (data,):
        with pytest.raises(ValueError):
            read(form)


def test_other_threads_run_while_fractions_are_parsed():
    """Each fraction is parsed by a Python function, so that other threads get turns meanwhile."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append((frame.f_code.co_name, event)))
    try:
        value = loads_strict(b"[1e9, 0.5, -2.5e-3, 7, 1e999]")
    finally:
        sys.setprofile(None)
    assert value == [1e9, 0.5, -2.5e-3, 7, math.inf]
    assert called.count(("_fraction", "call")) == 4


def test_servers_refuse_duplicate_keys(library):
    """Servers refuse duplicate keys at any depth (spec §1.8(2)); clients take the last value."""
    for text in ('{"a":1,"b":2,"a":3}', '[{"b":{"a":1,"a":1}}]', '{"a":1,"\\u0061":2}'):
        with pytest.raises(ValueError, match="the key 'a' stands twice"):
            loads_strict(text)
    assert loads('{"a":1,"a":2}') == {"a": 2}


QUOTED = st.sampled_from(["", "a", "b", '"', ':"', "\\", '\\"', "gs://x", "é", "{", '"a":1'])


@given(st.lists(st.tuples(QUOTED, QUOTED | st.integers() | st.booleans() | st.none()), max_size=4))
def test_flat_object_is_read_only_if_its_keys_differ(pairs):
    members = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    text = f"{{{members}}}"
    if len(dict(pairs)) == len(pairs):
        assert loads_strict(text) == dict(pairs)
    else:
        with pytest.raises(ValueError, match="stands twice"):
            loads_strict(text)


@pytest.mark.parametrize("text", ['"{"', '"{}"'])
def test_text_with_a_brace_is_read_as_a_text(read, text):
    assert read(text) == json.loads(text)


def test_depth_is_limited_to_a_hundred_levels(read):
    """JSON of 100 levels is read, and deeper JSON is refused (spec §1.8(8) requires 32 levels)."""
    for levels in (1, 32, MAX_DEPTH):
        assert read(nested(levels)) is not None
        assert read(nested(levels, "").encode()) is not None
    for levels in (MAX_DEPTH + 1, 150, 1_000, 100_000):
        for text in (nested(levels), nested(levels, ""), '{"a":' * levels + "1" + "}" * levels):
            with pytest.raises(ValueError):
                read(text)

    for form in (f'["{"x" * 60_000}",[]]', f'["{"x" * 60_000}",[]]'.encode()):
        assert read(form)[1] == []
    deep = f'["{"x" * 60_000}",{nested(150, "")}]'
    for form in (deep, deep.encode()):  # brackets of long texts are not counted
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            read(form)
    wide = [{"id": n, "tags": ["[", '"'], "empty": []} for n in range(1000)]
    assert read(json.dumps(wide)) == wide
    assert read(json.dumps([[]] * 1000)) == [[]] * 1000
    for bracket in ("[", "{", '{"a":', "]", "[{"):
        with pytest.raises(ValueError):
            read(bracket * 100_000)


TRICKY = st.sampled_from(["", "a", "[", "]", "{}", '"', '"]', "\\", '\\"', "\\\\[", "é{", "[]"])


@given(
    st.recursive(
        TRICKY | st.none(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TRICKY, inner, max_size=2),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_brackets_in_strings_do_not_count_for_depth(value, spaced):
    def depth(one):
        inner = one.values() if isinstance(one, dict) else one
        return 1 + max(map(depth, inner), default=0) if isinstance(one, (dict, list)) else 0

    most = MAX_DEPTH - depth(value)
    for levels in (most, most + 1):
        whole = nested(levels, json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced))
        if levels == most:
            assert loads(whole) is not None
        else:
            with pytest.raises(ValueError, match="nested deeper than 100"):
                loads(whole)


def test_written_json_can_be_read_again(library):
    """JSON is written as compact UTF-8; an endless or far too deep value is refused."""
    value = {"é": ["\u2028", 1, 1.5, True, None, "\U0001f600"]}
    assert dumps(value) == '{"é":["\u2028",1,1.5,true,null,"\U0001f600"]}'.encode()
    assert dumps([2**70, 2**63 - 1]) == b"[1180591620717411303424,9223372036854775807]"
    for levels in (MAX_DEPTH, MAX_DEPTH + 1, 300):
        deep = []
        for _ in range(levels - 1):
            deep = [deep]
        assert json.loads(dumps(deep)) == deep
    ring = []
    ring.append(ring)
    for _ in range(100_000):
        deep = [deep]
    for endless in (ring, deep):
        with pytest.raises(ValueError):
            dumps(endless)


@pytest.mark.parametrize("value", [{"a": object()}, {1, 2}, "\ud800", {"\ud800": 1}, b"x"])
def test_value_without_json_is_an_error(library, value):
    """Writing a value that has no JSON form raises an error."""
    with pytest.raises((ValueError, TypeError)):
        dumps(value)


NUMBERS = [
    "0", "-0", "-0.0", "1E+5", "1e-7", "1e16", "-1e22", "0.00001", "0.0001", "5e-324", "1e-400",
    "1e308", "1e309", "-1e400", "9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "9" * 308, "9" * 309, "9" * 4300, "9" * 4301,
    "0.30000000000000004", "2.2250738585072011e-308", "1.7976931348623159e308", "NaN", "-Infinity",
    "01", "1.", ".5", "+1", "1_0", "0x1", "123456789.12345678901234567890", "1e", "-",
]  # fmt: skip
TEXTS = [
    '""', '"3e5"', '"null"', '"0.00001"', r'"\ud800"', r'"\ud83d\ude00"', r'"\udc00\ud800"',
    r'"\u0000"', '"\x00"', '"\x1f"', '"\x7f"', '"\u2028"', '"\U0001f600"', r'"\/\b\f\n\x"',
    r'"\u12"', '"a', '"12345678901234567890"', '"\ud800"',
]  # fmt: skip
SPACE = st.sampled_from(["", "", "", "", " ", "\t\r\n", "\x0b", "\xa0", "\ufeff"])
KEY = st.sampled_from(["a", "b", "a:", 'a\\"', "\ud800", "ä", "\\u00e4"])
TOKEN = st.sampled_from([*NUMBERS, *TEXTS, "true", "null", "nul", "None"]) | st.floats().map(repr)
JSON_TEXT = st.recursive(
    TOKEN,
    lambda inner: (
        st.builds("[{}{}]".format, st.lists(inner, max_size=3).map(",".join), SPACE)
        | st.builds('{{"a":{},{}"a":{}}}'.format, inner, SPACE, inner)
        | st.builds('{{"a:"{}:{},"{}":{}}}'.format, SPACE, inner, KEY, inner)
    ),
    max_leaves=5,
)


def by_each_library(action, value):
    """Return the results with and without orjson, each as its repr, or None for an error."""
    found = []
    for library in (json_text.orjson, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_text, "orjson", library)
            try:
                found.append(repr(action(value)))
            except (ValueError, TypeError):
                found.append(None)
    return found


def assert_read_alike(text):
    """Check that text and bytes are read alike with and without orjson, and written alike."""
    for data in (text, text.encode("utf-8", "surrogatepass")):
        for action in (loads, loads_strict):
            assert len(set(by_each_library(action, data))) == 1, ascii(data)
        if by_each_library(loads, data)[0] is not None:
            assert len(set(by_each_library(dumps, loads(data)))) == 1, ascii(data)


def test_json_token_is_read_and_written_alike_by_either_library():
    """Every token is read and written alike with orjson (the ``fast`` extra) and without."""
    for token in (*NUMBERS, *TEXTS):
        for text in (token, f"[{token}]", f'{{"unknown": {token}}}', f" {token} "):
            assert_read_alike(text)


@given(JSON_TEXT, SPACE)
def test_any_text_is_read_and_written_alike_by_either_library(text, space):
    """A text that one JSON library refuses is refused by the other too."""
    assert_read_alike(space + text)


@dataclasses.dataclass
class Data:
    number: int = 1


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, 2**64, 10**309, 10**4300, -0.0, 1e16, 1e-5, 1e-4, (1, 2), {1: 2},
        {None: 1}, {True: 1}, {1.5: 1}, Data(), datetime(2030, 1, 1, tzinfo=UTC), Decimal(1),
        http.HTTPStatus.OK,
        {"\ud800": 1}, b"x", None, {"a": None}, "null", "3e5", "0.00001", {"a,null": 1e300},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_is_written_alike_by_either_library(value):
    for whole in (value, [value], {"a": [1, value]}):
        assert len(set(by_each_library(dumps, whole))) == 1


@given(JSON)
def test_every_json_value_survives_a_round_trip(value):
    """A JSON value is unchanged after it is written and read, with either library."""
    assert loads(dumps(value)) == loads_strict(dumps(value)) == value
    assert len(set(by_each_library(dumps, value))) == 1


def test_module_works_without_orjson(monkeypatch):
    """JSON is read and written without orjson too, because orjson is optional."""
    monkeypatch.setitem(sys.modules, "orjson", None)
    spec = importlib.util.spec_from_file_location("jsontext_alone", json_text.__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert alone.orjson is None
    assert alone.loads(alone.dumps({"a": ["é", 1.5]})) == {"a": ["é", 1.5]}


BRACKETS = [b"[],", b'{"a":1},', b"{},", b"[[]],"]


@pytest.mark.parametrize("piece", [*BRACKETS, b"7,", b'"ab",'])
def test_json_with_too_many_values_is_refused(piece, library):
    """JSON with too many values is refused unparsed, because its values would need much memory."""
    text = b"[" + piece * json_text.MAX_VALUES + b"1]"
    with pytest.raises(ValueError, match="more than 2000000 values"):
        loads(text)


def test_unterminated_text_is_scanned_once(library):
    began = time.process_time()
    with pytest.raises(ValueError):
        loads(b'\\"' * 5000 + b"[" * json_text.MAX_VALUES)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("piece", BRACKETS)
def test_brackets_and_commas_in_strings_are_not_counted_as_values(piece, library):
    value = {"a": '"\\' + piece.decode() * (json_text.MAX_VALUES // 2 + 1), "b": ["\\", '"[,']}
    assert loads(dumps(value)) == value


def test_list_of_a_million_numbers_is_read(library):
    """A list of a million numbers (such as an embedding) is within the limit."""
    assert loads(b"[" + b"1.5," * 1_000_000 + b"2]") == [*[1.5] * 1_000_000, 2]
