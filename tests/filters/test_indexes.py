"""Indexes of metadata: their declaration, the keys of records, and the stores' own indexes."""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from lro import AnyMessage, DeclarationError, Empty, Options, Service, message
from lro._filters.prefilter import ABSENT, KeyIn, key_value
from lro.adapters import Store
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from lro.testing._samples import ids, insert, record_of
from lro.types import Int64, Json, field_number
from lro.wire import ListOperationsRequest
from tests.filters.every_field_kind import NAME, Everything
from tests.filters.messages import ExportMetadata, ImportMetadata, Stage, url
from tests.service_fixtures import store_of
from tests.waiting import until
from tests.work_messages import WorkRequest

EXPORT = "lrofix.v1.ExportMetadata"
IMPORT = "lrofix.v1.ImportMetadata"
METHOD = "acme.v1.Works.Export"
WANTED = KeyIn("k1", frozenset({"a"}))
KEYED = json.dumps({"k1": "a"})


def service(store: Store, *index: str, metadata: Any = ExportMetadata, **options: Any) -> Service:
    """Return a service with one method, whose metadata is indexed by these paths.

    It counts nothing, because its store may be closed before it: other services share the store.
    """
    made = Service(store, InlineExecutor(), maintenance=False, statistics=False, **options)
    declare(made, METHOD, metadata, *index)
    return made


def declare(made: Service, method: str, metadata: Any, *index: str) -> None:
    """Declare a method whose work is done outside the service."""
    made.declare(
        method,
        request=WorkRequest,
        response=Empty,
        metadata=metadata,
        options=Options(indexed_paths=index),
    )


def reported(made: Service, payload: Json | bytes, name: str = EXPORT, **start: Any) -> str:
    """Start an operation, report this metadata, and return the operation's name."""
    operation = made.start(METHOD, WorkRequest(), **start).name
    made.reporter(operation).report(AnyMessage(url(name), payload))
    return operation


def listed(service: Service, text: str) -> list[str]:
    return [one.name for one in service.list(ListOperationsRequest(filter=text)).operations]


def keys_of(made: Service, operation: str) -> dict[str, str]:
    """Return the index keys in the stored record."""
    found: dict[str, str] = json.loads(made.store.get(operation).keys or "null")
    return found


