r"""Filters of lists (AIP-160) built from Python values, which are quoted as they need it.

An operand, such as ``field("metadata.dataset")`` or ``state()``, compared with a value gives an
:class:`Expression`; ``&``, ``|`` and ``~`` join expressions; ``str()`` is the text that a server
reads, and :meth:`lro_client.Client.list` takes the expression as it is::

    wanted = (state() == "FAILED") & (field("metadata.dataset") == dataset)

Whatever stands in ``dataset`` stays one value: nothing in it can end the quotes.

The text is plain AIP-160, so that other services read it too. Parentheses stand wherever AND and
OR meet, since not every service lets OR bind tighter, as AIP-160 does. Two things differ from
service to service: which functions there are (:func:`call` writes any), and how text says that a
character is meant as it is. AIP-160 names no escapes; a quote and a backslash get a backslash, as
everywhere, and a star in a value gets one too, because AIP-160 has stars as wildcards. A service
that knows no ``\*`` sees the backslash.

Names, types and lengths are checked by the server, which knows them, not here (spec §7.15, §7.16).
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any, ClassVar, Final, Literal, NoReturn, TypeAlias

import attrs

from lro import Code, Duration, Timestamp, TypeRegistry
from lro.errors import EncodingError

Plain: TypeAlias = (
    str | bool | int | float | Decimal | datetime | timedelta | Timestamp | Duration | enum.Enum
)
"""The types of values that have a literal form."""

_ALLOWED: Final = (
    "str, bool, int, float, Decimal, datetime, timedelta, lro.Timestamp, lro.Duration,"
    " a member of an enum"
)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPES: Final[Mapping[int, str]] = {
    **{code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)},
    **{ord(char): "\\" + char for char in '"\\'},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
_STAR: Final[Mapping[int, str]] = {ord("*"): "\\*"}
_LEAST_EXPONENT: Final = -308
"""No smaller one is in the language (spec §7.10(2)), but there are smaller floats."""
_EXACT: Final = Context(prec=40)
_JSON: Final = TypeRegistry()


def literal(value: Plain) -> str:
    """A value as a filter writes it.

    Raises:
        TypeError: It is not a value of filters.
        ValueError: It cannot be written, or is out of the range of its type.
    """
    match value:
        case Code():
            return str(value.value)  # error.code is a number, not an enum
        case enum.Enum() if value.name and not isinstance(value, enum.Flag):
            name = text_of(value.name, "an enum's member with a text as its name")
            return name if is_name(name) else f'"{escaped(name)}"'
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{escaped(value)}"'
        case int():
            return int.__repr__(value)
        case float() | Decimal():
            return _number(value)
        case datetime() | timedelta() | Timestamp() | Duration():
            return _time(value)
    raise not_a_value(value)


def not_a_value(value: object) -> TypeError:
    """The error for a value that has no literal."""
    found = f"{value!r} of type {type(value).__name__}"
    wanted = f"a filter compares with {_ALLOWED} or a call, not with {found}"
    return TypeError(f"{wanted}; what is absent is found by ~x.exists(), several by x.one_of()")


def text_of(value: str, wanted: str = "a text") -> str:
    """Return the text as a plain str.

    Raises:
        TypeError: It is not a text; ``wanted`` says what should stand here.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected {wanted}, got {value!r} of type {type(value).__name__}")
    return str.__str__(value)


def pattern(text: str) -> str:
    """A string all of whose stars are wildcards."""
    return f'"{_unstarred(text)}"'


def escaped(text: str) -> str:
    """Return the text as it stands between double quotes, with stars escaped.

    Raises:
        TypeError: It is not a text.
        ValueError: It holds half of a surrogate pair.
    """
    return _unstarred(text).translate(_STAR)


def step(key: str | int) -> str:
    """One step of a path, quoted unless it is a plain name; stars mean nothing in it.

    Raises:
        TypeError, ValueError: As :func:`escaped`.
    """
    if isinstance(key, int):
        return f'"{str(key).lower() if isinstance(key, bool) else int.__repr__(key)}"'
    name = text_of(key)
    return name if is_name(name) else f'"{_unstarred(name)}"'


def is_name(text: str) -> bool:
    """Return True if every service accepts the text unquoted: it is not a keyword in any case."""
    return bool(_IDENTIFIER.fullmatch(text)) and text.upper() not in _KEYWORDS


