"""The blocking and the async client have the same interface."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize

import pytest

import lro_client
from tests.blocking_client import SOURCE, TARGET, blocking

PAIRS = [("Client", "AsyncClient"), ("OperationHandle", "AsyncOperationHandle")]

Parameter = tuple[str, str, object]


def interface(name: str) -> dict[str, list[Parameter] | None]:
    """Map each public member of a class to its parameters, or to None if it is no method."""
    cls = getattr(lro_client, name)
    members = {each: getattr(cls, each) for each in dir(cls) if not each.startswith("_")}
    return {each: parameters(m) if callable(m) else None for each, m in members.items()}


def parameters(method: object) -> list[Parameter]:
    """Return the name, kind and default of each parameter of a method."""
    assert callable(method)
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize(("sync", "async_"), PAIRS)
def test_sync_and_async_client_have_the_same_members_and_parameters(sync: str, async_: str) -> None:
    """Both clients have the same members with the same parameters."""
    assert interface(sync) == interface(async_)


def form(text: str) -> tuple[str, list[str]]:
    """Return the code and the comments of a module, without its layout."""
    found = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return ast.dump(ast.parse(text)), found


def test_blocking_client_equals_the_generated_one() -> None:
    """The blocking client equals the client that is generated from the async client.

    After a failure, run ``python -m tests.blocking_client``, then ``ruff format src``.
    """
    assert form(TARGET.read_text("utf-8")) == form(blocking(SOURCE.read_text("utf-8")))
    with pytest.raises(ValueError, match="does not occur"):
        blocking(TARGET.read_text("utf-8"))
