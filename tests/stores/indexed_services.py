"""Services whose methods have metadata of many types, with indexes; and what happens to stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
from hypothesis import strategies as st

from lro import Any, Empty, LroError, Options, Service, Struct, TypeRegistry
from lro._messages.schema import json_name
from lro._model.operation import delete, end, report, request_cancel, with_derived
from lro.adapters import Change, Record, Store
from lro.executors.inline import InlineExecutor
from lro.stores._rows import micros
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from tests.filters.every_field_kind import Everything
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata, Stage
from tests.stores.record_strategies import Changed, EarlierExport, Happening, Indexed, Put, seldom
from tests.work_messages import WorkMetadata, WorkRequest

KNOWN: Final = TypeRegistry()
"""The types of all releases."""

REQUEST: Final = Any("type.googleapis.com/acme.v1.WorkRequest", {})
RELEASES: Final = 3
"""So often are more indexes declared while records come and change."""
EXPORT: Final = "acme.v1.Works.Export"
IMPORT: Final = "acme.v1.Works.Import"
STRUCT: Final = "acme.v1.Works.Struct"
KEPT: Final = "acme.v1.Works.Keep"

PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    EXPORT: (
        *("target", "verb", "stage", "cancel_requested", "progress_percent", "bytesDone", "rate"),
        *("quota", "ratio", "create_time", "elapsed", "priority", "note", "retries", "dryRun"),
        *("labels.team", 'labels."a.b"', "counters.n", "shard_names.7", "current_step.stage"),
        *("window.start_time", "uri", "snapshot_id", "warning.message", "step_index.a.ok"),
    ),
    IMPORT: ("target", "priority", "rows_read", "stage"),
    "acme.v1.Works.Everything": (
        *("colour", "limit", "maybe", "node.label", "node.below.label", "flags.true", "rate"),
    ),
    "acme.v1.Works.Work": ("percent", "note", "create_time"),
}
_MESSAGES: Final[Mapping[str, tuple[type, type]]] = {
    EXPORT: (ExportMetadata, ExportResponse),
    IMPORT: (ImportMetadata, Book),
    "acme.v1.Works.Everything": (Everything, Empty),
    "acme.v1.Works.Work": (WorkMetadata, Book),
    STRUCT: (Struct, Empty),
}


def binary_messages() -> tuple[type | None, Sequence[Any]]:
    """A class of protobuf with a message of it, and others in binary form; none without it."""
    try:
        from google.rpc.context.attribute_context_pb2 import AttributeContext
    except ImportError:
        return None, ()
    kept = AttributeContext.Resource
    types = TypeRegistry(kept, ExportMetadata)
    some = [
        kept(name="data", labels={"team": "data"}),
        kept(name="Straße", labels={"team": "k", "a.b": "5"}, create_time={"seconds": 1709280000}),
        kept(),
    ]
    exported = types.pack(
        ExportMetadata(target="data", priority=5, labels={"team": "a"}, stage=Stage.COPYING)
    )
    wired = Any(exported.type_url, types.binary_payload(exported))
    junk = Any(exported.type_url, b"\xff\xff")
    unknown = Any("type.googleapis.com/acme.v1.Unknown", b"data")
    return kept, [*map(types.pack, some), wired, wired, junk, unknown]


PROTO, BINARY = binary_messages()


@attrs.frozen(kw_only=True)
class Harness:
    """What is declared by the services of a set of records.

    ``releases`` are the indexes that each release declares, ``structs`` whether a Struct can be
    metadata, so that no path is unknown and none can have an index.
    """

    releases: Sequence[Mapping[str, tuple[str, ...]]]
    structs: bool
    owner_only: bool

    def paths(self, release: int) -> set[str]:
        """The paths by which a release finds records."""
        return {path for paths in self.releases[max(release, 0)].values() for path in paths}

    def fields(self) -> frozenset[str]:
        """The fields with which the paths of the last release begin."""
        return frozenset(json_name(path.partition(".")[0]) for path in self.paths(RELEASES - 1))

    def service(
        self, store: Store, release: int, clock: Callable[[], float] = time.monotonic
    ) -> Service:
        """A service of this release; -1 is one that declares no index."""
        made = Service(
            store,
            InlineExecutor(),
            maintenance=False,
            clock=clock,
            owner_only=self.owner_only,
            types=KNOWN,
        )
        indexes = self.releases[release] if release >= 0 else {}
        for name, (metadata, response) in _MESSAGES.items():
            if name != STRUCT or self.structs:
                declare(made, name, metadata, response, indexes.get(name, ()))
        if PROTO is not None:
            declare(made, KEPT, PROTO, Book, ("labels.team",) if indexes.get(EXPORT) else ())
        return made


def declare(
    service: Service, name: str, metadata: type, response: type, index: tuple[str, ...]
) -> None:
    """Have a service know a method."""
    service.declare(
        name,
        request=WorkRequest,
        response=response,
        metadata=metadata,
        options=Options(indexed_paths=index),
    )


@st.composite
def harnesses(draw: st.DrawFn) -> Harness:
    """Services whose releases declare more and more."""
    known: dict[str, tuple[str, ...]] = {}
    releases: list[Mapping[str, tuple[str, ...]]] = []
    for _ in range(RELEASES):
        for name in draw(
            st.lists(st.sampled_from([*PATHS, EXPORT, EXPORT]), min_size=1, max_size=3)
        ):
            path = draw(st.sampled_from(PATHS[name]))
            known[name] = tuple(dict.fromkeys((*known.get(name, ()), path)))
        releases.append(dict(known))
    return Harness(
        releases=releases,
        structs=seldom(draw, 6),
        owner_only=seldom(draw, 6),
    )


class Past:
    """What happens to several stores alike, and to a model of them that is as simple as can be."""

    def __init__(self, harness: Harness, stores: Mapping[str, Store], clock: ManualClock) -> None:
        self.records: dict[str, Record] = {}
        self._harness = harness
        self._stores = stores
        self._clock = clock
        releases = [*range(-1, RELEASES), *[RELEASES - 1] * 3]
        self._writers = [harness.service(MemoryStore(clock), release) for release in releases]
        apart, earlier = (
            Service(MemoryStore(clock), InlineExecutor(), maintenance=False) for _ in "ab"
        )
        declare(earlier, EXPORT, EarlierExport, ExportResponse, ("verb", "labels.team", "stage"))
        for other in (apart, earlier):
            declare(other, IMPORT, ImportMetadata, Book, PATHS[IMPORT])
        self._writers += [apart, earlier]

    def happen(self, what: Happening) -> None:
        """Have it happen everywhere."""
        match what:
            case Put(record, by):
                record = self._stamp(record, by)(record)
                self._clock.advance(microseconds=micros(record.create_time) - micros(self._clock()))
                self.records[record.name] = record
                for store in self._stores.values():
                    store.insert(record, REQUEST, None)
            case Changed(name=name) if name in self.records:
                self._change(name, what)
            case Indexed(release):
                for store in self._stores.values():
                    self._harness.service(store, release)
            case _:
                pass

    def _stamp(self, record: Record, by: int) -> Callable[[Record], Record]:
        for writer in (self._writers[by], self._writers[RELEASES]):
            if record.method in writer.specs:
                return writer.specs[record.method].stamp
        return lambda same: same

    def _change(self, name: str, what: Changed) -> None:
        present = self.records.pop(name)
        change = with_derived(_change_of(what, self._clock()), self._stamp(present, what.by))
        try:
            after = change(present)
        except LroError:  # it comes too late
            after = present
        else:
            for store in self._stores.values():
                store.update(name, change)
        if after is not None:
            self.records[name] = after

    def visible(self, parent: str, caller: str | None) -> list[Record]:
        """The records that a list without a filter shows, in its order (spec §3.4(2))."""
        now = self._clock()
        found = [one for one in self.records.values() if one.parent == parent and one.visible(now)]
        found = [one for one in found if caller is None or one.caller == caller]
        return sorted(found, key=lambda one: (-micros(one.create_time), one.name))


def _change_of(what: Changed, now: datetime) -> Change:
    if what.what == "report" and isinstance(what.value, Any):
        return report(what.value, None, now)
    if what.what == "end":
        return end(what.value, now=now, keep_for=timedelta(seconds=what.seconds))
    return delete(now) if what.what == "delete" else request_cancel(now)
