"""Tests of what is inside metadata or response, against every registered type (spec §7.7(2))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from lro._base.errors import InvalidFilter
from lro._filters.conditions import Exists
from lro._filters.operands import route
from lro._filters.paths import Place, descend
from lro._filters.plan import PackedTest, Plan, RecordTest, Route, Source
from lro._filters.refusals import refusal
from lro._filters.tree import Member, Op
from lro._filters.types import MessageType, ValueType, type_of_message


@attrs.frozen(kw_only=True)
class PackedPath:
    """A path into a packed message, led down every registered type that has it.

    ``refused`` says of the other types why not.
    """

    source: Source
    op: Op
    whole: bool
    places: Mapping[str, Place]
    refused: tuple[InvalidFilter, ...]

    @classmethod
    def of(
        cls, source: Source, path: Member, op: Op, types: Mapping[str, MessageType]
    ) -> PackedPath:
        """Lead what follows ``metadata`` or ``response`` in the path down the types."""
        parts = path.parts[1:]
        places: dict[str, Place] = {}
        refused: list[InvalidFilter] = []
        for name, message_type in types.items():
            start = Place(type=type_of_message(name), shape=message_type.shape)
            if not start.type.named and start.type is not ValueType.DYNAMIC:
                refused.append(refusal(f"there is nothing below {name}", path.position))
                continue
            try:
                places[name] = descend(start, parts, op)
            except InvalidFilter as exc:
                refused.append(exc)
        return cls(source=source, op=op, whole=not parts, places=places, refused=tuple(refused))

    def accept(self, literal: Member) -> Plan:
        """The test with this literal.

        Raises:
            InvalidFilter: No registered type accepts path, operator and literal together.
        """
        position = literal.position
        if self.whole and literal.lone_star:
            return RecordTest(self.source, Route((), Exists()))
        routes: dict[str, Route] = {}
        refused = list(self.refused)
        for name, place in self.places.items():
            try:
                routes[name] = route(place, self.op, literal)
            except InvalidFilter as exc:
                refused.append(exc)
        if not routes:
            raise self._refusal(refused, position)
        return PackedTest(self.source, routes)

    def _refusal(self, refused: Sequence[InvalidFilter], position: int) -> InvalidFilter:
        """The refusal of the type that went furthest says most."""
        if not refused:
            description = f"no type is registered for {self.source.value}, so nothing is in it"
            return refusal(description, position)
        furthest = max(refused, key=lambda exc: exc.position)
        if len(refused) == 1:
            return furthest
        others = f"; no type registered for {self.source.value} accepts this"
        return refusal(furthest.description + others, furthest.position)
