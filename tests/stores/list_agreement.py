"""Every store lists what the plain filter evaluator selects, for random records and filters."""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import attrs

from lro import AnyMessage, Empty, LroError, Options, Service, State, Status, Struct, TypeRegistry
from lro._engine import listing
from lro._filters.filter import Filter, compile_filter
from lro._filters.types import MessageType
from lro._messages.json_text import reread
from lro._messages.schema import json_name
from lro.adapters import Record, Store
from lro.errors import InvalidFilter
from lro.executors.inline import InlineExecutor
from lro.stores._rows import micros
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.types import Json
from lro.wire import ListOperationsRequest, dumps
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata, url
from tests.service_fixtures import store_of
from tests.vector_files import vectors
from tests.work_messages import WorkRequest

Facts: TypeAlias = Mapping[str, Sequence[tuple[str, Json]]]
"""For each kind of fact, pairs of a filter path and a value that a record has at this path."""

FILTERS_EACH: Final = 20
"""The number of filters that are tried on one set of records."""
EXPORT: Final = "acme.v1.Works.Export"
IMPORT: Final = "acme.v1.Works.Import"
PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    EXPORT: (
        *("target", "verb", "stage", "cancel_requested", "progress_percent", "bytesDone", "rate"),
        *("quota", "ratio", "create_time", "elapsed", "priority", "note", "retries", "dryRun"),
        *("labels.team", 'labels."a.b"', "counters.n", "shard_names.7", "current_step.stage"),
        *("window.start_time", "uri", "snapshot_id", "warning.message", "step_index.a.ok"),
    ),
    IMPORT: ("target", "priority", "rows_read", "stage"),
}
"""The paths that each method can index."""
REQUEST: Final = AnyMessage(url("acme.v1.WorkRequest"), {})
VECTORS: Final = tuple(case["filter"] for case in vectors("filter_eval")["cases"])


# -- records --------------------------------------------------------------------------------------

TEXTS: Final[Sequence[Json]] = (
    *("a", "data", "Data", "datasets/alpha", "export", "COPYING", "FAILED", "true", "null", "NaN"),
    *("5", "05", "5.0", "-1", "Infinity", "a.b", "a*b", "*", "\\*", 'say "hi"', "back\\slash"),
    *("Straße", "STRASSE", "ſtop", "stop", "\u212a", "k", "İstanbul", "ﬁne", "FINE", "i\u0307x"),
    *("x\0y", "line\nbreak", "tab\t", "\x7f", "\u2028", "\ufeff", "\U0001f642", "\uffff", "%_'[^"),
    *("2024-03-01T08:00:00Z", "1.5s", "operations/", '"', "',true]", "{}", "?", "-", "e\u0301", ""),
)
INTEGERS: Final[Sequence[Json]] = (
    *(0, 1, 5, 7, -1, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, 5.0, 5.5, -0.0),
    *("0", "5", "05", "-0", "-1", "9007199254740993", "18446744073709551615", "1e3", "", "٥"),
    *(10**30, 1e30, 1e308, "9" * 20, "9" * 21, True),
)
DOUBLES: Final[Sequence[Json]] = (
    *(0.1, 0.5, 5, 5.5, -0.0, 0, 1.7976931348623157e308, -1e308, 5e-324, 1e-300, 10**30),
    *(16777217, 0.10000000149011612, 3.4028235e38, 1e39, "NaN", "Infinity", "-Infinity", "5"),
)
TIMES: Final[Sequence[Json]] = (
    *("2024-03-01T08:00:00Z", "2024-03-01T08:00:00.500Z", "2024-03-01T09:00:00+01:00", "soon"),
    *("2024-03-01T08:00:00.000000001Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9Z"),
)
STAGES: Final[Sequence[Json]] = ("COPYING", "COPYING", "QUEUED", 0, 2, 99, "NOPE", "")
KEYS: Final = ("team", "a.b", "a", "n", "", 'k"y', "k\\y", "7", "true", "ß")
LOOSE: Final[Sequence[Json]] = (
    *(None, True, False, 5, 5.5, 0, 1e30, -0.0, [], {}, ["data", None], {"a": {"a.b": "k"}}),
    *TEXTS,
)
STEPS: Final[Sequence[Json]] = [
    {"name": name, "ok": name != "a", "stage": stage}
    for name, stage in zip(TEXTS, STAGES * 9, strict=False)
]


