"""A filter that is built from values matches exactly those values, whatever they contain."""

from __future__ import annotations

import copy
import enum
import functools
import operator
import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lro
from lro._filters.filter import compile_filter
from lro._filters.parse import Comparison, Member, parse
from lro._filters.types import MessageType
from lro._messages.shapes import shape_of
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client.filters import (
    Expression,
    Operand,
    all_of,
    any_of,
    call,
    cancel_requested,
    create_time,
    end_time,
    field,
    method,
    search,
    state,
    type_of,
    waiting,
)
from lro_client.transports import AsyncLocalTransport, LocalTransport
from tests.client.faces import Face
from tests.filters.messages import Row

NAME = "acme.filters.v1.Sample"
MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Stage(enum.Enum):
    WAITING = 0
    NOT = 1
    ÜBER = 2


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 7


class Mood(enum.StrEnum):
    GLAD = "so glad"


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Marks(enum.Flag):
    ONE = 1


@lro.message(NAME)
@attrs.frozen(kw_only=True)
class Sample:
    text: str = ""
    number: lro.types.Int64 = 0
    ratio: float = 0.0
    when: datetime | None = None
    stamp: lro.Timestamp | None = None
    took: timedelta | None = None
    length: lro.Duration | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    extra: Mapping[str, object] | None = None


TYPES = lro.TypeRegistry(Sample)
SAMPLE = MessageType(NAME, shape_of(Sample))


def matches(wanted: Expression, sample: Sample | None = None, **row: Any) -> bool:
    """Return whether the library's filter evaluator matches an operation with this metadata."""
    compiled = compile_filter(str(wanted), metadata=[SAMPLE], response=[])
    packed = None if sample is None else TYPES.pack(sample)
    return compiled.matches(Row(metadata=packed, **row))


def meta(path: str, *keys: str | int) -> Operand:
    """Return an operand for a field of the sample metadata."""
    return field(f"metadata.{path}", *keys)


A, B, C = (field(name) == 1 for name in "abc")

