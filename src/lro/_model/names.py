"""Names of operations, the parents they stand under, and new ids (spec §3.1, §3.3(2))."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from lro._base.errors import InvalidOperationName, InvalidParent, MalformedRequest, got

MAX_NAME: Final = 1024
"""Longest name, in code points (spec §3.1(2))."""

MAX_NAMES: Final = 1000
"""Most names of one call (spec §3.11)."""

ID_BYTES: Final = 12
"""Random bytes of a new id: 96 bits, sixteen characters (spec §3.1(4))."""

_SORTED: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_SHIFTS: Final = range(36, -1, -6)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# Spec §3.1(2). A surrogate is refused too: a proto string cannot hold it (spec §1.9). Runs of
# characters are possessive and every choice is made by a look-ahead, so that no input makes these
# backtrack far. Groups are not possessive: Python matches such wrongly before 3.11.5.
_SEGMENT: Final = r"(?!(?:\.\.?|-)(?:/|\Z))[^/\x00-\x1f\x7f\ud800-\udfff]++"
_PAIR: Final = rf"(?!operations(?:/|\Z)){_SEGMENT}/{_SEGMENT}"
_PAIRS: Final = rf"{_PAIR}(?:/{_PAIR})*"
_NAME: Final = re.compile(rf"(?:({_PAIRS})/)?operations/({_SEGMENT}(?:/{_SEGMENT})*)\Z")
_PARENT: Final = re.compile(rf"(?:({_PAIRS})(?:/operations)?|operations)?\Z")

_RESERVED: Final = frozenset({".", "..", "-"})
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@attrs.frozen
class OperationName:
    """A name in its two parts; ``str()`` puts them together (spec §3.1(1)).

    :func:`parse_name` and :func:`join_name` are what checks names; this class only holds them.
    ``parent`` is empty at the root, ``id`` may have several segments.
    """

    parent: str
    id: str

    def __str__(self) -> str:
        return f"{self.parent}/operations/{self.id}" if self.parent else f"operations/{self.id}"


def parse_name(name: str) -> OperationName:
    """The parent and id of an operation's name (spec §3.1).

    Raises:
        InvalidOperationName: It does not have the form of a name, or is not a text.
    """
    if not isinstance(name, str):
        raise InvalidOperationName("name", f"must be a text, got {got(name)}")
    found = _NAME.match(name) if len(name) <= MAX_NAME else None
    if found is None:
        why = _fault(name) or "it has no collection 'operations' with an id after it"
        raise InvalidOperationName("name", f"{_shown(name)} names no operation: {why}")
    return OperationName(found[1] or "", found[2])


def parse_names(names: Sequence[str], parent: str | None = None) -> tuple[str, ...]:
    """The distinct names of a call for several operations, in their order (spec §3.11).

    ``parent`` is the one under which all of them have to stand, as :func:`normalise_parent` gives
    it; None: under any.

    Raises:
        MalformedRequest: There is no name, or there are more than 1000.
        InvalidOperationName: One does not have the form of a name; ``field`` says which.
        InvalidParent: One stands under another parent.
    """
    if not 1 <= len(names) <= MAX_NAMES:
        raise MalformedRequest("names", f"must be 1 to {MAX_NAMES} names, got {len(names)}")
    for number, name in enumerate(names):
        try:
            found = parse_name(name)
        except InvalidOperationName as exc:
            raise InvalidOperationName(f"names[{number}]", exc.description) from None
        if parent is not None and found.parent != parent:
            wanted = f"{parent}/operations" if parent else "operations"
            why = f"{name!r} is not in {wanted!r}, the collection of the path"
            raise InvalidParent(f"names[{number}]", why)
    return tuple(dict.fromkeys(names))


def normalise_parent(name: str) -> str:
    """The one spelling of the parent that a List call names; empty for the root (spec §3.3(2)).

    Raises:
        InvalidParent: It is neither a parent nor its collection ``…/operations``.
    """
    if not isinstance(name, str):
        raise InvalidParent("name", f"must be a text, got {got(name)}")
    found = _PARENT.match(name) if len(name) <= MAX_NAME else None
    if found is None:
        why = _fault(name) or (
            "it is the name of an operation"
            if _NAME.match(name)
            else "it has an odd number of segments"
        )
        raise InvalidParent("name", f"{_shown(name)} is no parent of operations: {why}")
    return found[1] or ""


def join_name(parent: str, unique_id: str) -> str:
    """The name of the operation ``unique_id`` under ``parent`` (spec §3.1(1)).

    ``parent`` is as :func:`normalise_parent` gives it.

    Raises:
        InvalidOperationName: The two do not make a well-formed name.
        InvalidParent: They make one, but of another parent.
    """
    name = str(OperationName(parent, unique_id))
    found = parse_name(name).parent
    if found != parent:
        raise InvalidParent("parent", f"{parent!r} ends early: {name!r} stands under {found!r}")
    return name


def new_id(random: Callable[[int], bytes], now: datetime) -> str:
    """A new id in ``[A-Za-z0-9_-]``: when it was made, and 96 random bits (spec §3.1(4)).

    ``random`` gives as many unpredictable bytes as it is asked for: ``secrets.token_bytes``. Ids of
    one time stand together in the index of a database, so that new records and those that expire
    touch few of its pages. The milliseconds come again after 139 years.
    """
    millis = (now - _EPOCH) // _MILLISECOND
    made = "".join([_SORTED[millis >> shift & 63] for shift in _SHIFTS])
    return made + base64.urlsafe_b64encode(random(ID_BYTES)).decode("ascii")


def _fault(name: str) -> str | None:
    """Which rule of spec §3.1(2) the text breaks, as a clause; None if it breaks none."""
    if len(name) > MAX_NAME:
        return f"it has {len(name)} characters, {MAX_NAME} are allowed"
    for number, segment in enumerate(name.split("/"), start=1):
        if not segment:
            return f"segment {number} is empty"
        if segment in _RESERVED:
            return f"segment {number} is {segment!r}"
        if unfit := _UNFIT.search(segment):
            return f"segment {number} contains {unfit[0]!r}"
    return None


def _shown(name: str) -> str:
    return repr(name) if len(name) <= MAX_NAME else f"{name[:40]!r}…"
