r"""Build filters for lists of operations (AIP-160) from Python values, quoted if necessary.

Compare an operand, such as ``field("metadata.dataset")`` or ``state()``, with a value to get an
:class:`Expression`. ``&``, ``|`` and ``~`` join expressions, ``str()`` returns the text that a
server reads, and :meth:`lro_client.Client.list` accepts expressions::

    wanted = (state() == "FAILED") & (field("metadata.dataset") == dataset)

``dataset`` always stays a single value, whatever it contains: no character in it ends the quotes.

The text is plain AIP-160, so other services can read it too. Parentheses separate AND from OR,
because OR binds tighter than AND in AIP-160, but not in every service. Services differ in two
things: their functions, all of which :func:`call` can call, and their escapes, which AIP-160 does
not define. This module escapes quotes and backslashes with a backslash, as usual. It also escapes
stars in values, because a star is a wildcard in AIP-160. A service that does not know ``\*`` takes
the backslash literally.

The server checks names, types and lengths, because only it knows them (spec §7.15, §7.16).
"""

from __future__ import annotations

import enum
import functools
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
"""The smallest exponent of a number in a filter (spec §7.10(2)). Floats can have smaller ones."""
_EXACT: Final = Context(prec=40)


def literal(value: Plain) -> str:
    """Return the text of a value in a filter.

    Raises:
        TypeError: Filters have no values of this type.
        ValueError: The value cannot be written, or is out of the range of its type.
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
    """Return the error for a value that has no literal form."""
    found = f"{value!r} of type {type(value).__name__}"
    wanted = f"a filter compares with {_ALLOWED} or a call, not with {found}"
    return TypeError(f"{wanted}; what is absent is found by ~x.exists(), several by x.one_of()")


def text_of(value: str, wanted: str = "a text") -> str:
    """Return a string as a plain ``str``, even if it is an instance of a subclass.

    Raises:
        TypeError: The value is not a string. ``wanted`` describes the expected value.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected {wanted}, got {value!r} of type {type(value).__name__}")
    return str.__str__(value)


def pattern(text: str) -> str:
    """Return a quoted string in which all stars are wildcards."""
    return f'"{_unstarred(text)}"'


def escaped(text: str) -> str:
    """Return a text, escaped for use between double quotes. Stars are escaped too.

    Raises:
        TypeError: The value is not a string.
        ValueError: The text has half of a surrogate pair.
    """
    return _unstarred(text).translate(_STAR)


def step(key: str | int) -> str:
    """Return one step of a path, quoted unless it is a plain name. Stars in it are not wildcards.

    Raises:
        TypeError: The key is neither a string nor an integer.
        ValueError: The key has half of a surrogate pair.
    """
    if isinstance(key, int):
        return f'"{str(key).lower() if isinstance(key, bool) else int.__repr__(key)}"'
    name = text_of(key)
    return name if is_name(name) else f'"{_unstarred(name)}"'


def is_name(text: str) -> bool:
    """Return True if a text needs no quotes: it is a name, and not a keyword in any letter case."""
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
        text = _types().dump(plain)
    except EncodingError as exc:
        raise ValueError(str(exc)) from None
    return str(text) if isinstance(plain, Duration) else f'"{text}"'


@functools.cache
def _types() -> TypeRegistry:
    return TypeRegistry()


def _aware(value: datetime) -> datetime:
    """Return a time as a plain datetime, with its UTC offset as the time zone."""
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
    "waiting",
]


class _Kind(enum.Enum):
    """The operator of an expression, which decides where parentheses are needed."""

    TEST = ""
    NOT = "NOT "
    AND = " AND "
    OR = " OR "