WRITTEN: dict[str, tuple[object, str]] = {
    "equal": (field("a") == 1, "a = 1"),
    "not equal": (field("a") != 1, "a != 1"),
    "less": (field("a") < 1, "a < 1"),
    "less or equal": (field("a") <= 1, "a <= 1"),
    "greater": (field("a") > 1, "a > 1"),
    "greater or equal": (field("a") >= 1, "a >= 1"),
    "turned round": (1 < field("a"), "a > 1"),
    "has": (field("a").has("b"), 'a:"b"'),
    "has a star": (field("a").has("*"), r'a:"\*"'),
    "exists": (field("a").exists(), "a:*"),
    "true": (field("a").is_true(), "a = true"),
    "false": (field("a").is_false(), "a = false"),
    "matches": (field("a").matches('*"b"\\*'), r'a = "*\"b\"\\*"'),
    "starts with": (field("a").starts_with("5*"), r'a = "5\**"'),
    "ends with": (field("a").ends_with("5*"), r'a = "*5\*"'),
    "contains": (field("a").contains("5*"), r'a = "*5\**"'),
    "one of": (field("a").one_of([1, "b"]), 'a = 1 OR a = "b"'),
    "one of one": (field("a").one_of({1}), "a = 1"),
    "path": (field("a.b.c_1"), "a.b.c_1"),
    "keys": (field("a.b", "c.d", "e"), 'a.b."c.d".e'),
    "number as key": (field("a", 5, -5, True, False), 'a."5"."-5"."true"."false"'),
    "key like a number": (field("a", "5"), 'a."5"'),
    "empty key": (field("a", ""), 'a.""'),
    "star as key": (field("a", "*"), 'a."*"'),
    "quotes in a key": (field("a", "it's \"\\"), r'a."it' + r"'s \"\\" + '"'),
    "keywords": (field("AND.or", "NOT"), '"AND"."or"."NOT"'),
    "no word": (field("-a.b c.ü"), '"-a"."b c"."ü"'),
    "function": (state() == "FAILED", 'state() = "FAILED"'),
    "type": (type_of("response").starts_with("acme."), 'type(response) = "acme.*"'),
    "method": (method() == "acme.v1.A.B", 'method() = "acme.v1.A.B"'),
    "cancel requested": (~cancel_requested(), "NOT cancel_requested()"),
    "waiting": (waiting(), "waiting()"),
    "arguments": (call("a.b", field("c"), 1, "d", call("e")), 'a.b(c, 1, "d", e())'),
    "call alone": (call("a", field("b"), 2).holds(), "a(b, 2)"),
    "moments": (end_time().exists(), "end_time():*"),
    "call as a value": (create_time() < call("now"), "create_time() < now()"),
    "search": (search('a* "b"'), r'"a\* \"b\""'),
    "and": (A & B, "a = 1 AND b = 1"),
    "or": (A | B, "a = 1 OR b = 1"),
    "not": (~A, "NOT a = 1"),
    "not not": (~~A, "a = 1"),
    "not not and": (~~(A & B) & C, "a = 1 AND b = 1 AND c = 1"),
    "not and": (~(A & B), "NOT (a = 1 AND b = 1)"),
    "not or": (~(A | B), "NOT (a = 1 OR b = 1)"),
    "not in and": (~A & B, "NOT a = 1 AND b = 1"),
    "flat and": (A & (B & C), "a = 1 AND b = 1 AND c = 1"),
    "flat or": (A | (B | C), "a = 1 OR b = 1 OR c = 1"),
    "or in and": (A & (B | C), "a = 1 AND (b = 1 OR c = 1)"),
    "and in or": (A & B | C, "(a = 1 AND b = 1) OR c = 1"),
    "all": (all_of(A, B | C), "a = 1 AND (b = 1 OR c = 1)"),
    "any": (any_of(A, B & C), "a = 1 OR (b = 1 AND c = 1)"),
    "all of one": (all_of(A | B), "a = 1 OR b = 1"),
    "any of one": (any_of(A & B), "a = 1 AND b = 1"),
    "all of none": (all_of(), ""),
    "everything and": (all_of() & A, "a = 1"),
    "and everything": (A & all_of() & B, "a = 1 AND b = 1"),
    "everything or": (A | all_of(), ""),
    "any of everything": (any_of(all_of()), ""),
}


@pytest.mark.parametrize(("made", "text"), WRITTEN.values(), ids=WRITTEN)
def test_expression_is_written_as_the_expected_filter(made: object, text: str) -> None:
    """The expression has the expected text, which the parser accepts."""
    assert str(made) == text
    parse(text)


VALUES: dict[str, tuple[Any, str]] = {
    "text": ("a b", '"a b"'),
    "empty": ("", '""'),
    "keyword": ("AND", '"AND"'),
    "negative text": ("-5", '"-5"'),
    "star": ("a*b", r'"a\*b"'),
    "double quote": ('"', r'"\""'),
    "single quote": ("'", '"\'"'),
    "backslash": ("\\", r'"\\"'),
    "backslash and star": ("\\*", r'"\\\*"'),
    "white space": ("\n\r\t", r'"\n\r\t"'),
    "control": ("\0\x1f\x7f", r'"\u0000\u001f\u007f"'),
    "astral": ("🎈é\u2028", '"🎈é\u2028"'),
    "true": (True, "true"),
    "false": (False, "false"),
    "int": (-30, "-30"),
    "float": (-1.5e-7, "-1.5e-07"),
    "large float": (1.7976931348623157e308, "1.7976931348623157e+308"),
    "smallest float": (5e-324, "0.0000000000000005e-308"),
    "tiny float": (-2.225073858507e-309, "-0.2225073858507e-308"),
    "negative zero": (-0.0, "-0.0"),
    "decimal": (Decimal("-0.10"), "-0.10"),
    "large decimal": (Decimal("1E+3"), "1E+3"),
    "datetime": (MOMENT, '"2030-01-02T03:04:05.678901Z"'),
    "elsewhere": (
        MOMENT.astimezone(timezone(timedelta(hours=-3, minutes=-30))),
        '"2030-01-02T03:04:05.678901Z"',
    ),
    "first moment": (datetime.min.replace(tzinfo=UTC), '"0001-01-01T00:00:00Z"'),
    "last moment": (datetime.max.replace(tzinfo=UTC), '"9999-12-31T23:59:59.999999Z"'),
    "timestamp": (lro.Timestamp(0, 1), '"1970-01-01T00:00:00.000000001Z"'),
    "timedelta": (timedelta(days=1, microseconds=1), "86400.000001s"),
    "negative timedelta": (timedelta(milliseconds=-1500), "-1.500s"),
    "duration": (lro.Duration(0, -1), "-0.000000001s"),
    "enum": (Level.HIGH, "HIGH"),
    "enum like a keyword": (Stage.NOT, '"NOT"'),
    "enum not in ASCII": (Stage.ÜBER, '"ÜBER"'),
    "enum of texts": (Mood.GLAD, "GLAD"),
    "state": (lro.State.FAILED, "FAILED"),
    "code": (lro.Code.NOT_FOUND, "5"),
    "integer flag": (Bits.ONE | Bits.TWO, "3"),
}


