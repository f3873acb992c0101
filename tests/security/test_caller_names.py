"""Names of callers: which values ``authenticate`` may return, and what its annotation may say."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import attrs
import pytest

import lro
from lro.http import OperationsEdge
from tests.http.counting_service import ask, build

UserId = NewType("UserId", int)
WANTED = "must return a text, a whole number, or None for a caller without a name"


@attrs.frozen
class User:
    """A user of the application."""

    id: int = 7


class Number(int):
    """A number that hides its digits."""

    def __str__(self) -> str:
        return "ann"

    __repr__ = __str__


class Role(enum.IntEnum):
    """Roles of an application."""

    STAFF = 7


@pytest.mark.parametrize("given", [7, Number(7), Role.STAFF])
def test_whole_number_is_the_name_of_a_caller(given: Any) -> None:
    """A caller whose name is a number owns operations by its digits."""
    counting = build(owner_only=True)
    edge = OperationsEdge(counting.service, authenticate=lambda headers: given)
    name = counting.start(caller="7")
    assert edge.handle(ask("GET", f"/v1/{name}")).status == 200
    assert edge.handle(ask("GET", f"/v1/{counting.start(caller='ann')}")).status == 404


@pytest.mark.parametrize("given", [True, False, 7.5, User(), ("ann",), b"ann"])
def test_value_that_is_not_a_name_is_refused(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets a 500 without details, and the log says what the hook must return."""
    edge = OperationsEdge(build().service, authenticate=lambda headers: given)
    reply = edge.handle(ask("GET", "/v1/operations"))
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["message"]) == (500, "the server failed internally")
    assert f"authenticate {WANTED}, got {given!r}" in caplog.text


def returning(annotation: Any) -> Callable[..., Any]:
    """Return a function whose result has this annotation."""

    def authenticate(headers: Any) -> Any:
        return "ann"

    authenticate.__annotations__["return"] = annotation
    return authenticate


class WithCall:
    """An object that can be called."""

    def __call__(self, headers: Any) -> User:
        return User()


async def awaited(headers: Any) -> User | None:
    return User()


WRONG = [
    *(returning(one) for one in (User, "User", bool, float, dict[str, str], UUID, tuple[str, ...])),
    *(returning(one) for one in (User | None, "str | User", Annotated[User, "signed in"])),
    awaited,
    functools.partial(awaited),
    WithCall(),
    WithCall().__call__,
    User,
]


@pytest.mark.parametrize("hook", WRONG)
def test_annotation_that_is_not_a_name_is_refused_at_once(hook: Any) -> None:
    """A hook that returns a user is refused when the edge is made, with the reason."""
    with pytest.raises(lro.DeclarationError) as refused:
        OperationsEdge(build().service, authenticate=hook)
    assert str(refused.value).startswith(f"authenticate: {WANTED}, but its annotation says ")


@functools.wraps(returning(User))
def wrapped(headers: Any) -> Any:
    return "ann"


@pytest.mark.parametrize(
    "hook",
    [
        *(returning(one) for one in (str, "str | None", int, None, Any, object, Hashable, UserId)),
        *(returning(one) for one in (Annotated[str, "name"], Literal["ann"], Role, Number)),
        *(returning(one) for one in (Awaitable[str], Iterator[str], AsyncIterator[User])),
        *(returning(one) for one in ("Unknown", "1 +")),
        lambda headers: "ann",
        wrapped,
        str,
        dict.get,
    ],
)
def test_annotation_that_may_be_a_name_is_allowed(hook: Any) -> None:
    """An annotation that is missing, unknown or may be a name is not refused."""
    OperationsEdge(build().service, authenticate=hook)