@pytest.mark.parametrize(
    ("path", "payload", "wanted"),
    [
        ("target", {"target": "alpha"}, key_value("alpha")),
        ("target", {"target": "x\0y"}, key_value("x\0y")),
        ("target", {"target": ""}, key_value("")),
        # The key of an enum value is that of its number, because names may change.
        ("stage", {"stage": "COPYING"}, key_value(Stage.COPYING.value)),
        ("cancel_requested", {"cancelRequested": True}, key_value(True)),
        ("progress_percent", {"progressPercent": 5.0}, key_value(5)),
        ("bytes_done", {"bytesDone": "05"}, key_value(5)),
        ("quota", {"quota": "18446744073709551615"}, key_value(2**64 - 1)),
        ("rate", {"rate": 5}, key_value(5.0)),
        ("rate", {"rate": "Infinity"}, key_value(float("inf"))),
        ("ratio", {"ratio": 0.1}, key_value(0.10000000149011612)),
        ("create_time", {"createTime": "1970-01-01T01:00:00.5+01:00"}, key_value(500_000_000)),
        ("elapsed", {"elapsed": "1.500s"}, key_value(1_500_000_000)),
        ("note", {"note": "n"}, key_value("n")),
        ("priority", {"priority": 7}, key_value(7)),
        ("labels.team", {"labels": {"team": "data"}}, key_value("data")),
        ('labels."a.b"', {"labels": {"a.b": "data"}}, key_value("data")),
        ("shard_names.7", {"shardNames": {"7": "seven"}}, key_value("seven")),
        ("current_step.stage", {"currentStep": {"stage": "COPYING"}}, key_value(2)),
        # The value is missing or has another type. No default is used, because it may change later.
        *((path, {}, ABSENT) for path in ("note", "target", "stage", "current_step.name")),
        ("target", {"target": None}, ABSENT),
        ("current_step.name", {"currentStep": {}}, ABSENT),
        ("priority", {"priority": None}, ABSENT),
        ("target", {"target": 5}, ABSENT),
        ("rate", {"rate": "0.5"}, ABSENT),
        ("labels.team", {"labels": []}, ABSENT),
        ("target", [5], ABSENT),
        ("verb", AnyMessage(url(IMPORT), {"target": "alpha"}), ABSENT),
        ("verb", AnyMessage(url(IMPORT), ["verb"]), ABSENT),
        ("verb", AnyMessage(url(NAME), {}), ABSENT),
        # There is no key, because another release may know the type, field or enum number.
        ("target", AnyMessage(url("acme.v1.Unknown"), {"target": "alpha"}), None),
        ("target", b"\xff\xff", None),
        ("target", AnyMessage(url("acme.v1.Unknown"), b""), None),
        ("verb", AnyMessage(url(IMPORT), {"verb": "copy"}), None),
        ("stage", {"stage": 7}, None),
    ],
)
def test_index_key_is_that_of_the_value_or_of_absent(
    path: str, payload: Any, wanted: str | None
) -> None:
    """A record's key is the hash of the value, or ABSENT. A value of unknown meaning has no key."""
    made = service(MemoryStore(), path)
    for other in (ImportMetadata, Everything):
        made.types.register(other)
    packed = payload if isinstance(payload, AnyMessage) else AnyMessage(url(EXPORT), payload)
    found = keys_of(made, reported(made, packed.payload, packed.type_name))
    assert [*found.values()] == ([] if wanted is None else [wanted])


def test_types_share_the_index_key_of_a_path() -> None:
    """Two types of metadata share a path's key if their fields have the same kind."""
    made = service(MemoryStore(), "progress_percent", "progressPercent", "target", "priority")
    declare(made, "acme.v1.Works.Import", ImportMetadata, "target", "priority")
    one = reported(made, {"target": "a", "priority": 5})
    other = reported(made, {"target": "a", "priority": "5"}, IMPORT)
    export, imported = keys_of(made, one), keys_of(made, other)
    (target,) = [key for key in export if export[key] == imported.get(key) == key_value("a")]
    assert len(export.keys() | imported.keys()) == 4
    assert {*listed(made, "metadata.target = a")} == {one, other}
    assert {*listed(made, "metadata.priority = 5")} == {one, other}
    assert export.keys() - imported.keys() != {target}


@message("acme.v1.Changing")
@attrs.frozen
class First:
    value: str = ""
    stage: Stage = Stage.STAGE_UNSPECIFIED


class Renamed(enum.Enum):
    NOTHING_YET = 0
    QUEUED = 1
    CLONING = 2


@message("acme.v1.Changing")
@attrs.frozen
class Second:
    value: Int64 = 0
    stage: Renamed = Renamed.NOTHING_YET


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("metadata.value = 7", {"value": "007"}),
        ("metadata.stage = NOTHING_YET", {}),
        ("metadata.stage = QUEUED", {"stage": "QUEUED"}),
    ],
)
def test_index_finds_records_of_an_earlier_release(text: str, payload: Json) -> None:
    """An index finds records after a release changed a field's kind or an enum value's name."""
    store = MemoryStore()
    earlier, later = (service(store, "value", "stage", metadata=cls) for cls in (First, Second))
    operation = reported(earlier, payload, "acme.v1.Changing")
    assert listed(later, text) == [operation]


def test_without_an_index_there_are_no_keys() -> None:
    """A process without the index drops a record's keys on update, as they may be out of date."""
    store = MemoryStore()
    operation = reported(service(store, "target"), {"target": "a"})
    without = service(store)
    without.reporter(operation).report(ExportMetadata(target="b"))
    assert store.get(operation).keys is None
    assert store.get(reported(without, {})).keys is None