INJECTED = '1 OR done = true OR x = "'


def loud(base: type[Any]) -> type[Any]:
    """Make a subclass whose text and number methods all return a filter, as an injection would."""

    def said(*_: object) -> str:
        return INJECTED

    shown = ("__str__", "__repr__", "__format__", "isoformat", "translate", "upper", "name")
    counted = ("__abs__", "__sub__", "__floordiv__", "__float__", "__int__", "__index__")
    return type("Loud", (base,), dict.fromkeys((*shown, *counted, "split", "is_finite"), said))


class Titled(enum.StrEnum):
    LOW = "1 OR done = true"

    def __str__(self) -> str:
        return INJECTED

    __repr__ = __str__


SUBCLASSES: dict[str, tuple[Any, str]] = {
    "text": (loud(str)('a*"'), r'"a\*\""'),
    "int": (loud(int)(5), "5"),
    "float": (loud(float)("0.5"), "0.5"),
    "datetime": (loud(datetime)(2030, 1, 2, tzinfo=UTC), '"2030-01-02T00:00:00Z"'),
    "timestamp": (loud(lro.Timestamp)(loud(int)(1), loud(int)(0)), '"1970-01-01T00:00:01Z"'),
    "enum of texts": (Titled.LOW, "LOW"),
}

LITERALS = {**VALUES, **{f"subclass: {kind}": case for kind, case in SUBCLASSES.items()}}


@pytest.mark.parametrize(("value", "text"), LITERALS.values(), ids=LITERALS)
def test_values_have_one_literal_form(value: Any, text: str) -> None:
    """Each kind of value has one text form, which the parser reads as one literal.

    A value of a subclass is written like one of the base class; overridden methods are not called.
    """
    assert str(field("a") == value) == f"a = {text}"
    assert str(field("a").has(value)) == f"a:{text}"
    assert str(call("f", value)) == f"f({text})"
    assert isinstance(parse(f"a = {text}"), Comparison)


def test_subclasses_of_str_and_int_are_written_as_such() -> None:
    """Overridden methods of subclasses are ignored in paths, keys, functions and types."""
    text = loud(str)
    assert str(field(text("a.or"), text("NOT"), Titled.LOW, loud(int)(5))) == (
        'a."or"."NOT"."1 OR done = true"."5"'
    )
    assert (str(call(text("f.g"))), str(type_of(text("metadata")))) == ("f.g()", "type(metadata)")
    assert str(search(text("a*"))) == r'"a\*"'
    assert str(field("a").matches(text("a*"))) == 'a = "a*"'
    assert str(field("a").starts_with(text("a*"))) == r'a = "a\**"'


texts = st.text(max_size=60) | st.text(alphabet="*\\\"'ab \n\x00\x7f().:=", max_size=12)