@attrs.frozen(repr=False)
class Expression:
    """A filter or a part of a filter. ``str()`` and ``text`` return its text.

    Compare operands to make expressions. They are immutable, and equal if their texts are equal. An
    expression is neither true nor false: ``and``, ``or``, ``not``, ``in`` and chains such as
    ``1 < x < 5`` raise a TypeError.
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
            ValueError: This expression matches everything, and a filter that matches nothing cannot
                be written.
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
        """Return the text for use inside another expression. AND and OR get parentheses."""
        return f"({self.text})" if self._kind in (_Kind.AND, _Kind.OR) else self.text


def _refusing(advice: str) -> Any:
    """Make a method that raises a TypeError with advice on what to write instead."""

    def refuse(operand: Operand, *_: object) -> NoReturn:
        raise TypeError(f"{operand.text} is read by the server and has no value here: {advice}")

    return refuse


@attrs.frozen(eq=False, repr=False)
class Operand:
    """The left side of a comparison: a field or a function call. ``text`` is its text in a filter.

    ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=`` with a :data:`Value` return an
    :class:`Expression`, as do the methods. If an operation lacks the field, every comparison is
    false, even ``!=``, but ``~(x == value)`` is true (spec §7.5, §7.8).

    Operators and methods raise a TypeError for an object that is not a :data:`Value`, and a
    ValueError for a value that cannot be written: a float that is not finite, a datetime without a
    time zone, a timestamp or duration out of range, or half of a surrogate pair.
    """

    text: str

    def __eq__(self, value: Value) -> Expression:  # type: ignore[override]  # returns no bool
        return self._compared("=", value)

    def __ne__(self, value: Value) -> Expression:  # type: ignore[override]  # returns no bool
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
        """``x:value``: x contains the value.

        The value is an element of the list x, or a key of the map, Struct or message x.
        """
        return Expression(f"{self.text}:{_written(value)}")

    def exists(self) -> Expression:
        """``x:*``: x is set.

        A scalar without presence counts as set if it differs from its default (spec §7.12).
        """
        return Expression(f"{self.text}:*")

    def is_true(self) -> Expression:
        """``x = true``, for style guides that forbid ``== True``."""
        return self == True  # noqa: E712  # makes an Expression

    def is_false(self) -> Expression:
        """``x = false``. Unlike ``~x.is_true()``, it does not match an operation without x."""
        return self == False  # noqa: E712  # makes an Expression

    def matches(self, text: str) -> Expression:
        """``x = "a*b"``: each ``*`` matches any text, even the empty text (spec §7.11).

        Every other character matches itself. To match a value in which stars are not wildcards, use
        :meth:`starts_with`, :meth:`ends_with` or :meth:`contains`.
        """
        return Expression(f"{self.text} = {pattern(text)}")

    def starts_with(self, text: str) -> Expression:
        """``x = "text*"``: x begins with the text."""
        return Expression(f'{self.text} = "{escaped(text)}*"')

    def ends_with(self, text: str) -> Expression:
        """``x = "*text"``: x ends with the text."""
        return Expression(f'{self.text} = "*{escaped(text)}"')

    def contains(self, text: str) -> Expression:
        """``x = "*text*"``: x contains the text. For elements of lists see :meth:`has`."""
        return Expression(f'{self.text} = "*{escaped(text)}*"')

    def one_of(self, values: Iterable[Value]) -> Expression:
        """``x = a OR x = b``: x is one of several values.

        AIP-160 has a shorter form, ``x = (a OR b)``, which many services do not accept.

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

    # The type None tells type checkers that an operator does not exist. The values are methods
    # whose errors give advice, which Python's own errors do not.
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
    """A call of a service's function, for use as an operand, an expression or a value."""

    def holds(self) -> Expression:
        """Return the call as a whole expression, for a function that returns a bool."""
        return Expression(self.text)


Value: TypeAlias = Plain | FunctionCall
"""The values that a filter can compare with.

An enum member is written as its name, as in messages. A :class:`lro.Code` is written as its
number, as in ``error.code``. A datetime must have a time zone, and is written in UTC with
microseconds. None is not a value: use ``~x.exists()`` to find operations without a field. Quotes
do not decide the type: in a Struct, ``"5"`` also matches the number 5 (spec §7.8(5), §7.10(1)).
"""


def _written(value: Value) -> str:
    if isinstance(value, Operand):
        if isinstance(value, FunctionCall):
            return value.text
        raise not_a_value(value)
    return literal(value)


def field(path: str, *keys: str | int) -> Operand:
    """Return a field: a ``path`` of names joined by dots, then keys of maps and Structs.

    A key is always a single step: ``field("metadata.labels", "a.b")`` is
    ``metadata.labels."a.b"``. Keys of maps can also be integers or bools.

    Raises:
        TypeError: The path is not a string, or a key is neither a string nor an integer.
        ValueError: A name of the path is empty, or a step has half of a surrogate pair.
    """
    names = text_of(path, "names joined by dots").split(".")
    if not all(names):
        raise ValueError(f"expected names joined by dots, got {path!r}")
    return Operand(".".join(map(step, (*names, *keys))))


def call(name: str, *args: Value | Operand) -> FunctionCall:
    """Return a call of a service's own function, as in ``call("math.abs", field("x")) > 2``.

    Arguments are values, fields and other calls.

    Raises:
        TypeError, ValueError: An argument is not a value, or the name is not valid.
    """
    plain = text_of(name, "the name of a function")
    if not all(map(is_name, plain.split("."))):
        raise ValueError(f"expected the name of a function, got {name!r}")
    texts = [arg.text if isinstance(arg, Operand) else literal(arg) for arg in args]
    return FunctionCall(f"{plain}({', '.join(texts)})")


def search(text: str) -> Expression:
    """Search for the text, in any letter case, in the fields that the service chose (spec §7.6)."""
    return Expression(f'"{escaped(text)}"')


def state() -> FunctionCall:
    """The state, on this library's servers (spec §7.14).

    The state is IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED.
    """
    return FunctionCall("state()")


def create_time() -> FunctionCall:
    """The time of creation, on this library's servers (spec §7.14)."""
    return FunctionCall("create_time()")


def end_time() -> FunctionCall:
    """The end time, absent before the end, on this library's servers (spec §7.14)."""
    return FunctionCall("end_time()")


def cancel_requested() -> Expression:
    """Match operations whose cancel was requested, on this library's servers (spec §7.14)."""
    return FunctionCall("cancel_requested()").holds()


def waiting() -> Expression:
    """Match operations whose work waits, on this library's servers (spec §7.14)."""
    return FunctionCall("waiting()").holds()


def method() -> FunctionCall:
    """The full name of the operation's method, on this library's servers (spec §7.14)."""
    return FunctionCall("method()")


def type_of(message: Literal["metadata", "response"]) -> FunctionCall:
    """The full type name of the metadata or response, on this library's servers (spec §7.14)."""
    return call("type", field(text_of(message, "'metadata' or 'response'")))


def all_of(*expressions: Expression) -> Expression:
    """Join expressions by AND. Without expressions, return a filter that matches everything."""
    return _joined(_Kind.AND, expressions)


def any_of(*expressions: Expression) -> Expression:
    """Join expressions by OR: at least one must match.

    Raises:
        ValueError: There are no expressions: a filter that matches nothing cannot be written.
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