def keyed(values: Sequence[Json]) -> Sequence[Json]:
    """Return maps that have these values under various keys."""
    return [{}, *({KEYS[n % 10]: value, KEYS[-n % 7]: values[0]} for n, value in enumerate(values))]


FIELDS: Final[Mapping[str, Sequence[Json]]] = {
    **dict.fromkeys(("target", "verb", "note", "uri"), TEXTS),
    **dict.fromkeys(("progressPercent", "bytesDone", "quota", "priority", "retries"), INTEGERS),
    **dict.fromkeys(("snapshotId", "rowsRead", "bytes_done"), INTEGERS),
    **dict.fromkeys(("rate", "ratio"), DOUBLES),
    **dict.fromkeys(("cancelRequested", "dryRun"), (True, False, "true")),
    "stage": STAGES,
    "createTime": TIMES,
    "elapsed": ("1.5s", "1.500s", "0s", "-0.5s", "0.000000001s", "soon"),
    "labels": keyed(TEXTS),
    "counters": keyed(INTEGERS),
    "shardNames": [{"7": text, "0": "a"} for text in TEXTS],
    "stepIndex": keyed(STEPS),
    "currentStep": STEPS,
    "steps": [STEPS[n : n + 2] for n in range(9)],
    "tags": [TEXTS[n : n + 2] for n in range(40)],
    "window": [{"startTime": time} for time in TIMES],
    "warning": [{"code": n, "message": text} for n, text in zip(INTEGERS, TEXTS, strict=False)],
    "extra": keyed(LOOSE),
    "payload": ({"@type": url("lrofix.v1.Book"), "title": "data"},),
    "unknown": LOOSE,
}
"""The JSON fields of the metadata, with valid, invalid and odd values."""
KNOWN: Final = TypeRegistry(ExportMetadata, ExportResponse, ImportMetadata, Book)
PACKED: Final = KNOWN.pack(ExportMetadata(target="data", priority=5, labels={"team": "a"}))


def binary_messages() -> list[AnyMessage]:
    """Return binary messages, some of them invalid; without protobuf, return an empty list."""
    try:
        wired = AnyMessage(PACKED.type_url, KNOWN.binary_payload(PACKED))
    except LroError:
        return []
    return [
        wired,
        AnyMessage(PACKED.type_url, b"\xff\xff"),
        AnyMessage(url("acme.v1.Unknown"), b"data"),
    ]


BINARY: Final = binary_messages()


METADATA: Final = (
    *["lrofix.v1.ExportMetadata"] * 5,
    *["lrofix.v1.ImportMetadata"] * 2,
    *("google.protobuf.Struct", "acme.v1.Unknown", "", "binary"),
)


OPERATORS: Final = ("=", "=", "=", ":", ":", "!=", "<", "<=", ">", ">=")


