"""Types of filters: comparisons of operands are expressions, which List accepts."""

# Each expected error has an ignore comment; mypy and pyright report unused comments.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from decimal import Decimal
from typing import assert_type

import lro
from lro_client import AsyncClient, Client
from lro_client.filters import (
    Expression,
    FunctionCall,
    Operand,
    Value,
    all_of,
    any_of,
    call,
    cancel_requested,
    create_time,
    field,
    method,
    search,
    state,
    type_of,
    waiting,
)


class Stage(enum.Enum):
    QUEUED = 0


def operands(keys: list[str]) -> None:
    """Fields and function calls are operands, but only function calls are also values."""
    assert_type(field("metadata.labels", *keys, 5), Operand)
    assert_type(call("f", field("a"), 5, call("g")), FunctionCall)
    assert_type(create_time() > call("now"), Expression)
    assert_type(method() == "acme.v1.Works.Copy", Expression)
    type_of("error")  # type: ignore[arg-type]
    field(5)  # type: ignore[arg-type]
    _ = field("a") < field("b")  # type: ignore[operator]


def comparisons(value: Value, since: datetime, span: timedelta) -> None:
    """A comparison is an expression, with the operand on either side."""
    operand = field("a")
    assert_type(operand == value, Expression)
    assert_type(operand != Stage.QUEUED, Expression)
    assert_type(since <= create_time(), Expression)
    assert_type(operand > span, Expression)
    assert_type(operand < Decimal(1), Expression)
    assert_type(operand >= lro.Duration(1), Expression)
    assert_type(operand.one_of([1, 2]), Expression)
    assert_type(operand.has("b"), Expression)
    assert_type(operand.matches("a*"), Expression)
    operand.has(None)  # type: ignore[arg-type]
    operand.one_of([None])  # type: ignore[list-item]
    _ = operand < [1]  # type: ignore[operator]


def joined(one: Expression, other: Expression) -> None:
    """``&`` and ``|`` accept expressions, but neither strings nor operands."""
    assert_type(one & ~other | cancel_requested() | waiting(), Expression)
    assert_type(all_of(one, any_of(other, search("a"))), Expression)
    assert_type(one == other, bool)
    _ = one & "done = true"  # type: ignore[operator]
    _ = one | state()  # type: ignore[operator]


def lists(client: Client, asynchronous: AsyncClient, wanted: Expression) -> None:
    """Both clients accept an expression as the filter, but not an operand."""
    client.list("projects/p", wanted)
    client.list(filter=wanted, page_size=5)
    asynchronous.list("projects/p", wanted)
    client.list("projects/p", state())  # type: ignore[arg-type]
    asynchronous.list("projects/p", state())  # type: ignore[arg-type]