@given(texts, texts)
@example("a*c", "abc")
@example("\\*", "\\x")
@example("", "*")
@example('" OR text != "', "")
def test_filter_with_any_text_compares_as_python_does(value: str, other: str) -> None:
    """A filter that compares a field with a text agrees with the same comparison in Python."""
    text = meta("text")
    for asked, true in {
        text == value: value == other,
        text != value: value != other,
        text < value: other < value,
        text >= value: other >= value,
        text.has(value): value == other,
        text.starts_with(value): other.startswith(value),
        text.ends_with(value): other.endswith(value),
        text.contains(value): value in other,
        text.one_of([value, "x"]): other in (value, "x"),
    }.items():
        assert matches(asked, Sample(text=other)) == true
    assert matches(text == value, Sample(text=value))


@given(texts, texts)
@example("a.b", "a")
@example("*", "x")
def test_map_key_is_one_path_segment_whatever_its_characters(key: str, other: str) -> None:
    """A key of a map or Struct is one path segment, whatever characters the key contains."""
    sample = Sample(labels={other: "red"}, extra={other: {other: None}})
    assert matches(meta("labels", key) == "red", sample) == (key == other)
    assert matches(meta("labels").has(key), sample) == (key == other)
    assert matches(meta("labels", key).exists(), sample) == (key == other)
    assert matches(meta("extra", key, key).exists(), sample) == (key == other)


names = texts.map(lambda text: text.replace(".", "_") or "NOT")


@given(st.lists(names, min_size=1, max_size=4), st.lists(texts, max_size=3))
def test_parser_reads_the_path_that_the_builder_wrote(path: list[str], keys: list[str]) -> None:
    """The parser returns the names and keys from which the path was built."""
    tree = parse(str(field(".".join(path), *keys).exists()))
    assert isinstance(tree, Comparison)
    assert isinstance(tree.left, Member)
    assert [part.text for part in tree.left.parts] == [*path, *keys]


integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
moments = st.datetimes(timezones=st.just(UTC))
spans = st.timedeltas(timedelta(days=-3_652_500), timedelta(days=3_652_500))