class Chance(random.Random):
    """Makes random records and random filters."""

    def seldom(self, one_in: int = 10) -> bool:
        """Return True once in ``one_in`` calls on average."""
        return self.randrange(one_in) == 0

    def metadata(self, wanted: Sequence[str]) -> AnyMessage | None:
        """Return the metadata of a record; fields in ``wanted`` occur more often."""
        kind = self.choice(METADATA)
        if kind == "binary" and BINARY:
            return self.choice(BINARY)
        names = self.choices([*FIELDS, *wanted * 5], k=self.randrange(7))
        made = {name: self.choice(LOOSE if self.seldom() else FIELDS[name]) for name in names}
        # A database may return a stored JSON integer of more than 64 bits as a float.
        return AnyMessage(url(kind), reread(dumps(made).decode())) if kind else None

    def filter(self, facts: Facts, depth: int = 3) -> str:
        """Return a random filter, which is valid in most cases."""
        if depth == 3 and self.seldom():
            return str(self.choice(VECTORS))
        how = self.choice([*["test"] * 5, "NOT ", "-", " AND ", " ", " OR ", " OR "])
        if how == "test" or not depth:
            return self.test(facts)
        if how in ("NOT ", "-"):
            return f"{how}({self.filter(facts, depth - 1)})"
        return how.join(f"({self.filter(facts, depth - 1)})" for _ in range(self.randint(2, 3)))

    def test(self, facts: Facts) -> str:
        """Return a comparison with a value that occurs in a record, or with a similar value."""
        kind = self.choice([*["packed"] * 3, *["indexed"] * 3, "record", *["name"] * 2, "text"])
        left, value = self.choice(facts[kind])
        if kind == "text":
            begin = self.randrange(len(str(value)))
            piece = str(value)[begin : begin + self.randint(1, 9)]
            return quoted(self.choice([piece, piece.upper(), piece.casefold()]))
        if self.seldom():
            return f"{left}:*"
        if self.seldom():
            value = self.choice(facts[kind])[1]
        literal = quoted(value)
        if isinstance(value, str) and self.seldom(6):  # use a suffix of the value, after a wildcard
            literal = '"*' + quoted(value[self.randint(0, len(value)) :])[1:]
        elif not isinstance(value, str) and self.seldom(2):
            literal = dumps(value).decode()
        equality = isinstance(value, bool) or kind in ("indexed", "name") or left == "state()"
        op = self.choice(OPERATORS[:6] if equality and not self.seldom(6) else OPERATORS)
        return f"{left}{op}{literal}"


# -- services and stores --------------------------------------------------------------------------


def declared(
    store: Store, indexes: Mapping[str, tuple[str, ...]], *, structs: bool = False, **options: Any
) -> Service:
    """Return a service on this store whose methods have these indexes.

    With ``structs`` a method's metadata can be any Struct: every path is known, and none is
    indexed.
    """
    made = Service(store, InlineExecutor(), maintenance=False, **options)
    known = {EXPORT: (ExportMetadata, ExportResponse), IMPORT: (ImportMetadata, Book)}
    if structs:
        known["acme.v1.Works.Struct"] = Struct, Empty
    for name, (of_metadata, response) in known.items():
        made.declare(
            name,
            request=WorkRequest,
            response=response,
            metadata=of_metadata,
            options=Options(indexed_paths=indexes.get(name, ())),
        )
    return made


def keep(
    records: Sequence[Record], stores: Iterable[Store], indexes: Mapping[str, tuple[str, ...]]
) -> Sequence[Record]:
    """Insert the records and return them as stored; every second record has no index keys."""
    apart = MemoryStore(ManualClock())
    writers = [declared(apart, indexes), declared(apart, {})]
    kept = [writers[n % 2].edges.specs[one.method].stamp(one) for n, one in enumerate(records)]
    for store in stores:
        for record in kept:
            store.insert(record, REQUEST, None)
    return kept


@contextlib.contextmanager
def stores_of(kinds: Sequence[str], clock: ManualClock) -> Iterator[dict[str, Store]]:
    """Open an empty store of each kind."""
    with contextlib.ExitStack() as stack:
        stores: dict[str, Store] = {}
        for kind in kinds:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stores[kind] = stack.enter_context(store_of(kind, clock, folder))
        yield stores


