"""A filter ready for use: read, checked against the registered types, evaluated (spec §7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from lro._filters.check import check
from lro._filters.narrow import KeyOf, narrow
from lro._filters.parse import parse
from lro._filters.plan import All, Plan, Registered, Source, Subject, View
from lro._filters.prefilter import Test
from lro._filters.types import MessageType

_EVERYTHING: Final = All(())


@attrs.frozen(kw_only=True)
class Filter:
    """A valid filter. Immutable, so that any number of threads may use one.

    ``text`` is the filter as given, ``tree`` what was checked, ``registered`` the types that it was
    checked against. A store may look for :meth:`prefilter` first, but :meth:`matches` decides.
    """

    text: str
    tree: Plan
    registered: Registered = attrs.field(repr=False)

    def prefilter(self, key_of: KeyOf) -> Test:
        """What a store may look for first: every operation meets it that the filter matches."""
        return narrow(self.tree, key_of)

    def matches(self, subject: Subject) -> bool:
        """True if the filter matches this operation. Never raises."""
        return self.tree.holds(View(subject, self.registered))


def compile_filter(
    text: str, *, metadata: Sequence[MessageType], response: Sequence[MessageType]
) -> Filter:
    """Read a filter and check it wholly, before any operation is looked at (spec §7.15).

    Args:
        text: The filter; empty matches everything.
        metadata: The types that the server's methods declare for metadata.
        response: The types that they declare for responses.

    Raises:
        InvalidFilter: The filter is not in the language, exceeds a limit, or fits no type.
    """
    registered = {
        Source.METADATA: {message_type.full_name: message_type for message_type in metadata},
        Source.RESPONSE: {message_type.full_name: message_type for message_type in response},
    }
    tree = parse(text)
    plan = _EVERYTHING if tree is None else check(tree, registered)
    return Filter(text=text, tree=plan, registered=registered)