def test_caller_has_an_index_key() -> None:
    """A record has a key for its caller and, if its metadata is readable, for each indexed path."""
    made = service(MemoryStore(), "target", owner_only=True)
    bare = made.start(METHOD, WorkRequest(), caller="ann").name
    ann, (path,) = {"caller": key_value("ann")}, keys_of(made, bare).keys() - {"caller"}
    assert keys_of(made, bare) == {**ann, path: ABSENT}
    for payload, more in (({"target": "a"}, {path: key_value("a")}), (b"\xff", {})):
        operation = reported(made, payload, caller="ann")
        assert keys_of(made, operation) == {**ann, **more}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing", "no field 'nothing'"),
        ("tags", "does not lead to one number"),
        ("extra.a", "does not lead to one number"),
        ("a OR b", "is not a path"),
        ("labels", "does not lead to one"),
        ("steps.name", "repeated fields"),
        ("extra", "does not lead to one"),
        ("checksum", "does not lead to one"),
        ("warning", "does not lead to one"),
        ("target AND x", "is not a path"),
        ("a b", "is not a path"),
        ("(", ""),
        ("", ""),
    ],
)
def test_path_that_cannot_be_indexed_is_refused(path: str, why: str) -> None:
    """The declaration of a path that cannot be indexed fails. The error names path and type."""
    with pytest.raises(DeclarationError, match=r"cannot be an index of lrofix\.v1\.E") as e:
        service(MemoryStore(), path)
    assert why in str(e.value)
    assert repr(path) in str(e.value)


def test_process_without_an_index_does_not_corrupt_it(store: Store) -> None:
    """After a process without the index writes metadata, the index still finds the new value."""
    knows = service(store, "target")
    operation = reported(knows, {"target": "old"})
    assert listed(knows, "metadata.target = old") == [operation]
    service(store).reporter(operation).report(ExportMetadata(target="new"))
    assert listed(knows, "metadata.target = new") == [operation]
    assert listed(knows, "metadata.target = old") == []


class EarlierStage(enum.Enum):
    STAGE_UNSPECIFIED = 0
    QUEUED = 1


@message("lrofix.v1.ExportMetadata")
@attrs.frozen
class EarlierExport:
    """The export metadata of an earlier release, with fewer fields and fewer stages."""

    verb: str = attrs.field(default="", metadata=field_number(4))
    stage: EarlierStage = attrs.field(
        default=EarlierStage.STAGE_UNSPECIFIED, metadata=field_number(9)
    )


@pytest.fixture
def earlier(store: Store) -> Service:
    """Return a service of a release without the field ``target`` and the stage COPYING."""
    made = service(store, "verb", "stage", metadata=EarlierExport)
    declare(made, "acme.v1.Works.Import", ImportMetadata, "target")
    return made


def test_an_earlier_release_does_not_corrupt_an_index(store: Store, earlier: Service) -> None:
    """An index still finds a record after a cancel in an earlier release has written the record."""
    later = service(store, "verb", "stage", "target")
    one, other = reported(later, {"target": "new", "stage": "COPYING"}), reported(later, {})
    earlier.cancel(one)
    earlier.cancel(other)
    for text in ("metadata.target = new", "metadata.stage = COPYING"):
        assert listed(later, text) == [one]
    assert listed(later, "metadata.target = ''") == [other]