def _unstarred(text: str) -> str:
    text = text_of(text)
    half = _SURROGATE.search(text)
    if half:
        raise ValueError(f"half of a surrogate pair at {half.start()} cannot be written: {text!r}")
    return text.translate(_ESCAPES)


def _number(value: float | Decimal) -> str:
    if not (Decimal.is_finite(value) if isinstance(value, Decimal) else math.isfinite(value)):
        raise ValueError(f"a filter compares only with finite numbers, got {value!r}")
    if isinstance(value, Decimal):
        return Decimal.__str__(value)
    text = float.__repr__(value)
    digits, _, exponent = text.partition("e")
    if not exponent or int(exponent) >= _LEAST_EXPONENT:
        return text
    shifted = _EXACT.scaleb(Decimal(digits), int(exponent) - _LEAST_EXPONENT)
    return f"{shifted:f}e{_LEAST_EXPONENT}"


def _time(value: datetime | timedelta | Timestamp | Duration) -> str:
    if isinstance(value, datetime):
        plain: Timestamp | Duration = Timestamp.from_datetime(_aware(value))
    elif isinstance(value, timedelta):
        plain = Duration.from_timedelta(timedelta.__add__(value, timedelta()))
    elif isinstance(value, Timestamp):
        plain = Timestamp(_whole(value.seconds), _whole(value.nanos))
    else:
        plain = Duration(_whole(value.seconds), _whole(value.nanos))
    try:
        text = _JSON.dump(plain)
    except EncodingError as exc:
        raise ValueError(str(exc)) from None
    return str(text) if isinstance(plain, Duration) else f'"{text}"'


def _aware(value: datetime) -> datetime:
    """Return the moment as a plain datetime, with its offset as the time zone."""
    plain = datetime.fromisoformat(datetime.isoformat(value))
    if plain.tzinfo is None:
        raise ValueError(
            f"{value!r} has no time zone, or one that gives no offset: an aware datetime is wanted,"
            " such as datetime.now(UTC)"
        )
    return plain


def _whole(value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"seconds and nanos are whole numbers, got {value!r}")
    return int.__int__(value)


__all__ = [
    "Expression",
    "FunctionCall",
    "Operand",
    "Value",
    "all_of",
    "any_of",
    "call",
    "cancel_requested",
    "create_time",
    "end_time",
    "field",
    "method",
    "search",
    "state",
    "type_of",
]


class _Kind(enum.Enum):
    """The operator of an expression, which decides where parentheses are needed."""

    TEST = ""
    NOT = "NOT "
    AND = " AND "
    OR = " OR "


@attrs.frozen(repr=False)
class Expression:
    """A filter, or a part of one; ``str()`` or ``text`` is how it is written.

    Made by comparing operands, not by hand. Immutable; two are equal if their texts are. It is
    neither true nor false: ``and``, ``or``, ``not``, ``in`` and chains such as ``1 < x < 5`` raise
    a TypeError.
    """

    text: str
    _kind: _Kind = attrs.field(default=_Kind.TEST, eq=False)
    _items: tuple[Expression, ...] = attrs.field(default=(), eq=False)

    def __and__(self, other: Expression) -> Expression:
        return all_of(self, other) if isinstance(other, Expression) else NotImplemented

    def __or__(self, other: Expression) -> Expression:
        return any_of(self, other) if isinstance(other, Expression) else NotImplemented

    def __invert__(self) -> Expression:
        """Return the expression that matches everything that this one does not match (spec §7.5).

        Raises:
            ValueError: This matches everything, and no filter matches nothing.
        """
        if self._kind is _Kind.NOT:
            return self._items[0]
        if not self.text:
            raise ValueError("this matches everything, and no filter matches nothing")
        return Expression(_Kind.NOT.value + self._inside(), _Kind.NOT, (self,))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a filter is neither true nor false here: write a & b for 'a and b', a | b for 'a or"
            " b', ~a for 'not a', x.one_of(values) for 'x in values', and (low < x) & (x < high)"
            " for 'low < x < high'"
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Expression {self.text}>"

    def _inside(self) -> str:
        """Return the text inside another expression; AND and OR get parentheses in each other."""
        return f"({self.text})" if self._kind in (_Kind.AND, _Kind.OR) else self.text


