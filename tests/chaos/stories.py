"""Callers' requests and the replies to them; a story is all that concerns one operation."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from random import Random
from typing import Final

import attrs

import lro
from tests.chaos.works import WorkMetadata, WorkRequest, WorkResponse

TYPES: Final = lro.TypeRegistry(WorkRequest, WorkMetadata, WorkResponse)


@attrs.frozen
class Sight:
    """The reply to a call: an operation, or None for NOT_FOUND. Times are monotonic."""

    sent: float
    received: float
    operation: lro.Operation | None

    @property
    def done(self) -> bool:
        return self.operation is not None and self.operation.done

    @property
    def metadata(self) -> WorkMetadata:
        """The operation's metadata, which show the progress of the work."""
        if self.operation is None or self.operation.metadata is None:
            return WorkMetadata()
        return TYPES.unpack(self.operation.metadata, WorkMetadata)


@attrs.define(kw_only=True)
class Story:
    """One start request, and all that callers know of its operation."""

    kind: str
    request: WorkRequest
    request_id: str = ""
    asked_at: float = 0.0
    """The time at which the start was first sent."""
    named_at: float | None = None
    """The time at which a caller first received the operation's name."""
    started_at: float = 0.0
    """The time of the start that returned the name, or 0 if a list returned the name first."""
    names: set[str] = attrs.field(factory=set)
    cancel_asked: bool = False
    delete_asked: bool = False
    deleted_at: float | None = None
    """The time at which a delete first succeeded."""
    sights: list[Sight] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)
    """Faults that callers noticed in replies."""

    @property
    def text(self) -> str:
        return self.request.text

    @property
    def name(self) -> str | None:
        """The operation's name, once known."""
        return next(iter(self.names), None)

    @property
    def first_done(self) -> Sight | None:
        """The first reply that showed the operation's end."""
        return min((s for s in self.sights if s.done), key=lambda s: s.received, default=None)

    @property
    def settled(self) -> bool:
        """Whether callers have seen the operation's end, or the operation is gone."""
        if self.first_done is not None or self.deleted_at is not None:
            return True
        may_go = self.delete_asked or self.kind == "brief"
        return may_go and any(sight.operation is None for sight in self.sights)

    def answered(self, operation: lro.Operation, sent: float, received: float) -> None:
        """Record that a start or a list returned this operation."""
        self.names.add(operation.name)
        if self.named_at is None:
            self.named_at = received
        elif self.delete_asked or self.kind == "brief":
            return  # a repeated start may get its first reply, long out of date (spec §9.2(4))
        self.sights.append(Sight(sent, received, operation))


class Journal:
    """All stories of a trial."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.stories: dict[str, Story] = {}

    def new(
        self, kind: str, *, steps: int = 1, pause_ms: int = 0, end: str = "", target: str = ""
    ) -> Story:
        """Create a story; about half of the stories have a request id."""
        text = f"{kind}-{len(self.stories)}-{self.random.randrange(10**6)}"
        target = target or (text if kind == "alone" else "")
        request = WorkRequest(text, steps, pause_ms, end, target)
        request_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        request_id *= self.random.random() < 0.5
        story = Story(kind=kind, request=request, request_id=request_id)
        self.stories[text] = story
        return story

    def listed(self, sent: float, received: float, operations: Iterable[lro.Operation]) -> None:
        """Record the operations of a complete list."""
        found: dict[str, lro.Operation] = {}
        for operation in operations:
            found[operation.name] = operation
            story = self.stories[Sight(sent, received, operation).metadata.text]
            story.answered(operation, sent, received)
        for story in self.stories.values():
            if (
                story.named_at is not None
                and story.named_at < sent
                and not story.names & set(found)
            ):
                story.sights.append(Sight(sent, received, None))

    @property
    def unsettled(self) -> list[Story]:
        """The stories with a known operation whose end callers have not yet seen."""
        return [story for story in self.stories.values() if story.names and not story.settled]
