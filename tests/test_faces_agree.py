"""The synchronous and the asynchronous client are the same interface in two colours."""

from __future__ import annotations

import inspect

import pytest

import lro_client

PAIRS = [("Client", "AsyncClient"), ("OperationHandle", "AsyncOperationHandle")]

Parameter = tuple[str, str, object]


def interface(name: str) -> dict[str, list[Parameter] | None]:
    """The public members of a class: the parameters of a method, None for a plain value."""
    cls = getattr(lro_client, name)
    members = {each: getattr(cls, each) for each in dir(cls) if not each.startswith("_")}
    return {each: parameters(m) if callable(m) else None for each, m in members.items()}


def parameters(method: object) -> list[Parameter]:
    """What a call may pass: the name, kind and default of each parameter."""
    assert callable(method)
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize(("sync", "async_"), PAIRS)
def test_both_have_the_same_members_and_parameters(sync: str, async_: str) -> None:
    """A call that is right for one face is right for the other, but for the ``await``."""
    assert interface(sync) == interface(async_)