# -- comparing ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Comparison:
    """Compares the lists of several services with the plain filter evaluator."""

    records: Sequence[Record]
    services: Mapping[str, Service]
    tally: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """How many filters were compared, how many were refused, and how many matched a record."""
    owner_only: bool = False

    def check(
        self, text: str, parent: str = "", sizes: Sequence[int] = (7, 1, 50), caller: str = ""
    ) -> None:
        """Check that all services list the same names in order, or all refuse the filter."""
        some = next(iter(self.services.values()))
        wanted = compiled(text, some)
        if wanted is None:
            self.tally["refused"] += 1
            for kind, service in self.services.items():
                assert refused(service, text), f"{kind} does not refuse {text!r}"
            return
        only = caller if self.owner_only else None
        seen = [one for one in self.records if one.parent == parent and only in (None, one.caller)]
        seen = [one for one in seen if wanted.matches(readable(one, some.types))]
        seen.sort(key=lambda one: (-micros(one.create_time), one.name))  # spec §3.4(2)
        names = [one.name for one in seen]
        self.tally["filters"] += 1
        self.tally["match something"] += bool(names)
        for kind, service in self.services.items():
            found = listed(service, text, parent, sizes, caller)
            wrong = [one for one in self.records if (one.name in found) != (one.name in names)]
            assert found == names, f"{kind}: {text!r}: {found}, wanted {names}: {wrong}"


def compiled(text: str, service: Service) -> Filter | None:
    """Compile the filter without a service; return None if it is invalid."""
    infos = [spec.info for spec in service.edges.specs.values()]
    sides = [
        [MessageType(name, service.types.codec(name).shape) for name in sorted(names)]
        for names in ({i.metadata_type for i in infos}, {i.response_type for i in infos})
    ]
    try:
        return compile_filter(text, metadata=sides[0], response=sides[1])
    except InvalidFilter:
        return None


def refused(service: Service, text: str) -> bool:
    try:
        service.list(ListOperationsRequest(filter=text))
    except InvalidFilter:
        return True
    return False


def readable(record: Record, types: TypeRegistry) -> Record:
    """Return the record with its messages decoded as JSON if their types are known."""
    result = record.result
    return attrs.evolve(
        record,
        metadata=record.metadata and types.readable(record.metadata),
        result=types.readable(result) if isinstance(result, AnyMessage) else result,
    )


def listed(
    service: Service, text: str, parent: str, sizes: Sequence[int], caller: str
) -> list[str]:
    """Return the names on all pages of a list."""
    names: list[str] = []
    token = ""
    for size in itertools.islice(itertools.cycle(sizes), 1000):
        request = ListOperationsRequest(parent, text, size, token)
        page = service.list(request, caller=caller)
        names += [one.name for one in page.operations]
        token = page.next_page_token
        if not token:
            return names
    raise AssertionError(f"the list of {text!r} has no end")


def facts_of(records: Sequence[Record], indexed: Sequence[str]) -> Facts:
    """Collect filter paths and values of these records by kind; indexed paths are one kind."""
    found: dict[str, list[tuple[str, Json]]] = {
        "record": [("state()", "IN_PROGRESS"), ("done", False)],
        "name": [("name", "operations/a"), *(("name", one.name) for one in records)],
        "packed": [("metadata.target", "data"), ("metadata.priority", 5)],
    }
    for one in records:
        at = one.create_time.isoformat().replace("+00:00", "Z")
        found["record"] += [("state()", one.state.value), ("create_time()", at)]
        found["record"] += [("cancel_requested()", one.cancel_requested), ("method()", one.method)]
        if one.end_time is not None:
            found["record"].append(("end_time()", at))
        if one.error is not None:
            found["record"] += [
                ("error.code", one.error.code),
                ("error.message", one.error.message),
            ]
        for source, packed in (("metadata", one.metadata), ("response", one.response)):
            if packed is not None and not isinstance(packed.payload, bytes):
                found["record"].append((f"type({source})", packed.type_name))
                found["packed"] += below(source, packed.payload)
    places = {f"metadata.{path}" for path in indexed}
    found["indexed"] = [fact for fact in found["packed"] if fact[0] in places] or found["packed"]
    found["text"] = [("", value) for _, value in found["packed"] if value and value is not True]
    return found