def test_metadata_in_binary_form_does_not_grow_the_index(store: Store, earlier: Service) -> None:
    """Binary metadata gets no keys for paths whose fields this release may not know."""
    pytest.importorskip("google.protobuf")
    later = service(store, "verb", "stage", "target")

    def binary(made: Service, message: object) -> str:
        packed = made.types.pack(message)
        operation = reported(later, made.types.binary_payload(packed))
        earlier.cancel(operation)
        return operation

    whole = binary(later, ExportMetadata(target="new", stage=Stage.COPYING, verb="copy"))
    known = binary(earlier, EarlierExport(verb="copy"))
    for text in ("metadata.target = new", "metadata.stage = COPYING"):
        assert listed(later, text) == [whole]
    assert {*listed(later, "metadata.verb = copy")} == {known, whole}
    assert [len(keys_of(later, each)) for each in (whole, known)] == [1, 3]


def test_records_stay_ordered_when_their_expiry_changes(clock: ManualClock) -> None:
    """MemoryStore removes records in the order of their expiry, even after expiries change."""
    store = MemoryStore(clock)
    late, soon, never = clock.advance(seconds=3), clock.advance(seconds=1), None
    for unique_id in "abc":
        insert(store, record_of(clock, unique_id))
        store.update(f"operations/{unique_id}", lambda r: r.next_version(expire_time=late))
    store.update("operations/b", lambda r: r.next_version(expire_time=never))
    store.update("operations/c", lambda r: r.next_version(expire_time=soon))
    assert store.expire(9).names == ("operations/a", "operations/c")
    assert store.expire(9).names == ()
    store.update("operations/b", lambda r: r.next_version(expire_time=late))
    assert store.expire(9).names == ("operations/b",)


# -- SQLite ---------------------------------------------------------------------------------------


def found(store: Store) -> list[str]:
    """Return the IDs that have the wanted key. A scan of only one row must find some of them."""
    assert ids(store.page("", None, 99, WANTED, 1).records) != []
    return ids(store.page("", None, 99, WANTED).records)


def fill(store: Store, clock: ManualClock) -> None:
    """Insert records with the wanted key, with other keys, and without keys."""
    for unique_id, keys in (("a", KEYED), ("b", '{"k1":"b"}'), ("c", '{"k2":"a"}'), ("d", None)):
        insert(store, record_of(clock, unique_id, keys=keys))


def test_an_index_is_made_in_a_file_with_records(tmp_path: Path, clock: ManualClock) -> None:
    """An index is created once in a file that has records. Without it, a list scans all records."""
    path = tmp_path / "operations.db"

    def version() -> Any:
        with closing(sqlite3.connect(path)) as link:
            return link.execute("PRAGMA schema_version").fetchone()

    with closing(SQLiteStore(path, clock=clock)) as store:
        fill(store, clock)
        assert found(store) == ["a", "c", "d"]
        store.index({"k1"})
        assert found(store) == ["a", "c", "d"]
        before = version()
    with closing(SQLiteStore(path, clock=clock)) as other:
        other.index({"k1"})
        assert version() == before
        assert found(other) == ["a", "c", "d"]


# -- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def schema() -> str:
    """Return the name of a new schema."""
    pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server

    return shared_server().fresh_schema()


@pytest.fixture
def plain(schema: str) -> Iterator[Any]:
    """Return the test's own psycopg connection to the schema."""
    import psycopg

    from tests.services.postgres import shared_server

    with psycopg.connect(shared_server().url, autocommit=True) as link:
        link.execute(f"SET search_path = {schema}".encode())
        yield link


@pytest.fixture
def make(schema: str, clock: ManualClock) -> Iterator[Any]:
    """Return a function that opens a store on the schema."""
    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import UNHURRIED, shared_server

    made: list[PostgresStore] = []

    def open_() -> PostgresStore:
        store = PostgresStore(shared_server().url, schema=schema, clock=clock, **UNHURRIED)
        store.secret()  # the first use creates the schema
        made.append(store)
        return made[-1]

    yield open_
    for store in made:
        store.close()


