"""Validators of request fields. They run when a message is made, also when JSON is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from lro import InvalidArgument

Number = TypeVar("Number", int, float)


def between(
    low: Number, high: Number, *, above: bool = False, below: bool = False
) -> Callable[[object, attrs.Attribute[Number], Number], None]:
    """Return a validator of numbers from ``low`` to ``high``, which refuses NaN.

    With ``above``, the validator refuses ``low`` too; with ``below``, it refuses ``high`` too."""

    if above or below:
        lower = f"greater than {low}" if above else f"at least {low}"
        upper = f"less than {high}" if below else f"at most {high}"
        span = f"{lower} and {upper}"
    else:
        span = f"from {low} to {high}"

    def check(_: object, field: attrs.Attribute[Number], value: Number) -> None:
        high_enough = low < value if above else low <= value
        low_enough = value < high if below else value <= high
        if not (high_enough and low_enough):
            raise InvalidArgument(field.name, f"must be {span}, got {value}")

    return check


def length_between(low: int, high: int) -> Callable[[object, attrs.Attribute[str], str], None]:
    """Return a validator of texts with ``low`` to ``high`` characters."""

    def check(_: object, field: attrs.Attribute[str], value: str) -> None:
        if not low <= len(value) <= high:
            raise InvalidArgument(
                field.name, f"must have from {low} to {high} characters, got {len(value)}"
            )

    return check