def below(path: str, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield each value in a message with its filter path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from below(f"{path}.{key if key.isidentifier() else quoted(key)}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from below(path, inner)
    else:
        yield path, value


def quoted(value: Json) -> str:
    """Return a value as a quoted string without wildcards."""
    text = value if isinstance(value, str) else dumps(value).decode()
    return dumps(text).decode().replace("*", "\\*")


# -- random records -------------------------------------------------------------------------------

PARENTS: Final = ("", "", "", "", "p/x/")
IDS: Final = ("{}", "{}", "data-{}", "{}/b", "ß{}", "É{}", "🙂{}", "Data{}")


BOOK: Final = url("lrofix.v1.Book")
ENDS: Final = (
    *[(State.IN_PROGRESS, None)] * 3,
    *(
        (State.SUCCEEDED, result)
        for result in (AnyMessage(BOOK, {"title": "data"}), PACKED, *BINARY[:1])
    ),
    *((State.FAILED, Status(code, text)) for code, text in ((5, "data"), (13, "Straße"), (3, ""))),
    (State.CANCELLED, Status(1, "stopped", (AnyMessage(url("acme.v1.Unknown"), {"a": "data"}),))),
)


def records_of(chance: Chance, clock: ManualClock, wanted: Sequence[str]) -> Iterator[Record]:
    """Yield random records in all states."""
    for count in range(chance.randint(8, 20)):
        clock.advance(microseconds=chance.choice([0, 0, 0, 1, 1, 1000, 1_000_000]))
        parent, (state, result) = chance.choice(PARENTS), chance.choice(ENDS)
        yield Record(
            name=f"{parent}operations/{chance.choice(IDS).format(count)}",
            parent=parent.rstrip("/"),
            method=chance.choice([EXPORT, EXPORT, IMPORT]),
            metadata=chance.metadata(wanted),
            state=state,
            result=result,
            create_time=clock(),
            update_time=clock(),
            end_time=None if result is None else clock(),
            cancel_requested=chance.seldom(4),
            caller=chance.choice(["", "ann", "bob"]),
        )


def compare(kinds: Sequence[str], seed: int) -> int:
    """Compare random filters over one set of records; return how many filters matched a record."""
    chance, clock = Chance(seed), ManualClock()
    indexes = {
        name: tuple(chance.sample(paths, chance.randrange(5))) for name, paths in PATHS.items()
    }
    indexed = [json_name(path) for paths in indexes.values() for path in paths]
    wanted = [path.partition(".")[0] for path in indexed]
    tick, ticks = chance.choice([0.0, 0.0, 0.001, 0.2]), itertools.count()
    options = {"owner_only": chance.seldom(6), "structs": chance.seldom(6)}
    with stores_of(kinds, clock) as stores:
        records = keep([*records_of(chance, clock, wanted)], stores.values(), indexes)
        known = chance.choice([indexes, indexes, indexes, {}])
        services = {
            kind: declared(store, known, clock=lambda: next(ticks) * tick, **options)
            for kind, store in stores.items()
        }
        both = Comparison(records=records, services=services, owner_only=options["owner_only"])
        facts = facts_of(records, indexed)
        scan, batch = chance.choice([1, 2, 3, 7, 2000]), chance.choice([1, 3, 200])
        with patch.multiple(listing, SCAN=scan, _BATCH=batch):
            for _ in range(FILTERS_EACH):
                both.check(
                    chance.filter(facts),
                    chance.choice(PARENTS).rstrip("/"),
                    chance.choices([1, 2, 3, 5, 0], k=3),
                    chance.choice(["", "ann", "bob", "carl"]),
                )
    return both.tally["match something"]