@contextmanager
def under_way(schema: str) -> Iterator[None]:
    """During the block, keep a transaction open that has changed a record."""
    import psycopg

    from tests.services.postgres import shared_server

    with psycopg.connect(shared_server().url) as link:
        link.execute(
            f"UPDATE {schema}.lro_operations SET caller = 'x' WHERE name LIKE '%b'".encode()
        )
        yield


INDEX = """SELECT indisvalid, indisunique, c.oid FROM pg_index i JOIN pg_class c
    ON c.oid = indexrelid WHERE relname = 'lro_operations_by_k1'
    AND relnamespace = %s::regnamespace"""
AT_WORK = "SELECT pid FROM pg_stat_activity WHERE query LIKE %s AND wait_event_type = 'Lock'"
TRIED = "SELECT pid FROM pg_stat_activity WHERE query LIKE %s AND state = 'idle'"


def sees(plain: Any, query: str, statement: str) -> Any:
    """Wait until a database process runs a statement with this beginning, and return its row."""
    return until(lambda: plain.execute(query, (f"{statement}%",)).fetchone())


def test_an_index_is_made_once_while_others_write(make, plain, schema, clock) -> None:
    """While CREATE INDEX waits for a transaction, writers continue, and their rows are indexed."""
    store, other = make(), make()
    fill(store, clock)
    with under_way(schema):
        store.index({"k1"})
        sees(plain, AT_WORK, "CREATE INDEX")
        other.index({"k1"})  # waits for the first store and then finds its index
        sees(plain, TRIED, "SELECT pg_try_advisory_lock")
        insert(store, record_of(clock, "e", keys=KEYED))
        store.update("operations/a", lambda record: record.next_version(caller="y"))
    for one in (store, other):
        one.create_schema()  # waits until the index is made
    ((valid, unique, _),) = plain.execute(INDEX, (schema,)).fetchall()
    assert (valid, unique) == (True, False)
    assert found(store) == found(other) == ["a", "c", "d", "e"]


def test_a_process_that_dies_making_an_index_leaves_it_to_the_next(
    make, plain, schema, clock, caplog
) -> None:
    """If a process dies while it creates an index, the next process creates the index again."""
    store = make()
    fill(store, clock)
    with under_way(schema):
        store.index({"k1"})
        plain.execute("SELECT pg_terminate_backend(%s)", sees(plain, AT_WORK, "CREATE INDEX"))
        until(lambda: "are not made yet" in caplog.text)
        store.close()
    assert plain.execute(INDEX, (schema,)).fetchone()[0] is False
    other = make()
    other.index({"k1"})
    other.create_schema()  # waits until the index is made
    assert plain.execute(INDEX, (schema,)).fetchone()[:2] == (True, False)
    assert found(other) == ["a", "c", "d"]


@message("acme.v1.Counted")
@attrs.frozen
class Counted:
    count: int = 0
    maybe: int | None = None


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("index", [(), ("count", "maybe")])
def test_filter_finds_plain_int_stored_as_number_or_text(
    kind: str, index: tuple[str, ...], tmp_path: Path
) -> None:
    """A filter compares a plain int by its value, whichever JSON form the store has."""
    large = 2**53 + 1
    forms: list[dict[str, Json]] = [{}, {"count": 2}, {"count": 5, "maybe": 0}]
    forms += [{"count": "5", "maybe": "0"}, {"count": str(large)}, {"count": -7}]
    with store_of(kind, ManualClock(), tmp_path) as store:
        made = service(store, *index, metadata=Counted)
        names = [reported(made, one, "acme.v1.Counted") for one in forms]
        for text, places in {
            "metadata.count > 3": {2, 3, 4},
            "metadata.count = 5": {2, 3},
            f"metadata.count = {large}": {4},
            f"metadata.count > {large - 1}": {4},
            "metadata.count < 0": {5},
            "metadata.count = 0": {0},
            "metadata.maybe = 0": {2, 3},
            "metadata.maybe:*": {2, 3},
        }.items():
            assert {*listed(made, text)} == {names[place] for place in places}, text