def alike(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Draw pairs of values that are often equal."""
    return st.tuples(of, of) | of.map(lambda value: (value, value))


PAIRS = {
    "number": alike(integers),
    "ratio": alike(floats),
    "when": alike(moments),
    "took": alike(spans),
    "stamp": alike(
        st.builds(
            lro.Timestamp,
            st.integers(-62_135_596_800, 253_402_300_799),
            st.integers(0, 999_999_999),
        )
    ),
    "length": alike(
        st.builds(lro.Duration, st.integers(0, 315_575_999_999), st.integers(0, 999_999_999))
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=40)
@given(data=st.data())
def test_ordered_values_are_compared_as_python_does(name: str, data: st.DataObject) -> None:
    """Filters compare numbers, times and durations exactly as Python does."""
    found, value = data.draw(PAIRS[name])
    sample, place = Sample(**{name: found}), meta(name)
    for asked, true in {
        place == value: found == value,
        place != value: found != value,
        place < value: found < value,
        place <= value: found <= value,
        place > value: found > value,
        place >= value: found >= value,
    }.items():
        assert matches(asked, sample) == true


LETTERS = "abcd"
Node = tuple[Expression, str]
"""An expression, and the same condition as Python code."""


def chained(nodes: list[Node], *, every: bool, by_operator: bool) -> Node:
    """Join nodes with "and" or "or", by the operators or by ``all_of`` and ``any_of``."""
    made = [each for each, _ in nodes]
    python = (" and " if every else " or ").join(text for _, text in nodes)
    if by_operator:
        return functools.reduce(operator.and_ if every else operator.or_, made), f"({python})"
    return (all_of if every else any_of)(*made), f"({python})"


trees: st.SearchStrategy[Node] = st.recursive(
    st.sampled_from(LETTERS).map(lambda letter: (meta("extra", letter).is_true(), letter)),
    lambda inner: (
        inner.map(lambda node: (~node[0], f"(not {node[1]})"))
        | st.builds(
            chained,
            st.lists(inner, min_size=1, max_size=4),
            every=st.booleans(),
            by_operator=st.booleans(),
        )
    ),
    max_leaves=25,
)
CASES = [dict(zip(LETTERS, map(bool, map(int, f"{n:04b}")), strict=True)) for n in range(16)]


@given(trees)
def test_nested_logic_matches_the_same_records_as_in_python(node: Node) -> None:
    """A nested expression matches the same records as the same condition in Python.

    The text of the expression is also correct if AND binds tighter than OR, as in Python.
    """
    made, meant = node
    compiled = compile_filter(str(made), metadata=[SAMPLE], response=[])
    written = str(made).replace("metadata.extra.", "").replace(" = true", "")
    for keyword in ("AND", "OR", "NOT"):
        written = written.replace(keyword, keyword.lower())
    for truths in CASES:
        expected = eval(meant, {}, truths)
        assert compiled.matches(Row(metadata=TYPES.pack(Sample(extra=truths)))) == expected
        assert eval(written, {}, truths) == expected


@given(trees, trees)
def test_expressions_are_compared_hashed_and_pickled_by_their_text(one: Node, other: Node) -> None:
    """Expressions with equal texts are equal; all expressions can be hashed, copied and pickled."""
    made, another = one[0], other[0]
    assert (made == another) == (str(made) == str(another))
    assert len({made, another}) == len({str(made), str(another)})
    again = pickle.loads(pickle.dumps(made))
    assert (again, copy.deepcopy(made)) == (made, made)
    assert str(~again) == str(~made)
    assert made != str(made)


def test_repr_shows_the_text() -> None:
    """The repr shows the text. Expressions and operands are immutable."""
    for made in (A, field("a")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            made.text = "b = 1"  # type: ignore[misc]
    assert repr(A & ~B) == "<Expression a = 1 AND NOT b = 1>"
    assert repr(field("a")) == "<Operand a>"
    assert repr(state()) == "<FunctionCall state()>"


MISUSES: dict[str, tuple[Callable[[], object], str]] = {
    "and": (lambda: A and B, "write a & b"),
    "or": (lambda: A or B, "a | b"),
    "not": (lambda: not A, "~a"),
    "chain": (lambda: 1 < field("a") < 5, r"\(low < x\) & \(x < high\)"),
    "in": (lambda: field("a") in (1, 2), r"x\.one_of\(values\)"),
    "turned in": (lambda: 1 in field("a"), r"^a is read by the server .* write x\.has\(value\)"),
    "entry": (lambda: field("a")["b.c"], r"write field\(path, key\)"),
    "turned operand": (lambda: ~state(), r"~x\.exists\(\) or ~\(x == value\)"),
    "walked over": (lambda: list(field("a")), r"write x\.has\(value\) to ask for an element"),
    "unpacked": (lambda: call("f", *field("a")), r"x\.exists\(\) for any"),
    "path": (lambda: field(None), "expected names joined by dots, got None of type NoneType"),
    "name of a function": (lambda: call(5), "expected the name of a function, got 5 of type int"),
    "type": (lambda: type_of(3.5), "expected 'metadata' or 'response', got 3.5 of type float"),
    "seconds": (lambda: field("a") == lro.Duration("1 OR b"), "whole numbers, got '1 OR b'"),
    "nanos": (lambda: field("a") == lro.Timestamp(1, 0.5), "whole numbers, got 0.5"),
    "operand as a bool": (lambda: not field("a"), "a is neither true nor false here: compare it"),
    "operand joined": (lambda: A & field("b"), "unsupported operand"),
    "none": (lambda: field("a") == None, r"with str, .* not with None .*~x\.exists\(\)"),  # noqa: E711
    "list": (lambda: field("a") == [1], r"not with \[1\] of type list.*one_of"),
    "date": (lambda: field("a") > date(2030, 1, 1), "of type date"),
    "flag": (lambda: field("a") == Marks.ONE, "of type Marks"),
    "field": (lambda: field("a") == field("b"), "<Operand b> of type Operand"),
    "expression": (lambda: field("a") == A, "<Expression a = 1> of type Expression"),
    "pattern": (lambda: field("a").matches(5), "expected a text, got 5 of type int"),
    "search": (lambda: search(5), "expected a text"),
    "key": (lambda: field("a", 1.5), "expected a text, got 1.5"),
    "one of a text": (lambda: field("a").one_of("abc"), "several values, got one: 'abc'"),
    "all of operands": (lambda: all_of(field("a")), "expected an Expression.* got <Operand a>"),
    "argument": (lambda: call("f", None), "not with None"),
    "hash": (lambda: {field("a")}, "unhashable"),
}


class Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None


IMPOSSIBLE: dict[str, tuple[Callable[[], object], str]] = {
    "nan": (lambda: field("a") == float("nan"), "finite numbers, got nan"),
    "infinite": (lambda: field("a") < float("-inf"), "finite numbers, got -inf"),
    "decimal": (lambda: field("a") < Decimal("sNaN"), "finite numbers"),
    "naive": (lambda: create_time() > datetime(2030, 1, 1), "no time zone"),
    "no offset": (
        lambda: create_time() > datetime(2030, 1, 1, tzinfo=Nowhere()),
        "one that gives no offset: an aware datetime is wanted",
    ),
    "before": (
        lambda: create_time() > datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        "not a valid timestamp",
    ),
    "timestamp": (lambda: create_time() > lro.Timestamp(0, -1), "not a valid timestamp"),
    "timedelta": (lambda: field("a") == timedelta.max, "not a valid duration"),
    "duration": (lambda: field("a") == lro.Duration(1, -1), "not a valid duration"),
    "surrogate": (lambda: field("a") == "ab\ud800", "half of a surrogate pair at 2 cannot"),
    "surrogate in a key": (lambda: field("a", "\udfff"), "half of a surrogate pair"),
    "no name": (lambda: field(""), "expected names joined by dots, got ''"),
    "empty name": (lambda: field("a..b"), r"got 'a\.\.b'"),
    "function": (lambda: call("a b"), "expected the name of a function, got 'a b'"),
    "keyword": (lambda: call("NOT", 1), "expected the name of a function"),
    "one of nothing": (lambda: field("a").one_of([]), "expected at least one alternative"),
    "any of nothing": (lambda: any_of(), "expected at least one alternative"),
    "not everything": (lambda: ~all_of(), "no filter matches nothing"),
}


REFUSED = {
    **{kind: (TypeError, *case) for kind, case in MISUSES.items()},
    **{f"value: {kind}": (ValueError, *case) for kind, case in IMPOSSIBLE.items()},
}


@pytest.mark.parametrize(("error", "misuse", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_python_operator_in_a_filter_is_a_type_error(
    error: type[Exception], misuse: Callable[[], object], message: str
) -> None:
    """Operators that Python would interpret differently raise an error with the correct form."""
    with pytest.raises(error, match=message):
        misuse()


@attrs.frozen
class Order:
    text: str = ""


def test_list_sends_an_expression_as_its_text(face: Face) -> None:
    """``list`` sends the text of an expression. An empty expression matches everything."""
    service = lro.Service(MemoryStore(), InlineExecutor(), domain="acme.test")

    @service.method("acme.filters.v1.Samples.Take")
    def take(request: Order, job: lro.Job[Sample]) -> Sample:
        job.report(Sample(text=request.text))
        return Sample(text=request.text)

    for text in ('a "quoted" one', "a*c", "abc"):
        take.start(Order(text=text))
    transport = {"sync": LocalTransport, "async": AsyncLocalTransport}[face.name]
    client = face.client(transport=transport(service))
    wanted = meta("text") == "a*c"
    assert len(list(client.list("", wanted))) == 1
    assert list(client.list("", wanted)) == list(client.list("", str(wanted)))
    assert len(list(client.list(filter=meta("text").matches("a*c")))) == 2
    assert len(list(client.list(filter=field("response.text") == 'a "quoted" one'))) == 1
    assert len(list(client.list(filter=all_of()))) == 3
    assert len(list(client.list(lro.wire.ListOperationsRequest(filter=str(wanted)), all_of()))) == 1
    service.close()
