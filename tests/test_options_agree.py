"""Options as a checked value and as keyword arguments have the same names and types."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import lro
from lro.http import OperationsEdge
from lro.stores.memory import MemoryStore

SERVICE = lro.Service(MemoryStore(), None, maintenance=False)


def type_of(function: Callable[..., object], parameter: str) -> Any:
    """Return the type of a parameter; for ``**options`` the type is Unpack of a TypedDict."""
    return typing.get_type_hints(function)[parameter]


@pytest.mark.parametrize(
    ("values", "takes"),
    [
        (type_of(type(SERVICE.edges).__init__, "given"), lro.Service.__init__),
        (lro.Options, lro.Service.method),
        (type(OperationsEdge(SERVICE).options), OperationsEdge.__init__),
    ],
)
def test_values_and_keywords_have_the_same_names_and_types(
    values: type[Any], takes: Callable[..., object]
) -> None:
    """Values and keywords have equal names and types; keywords for converters also take lists."""
    (keywords,) = typing.get_args(type_of(takes, "options"))
    fields = [one for one in attrs.fields(attrs.resolve_types(values)) if one.init]
    assert len(fields) >= 9
    assert typing.get_type_hints(keywords) == {
        one.name: one.type | list[str] if one.converter else one.type for one in fields
    }