def _refusing(advice: str) -> Any:
    """A method that an operand has only to say what to write instead."""

    def refuse(operand: Operand, *_: object) -> NoReturn:
        raise TypeError(f"{operand.text} is read by the server and has no value here: {advice}")

    return refuse


@attrs.frozen(eq=False, repr=False)
class Operand:
    """The left side of a comparison: a field or a function, written as ``text``.

    ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=`` with a :data:`Value` give an
    :class:`Expression`. So do the methods. A comparison with something that an operation does not
    have is false, also by ``!=``; ``~(x == value)`` is true of it (spec §7.5, §7.8).

    All of them raise a TypeError for what is not a :data:`Value`, and a ValueError for a value that
    cannot be written: a float that is not finite, a datetime without a time zone, a timestamp or
    duration out of range, half of a surrogate pair.
    """

    text: str

    def __eq__(self, value: Value) -> Expression:  # type: ignore[override]  # builds, not a bool
        return self._compared("=", value)

    def __ne__(self, value: Value) -> Expression:  # type: ignore[override]  # builds, not a bool
        return self._compared("!=", value)

    def __lt__(self, value: Value) -> Expression:
        return self._compared("<", value)

    def __le__(self, value: Value) -> Expression:
        return self._compared("<=", value)

    def __gt__(self, value: Value) -> Expression:
        return self._compared(">", value)

    def __ge__(self, value: Value) -> Expression:
        return self._compared(">=", value)

    def has(self, value: Value) -> Expression:
        """``x:value``: a list has this element, or a map, Struct or message this key or field."""
        return Expression(f"{self.text}:{_written(value)}")

    def exists(self) -> Expression:
        """``x:*``: it is there; a scalar that is always there is not its default (spec §7.12)."""
        return Expression(f"{self.text}:*")

    def is_true(self) -> Expression:
        """``x = true``, for style guides that forbid ``== True``."""
        return self == True  # noqa: E712  # builds the comparison

    def is_false(self) -> Expression:
        """``x = false``; unlike ``~x.is_true()`` it is false where there is no x."""
        return self == False  # noqa: E712  # builds the comparison

    def matches(self, text: str) -> Expression:
        """``x = "a*b"``: text in which each ``*`` stands for any text, also none (spec §7.11).

        Every other character stands for itself. For a pattern that holds values use
        :meth:`starts_with`, :meth:`ends_with` and :meth:`contains`, which take their stars as
        stars.
        """
        return Expression(f"{self.text} = {pattern(text)}")

    def starts_with(self, text: str) -> Expression:
        """``x = "text*"``: text that begins so."""
        return Expression(f'{self.text} = "{escaped(text)}*"')

    def ends_with(self, text: str) -> Expression:
        """``x = "*text"``: text that ends so."""
        return Expression(f'{self.text} = "*{escaped(text)}"')

    def contains(self, text: str) -> Expression:
        """``x = "*text*"``: text with this in it. For elements of lists see :meth:`has`."""
        return Expression(f'{self.text} = "*{escaped(text)}*"')

    def one_of(self, values: Iterable[Value]) -> Expression:
        """``x = a OR x = b``: one of several values, each compared by itself.

        AIP-160 would have it shorter, ``x = (a OR b)``, which many services do not read.

        Raises:
            ValueError: There are no values: a filter that matches nothing cannot be written.
        """
        if isinstance(values, str | bytes):
            raise TypeError(f"one_of takes several values, got one: {values!r}")
        return any_of(*[self == value for value in values])

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self.text} is neither true nor false here: compare it, as in x == value, or write"
            " x.is_true(), x.exists() or x.one_of(values)"
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"

    # None shows type checkers that there are no such operators; Python's own error says no more.
    __contains__: ClassVar[None] = _refusing(
        "write x.has(value) for an element or a key in x, x.contains(text) for a text in x"
    )
    __getitem__: ClassVar[None] = _refusing("write field(path, key) for one entry of a map")
    __invert__: ClassVar[None] = _refusing(
        "~ is for expressions: write x.is_false(), ~x.is_true(), ~x.exists() or ~(x == value)"
    )
    __iter__: ClassVar[None] = _refusing(
        "write x.has(value) to ask for an element, x.exists() for any"
    )

    def _compared(self, operator: str, value: Value) -> Expression:
        return Expression(f"{self.text} {operator} {_written(value)}")


@attrs.frozen(eq=False, repr=False)
class FunctionCall(Operand):
    """A function of the service, which is compared, or stands alone, or is itself a value."""

    def holds(self) -> Expression:
        """The function standing alone, for one that gives a bool."""
        return Expression(self.text)


Value: TypeAlias = Plain | FunctionCall
"""The values that a filter can compare with.

An enum's member is written by its name, as messages have it; a :class:`lro.Code` by its number, as
``error.code`` has it. A datetime must know its time zone, and is written in UTC to the microsecond.
None is not a value: what is absent is found by ``~x.exists()``. Quotes do not make a type: in a
Struct, ``"5"`` is also the number 5 (spec §7.8(5), §7.10(1)).
"""


def _written(value: Value) -> str:
    if isinstance(value, Operand):
        if isinstance(value, FunctionCall):
            return value.text
        raise not_a_value(value)
    return literal(value)


def field(path: str, *keys: str | int) -> Operand:
    """A field: ``path`` of names joined by dots, then keys of maps and Structs.

    A key is one step, whatever is in it: ``field("metadata.labels", "a.b")`` is
    ``metadata.labels."a.b"``. A map's integer or bool key may be given as such.

    Raises:
        TypeError: The path is not a text, or a key neither a text nor an integer.
        ValueError: A name of the path is empty, or a step has half of a surrogate pair.
    """
    names = text_of(path, "names joined by dots").split(".")
    if not all(names):
        raise ValueError(f"expected names joined by dots, got {path!r}")
    return Operand(".".join(map(step, (*names, *keys))))


def call(name: str, *args: Value | Operand) -> FunctionCall:
    """A function, for services that have some of their own: ``call("math.abs", field("x")) > 2``.

    Arguments are values, fields and other calls.

    Raises:
        TypeError, ValueError: An argument is not a value; or a function cannot have this name.
    """
    plain = text_of(name, "the name of a function")
    if not all(map(is_name, plain.split("."))):
        raise ValueError(f"expected the name of a function, got {name!r}")
    texts = [arg.text if isinstance(arg, Operand) else literal(arg) for arg in args]
    return FunctionCall(f"{plain}({', '.join(texts)})")


def search(text: str) -> Expression:
    """The text anywhere in what the service searches, in any letter case (spec §7.6)."""
    return Expression(f'"{escaped(text)}"')


def state() -> FunctionCall:
    """IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED; our function (spec §7.14)."""
    return FunctionCall("state()")


def create_time() -> FunctionCall:
    """The time of creation; a function of our servers (spec §7.14)."""
    return FunctionCall("create_time()")


def end_time() -> FunctionCall:
    """The time of the end, absent before it; a function of our servers (spec §7.14)."""
    return FunctionCall("end_time()")


def cancel_requested() -> Expression:
    """Its work was asked to stop; our function, a test by itself (spec §7.14)."""
    return FunctionCall("cancel_requested()").holds()


def method() -> FunctionCall:
    """The full name of the operation's method; our function (spec §7.14)."""
    return FunctionCall("method()")


def type_of(message: Literal["metadata", "response"]) -> FunctionCall:
    """The full name of the type of the metadata or response; our function (spec §7.14)."""
    return call("type", field(text_of(message, "'metadata' or 'response'")))


def all_of(*expressions: Expression) -> Expression:
    """Join expressions by AND; without any, return the empty filter, which matches everything."""
    return _joined(_Kind.AND, expressions)


def any_of(*expressions: Expression) -> Expression:
    """At least one of them, joined by OR.

    Raises:
        ValueError: There are none, and a filter that matches nothing cannot be written.
    """
    if not expressions:
        raise ValueError("expected at least one alternative: no filter matches nothing")
    return _joined(_Kind.OR, expressions)


def _joined(kind: _Kind, expressions: Iterable[Expression]) -> Expression:
    items: list[Expression] = []
    for each in expressions:
        if not isinstance(each, Expression):
            raise TypeError(f"expected an Expression, such as state() == 'FAILED', got {each!r}")
        if not each.text and kind is _Kind.OR:
            return each
        items += each._items if each._kind is kind else (each,)
    if len(items) == 1:
        return items[0]
    return Expression(kind.value.join(item._inside() for item in items), kind, tuple(items))
