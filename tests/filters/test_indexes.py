"""Indexes of metadata: what is declared, the keys of records, and what databases make of them."""

from __future__ import annotations

import enum
import json
import threading
import time
import typing
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import attrs
import pytest

from lro import (
    Any,
    DeclarationError,
    Empty,
    Int64,
    ListOperationsRequest,
    Options,
    Service,
    TypeRegistry,
    message,
)
from lro._base.status import type_url
from lro._filters.filter import compile_filter
from lro._filters.indexes import CALLER, Indexes
from lro._filters.prefilter import ABSENT, KeyIn, key_value
from lro._messages.shapes import shape_of
from lro._model.operation import report
from lro.adapters import Store
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from lro.testing._samples import ids, insert, record_of
from lro.types import Json
from tests.filters.every_field_kind import NAME, Everything
from tests.filters.messages import TYPES, ExportMetadata, ImportMetadata, Stage
from tests.stores.record_strategies import EarlierExport
from tests.waiting import PATIENCE
from tests.work_messages import WorkRequest

EXPORT = "lrofix.v1.ExportMetadata"
IMPORT = "lrofix.v1.ImportMetadata"
METHOD = "acme.v1.Works.Export"
WANTED = KeyIn("k1", frozenset({"a"}))
KEYED = json.dumps({"k1": "a"})


def indexes(*paths: str, types: TypeRegistry | None = None) -> Indexes:
    """The indexes by these paths of an export's metadata."""
    made = Indexes(types or TypeRegistry(ExportMetadata, ImportMetadata, Everything))
    for path in paths:
        made.declare(path, EXPORT, shape_of(ExportMetadata))
    return made


def marked(made: Indexes, payload: Json | bytes, name: str = EXPORT, **more: typing.Any) -> Json:
    """The keys of a record with this metadata, where there is one path, and of its caller."""
    record = record_of(ManualClock(), metadata=Any(type_url(name), payload), **more)
    keys: dict[str, Json] = json.loads(made.mark(record).keys or "null")
    return keys


def one(path: str, payload: Json | bytes, name: str = EXPORT) -> Json:
    """The value of the key for a path; ``"unknown"`` if there is none."""
    made = indexes(path)
    (key,) = made.keys
    keys = marked(made, payload, name)
    assert isinstance(keys, dict)
    return keys.get(key, "unknown")


@pytest.mark.parametrize(
    ("path", "payload", "value"),
    [
        ("target", {"target": "alpha"}, "alpha"),
        ("target", {"target": "x\0y"}, "x\0y"),
        ("target", {"target": ""}, ""),
        ("stage", {"stage": "COPYING"}, Stage.COPYING.value),
        ("cancel_requested", {"cancelRequested": True}, True),
        ("progress_percent", {"progressPercent": 5.0}, 5),
        ("bytes_done", {"bytesDone": "05"}, 5),
        ("quota", {"quota": "18446744073709551615"}, 2**64 - 1),
        ("rate", {"rate": 5}, 5.0),
        ("rate", {"rate": "Infinity"}, float("inf")),
        ("ratio", {"ratio": 0.1}, 0.10000000149011612),
        ("create_time", {"createTime": "1970-01-01T01:00:00.5+01:00"}, 500_000_000),
        ("elapsed", {"elapsed": "1.500s"}, 1_500_000_000),
        ("note", {"note": "n"}, "n"),
        ("priority", {"priority": 7}, 7),
        ("labels.team", {"labels": {"team": "data"}}, "data"),
        ('labels."a.b"', {"labels": {"a.b": "data"}}, "data"),
        ("shard_names.7", {"shardNames": {"7": "seven"}}, "seven"),
        ("current_step.stage", {"currentStep": {"stage": "COPYING"}}, Stage.COPYING.value),
    ],
)
def test_a_key_stands_for_what_is_there(path: str, payload: Json, value: typing.Any) -> None:
    """For a value as filters read it; for one of an enum by its number, whose name may change."""
    assert one(path, payload) == key_value(value)


@pytest.mark.parametrize(
    ("path", "payload", "name"),
    [
        ("note", {}, EXPORT),
        ("target", {}, EXPORT),
        ("target", {"target": None}, EXPORT),
        ("stage", {}, EXPORT),
        ("current_step.name", {"currentStep": {}}, EXPORT),
        ("priority", {"priority": None}, EXPORT),
        ("target", {"target": 5}, EXPORT),
        ("rate", {"rate": "0.5"}, EXPORT),
        ("labels.team", {"labels": []}, EXPORT),
        ("current_step.name", {}, EXPORT),
        ("target", [5], EXPORT),
        ("verb", {"target": "alpha"}, IMPORT),
        ("verb", ["verb"], IMPORT),
        ("verb", {}, NAME),
    ],
)
def test_a_key_says_that_nothing_is_there(path: str, payload: Json, name: str) -> None:
    """Nothing (and no default, which may be another one tomorrow), or nothing of the type."""
    assert one(path, payload, name) == ABSENT


@pytest.mark.parametrize(
    ("path", "payload", "name"),
    [
        ("target", {"target": "alpha"}, "acme.v1.Unknown"),
        ("target", b"\xff\xff", EXPORT),
        ("target", b"", "acme.v1.Unknown"),
        ("verb", {"verb": "copy"}, IMPORT),
        ("stage", {"stage": 7}, EXPORT),
    ],
)
def test_a_key_is_left_out_where_others_may_know_more(
    path: str, payload: Json | bytes, name: str
) -> None:
    """Who knows the type, a field of a later release, or the name of an enum's number."""
    assert one(path, payload, name) == "unknown"


def test_one_key_is_of_all_types_with_its_path() -> None:
    """However it is spelled, if the field is of the same kind; else each type has its own."""
    made = indexes("progress_percent", "progressPercent", "target")
    assert len(made.keys) == 2
    made.declare("target", IMPORT, shape_of(ImportMetadata))
    assert len(made.keys) == 2
    one, other = marked(made, {"target": "a"}), marked(made, {"target": "a"}, IMPORT)
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    (key,) = [key for key in made.keys if one[key] == other[key] == key_value("a")]
    known = [TYPES[EXPORT], TYPES[IMPORT]]
    asked = compile_filter("metadata.target = a", metadata=known, response=[])
    assert str(KeyIn(key, frozenset({key_value("a")}))) in str(asked.prefilter(made.of))
    made.declare("priority", EXPORT, shape_of(ExportMetadata))
    made.declare("priority", IMPORT, shape_of(ImportMetadata))
    assert len(made.keys) == 4
    asked = compile_filter("metadata.priority = 5", metadata=known, response=[])
    assert "KeyIn" not in str(asked.prefilter(made.of))


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
def test_a_release_finds_what_the_one_before_has_written(text: str, payload: Json) -> None:
    """A field of another kind is another key; the names of an enum's values may change."""
    clock = ManualClock()
    releases = []
    for cls in (First, Second):
        service = Service(MemoryStore(clock), InlineExecutor(), maintenance=False)
        service.declare(
            METHOD,
            request=Empty,
            response=Empty,
            metadata=cls,
            options=Options(indexed_paths=["value", "stage"]),
        )
        releases.append(service)
    packed = Any(type_url("acme.v1.Changing"), payload)
    record = record_of(clock, method=METHOD, metadata=packed)
    insert(releases[1].store, releases[0].methods.indexes.mark(record))
    found = releases[1].list(ListOperationsRequest(filter=text))
    assert [operation.name for operation in found.operations] == [record.name]


def test_steps_without_an_index_have_no_key() -> None:
    """Records of an unknown type have no such fields."""
    made = indexes("target")
    for name in (EXPORT, NAME, "acme.v1.Unknown"):
        assert made.of(name, ()) is None


def test_without_an_index_there_are_no_keys() -> None:
    """And those that another process has written are not kept: they may be true no more."""
    clock = ManualClock()
    made = indexes()
    plain = record_of(clock)
    assert made.mark(plain) is plain
    assert made.mark(record_of(clock, keys=KEYED)).keys is None
    assert made.keys == frozenset()


def test_callers_have_a_key() -> None:
    """With or without metadata; and then each path has one, too."""
    made = indexes("target")
    made.declare_caller()
    assert made.keys == {CALLER, *indexes("target").keys}
    (key,) = indexes("target").keys
    record = record_of(ManualClock(), caller="ann")
    assert json.loads(made.mark(record).keys or "") == {CALLER: key_value("ann"), key: ABSENT}
    assert marked(made, {"target": "a"}, caller="ann") == {
        CALLER: key_value("ann"),
        key: key_value("a"),
    }
    assert marked(made, b"\xff", caller="ann") == {CALLER: key_value("ann")}


def test_marking_again_changes_nothing() -> None:
    """So that nothing is written."""
    made = indexes("target", "verb")
    record = made.mark(record_of(ManualClock(), metadata=Any(type_url(EXPORT), {"verb": "a"})))
    assert made.mark(record) is record


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing", "no field 'nothing'"),
        ("tags", "does not lead to one number"),
        ("extra.a", "does not lead to one number"),
        ("a OR b", "is no path"),
        ("(", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_an_index_is_refused(path: str, why: str) -> None:
    """When it is declared, with the path and the type in the error."""
    with pytest.raises(DeclarationError, match=r"cannot be an index of lrofix\.v1\.E") as e:
        service(MemoryStore(), path)
    assert why in str(e.value)
    assert repr(path) in str(e.value)


@pytest.mark.parametrize("index", ["target", (5,), None])
def test_indexes_are_a_tuple_of_paths(index: typing.Any) -> None:
    """A single text would be taken for its letters."""
    with pytest.raises(DeclarationError, match="must be a tuple of paths"):
        Options(indexed_paths=index)


def service(store: Store, *index: str, metadata: type = ExportMetadata) -> Service:
    """A service of one method with these indexes."""
    made = Service(store, InlineExecutor(), maintenance=False)
    made.declare(
        METHOD,
        request=WorkRequest,
        response=Empty,
        metadata=metadata,
        options=Options(indexed_paths=index),
    )
    return made


def listed(service: Service, text: str) -> list[str]:
    """What a list shows."""
    return [one.name for one in service.list(ListOperationsRequest(filter=text)).operations]


def test_who_does_not_know_an_index_does_not_falsify_it(store: Store, clock: ManualClock) -> None:
    """A process without it reports, another one finds the operation by its new metadata."""
    knows = service(store, "target")
    record = record_of(clock, metadata=Any(type_url(EXPORT), {"target": "old"}), method=METHOD)
    insert(store, knows.specs[METHOD].stamp(record))
    assert listed(knows, "metadata.target = old") == [record.name]
    service(store).reporter(record.name).report(ExportMetadata(target="new"))
    assert listed(knows, "metadata.target = new") == [record.name]
    assert listed(knows, "metadata.target = old") == []


def test_an_earlier_release_does_not_falsify_an_index(store: Store, clock: ManualClock) -> None:
    """It knows neither the field nor the enum's new name, and is asked to cancel the operation."""
    earlier = service(store, "verb", "stage", metadata=EarlierExport)
    earlier.types.register(ImportMetadata)
    earlier.methods.indexes.declare("target", IMPORT, shape_of(ImportMetadata))
    later = service(store, "verb", "stage", "target")
    payload: Json = {"target": "new", "stage": "COPYING"}
    insert(store, record_of(clock, metadata=Any(type_url(EXPORT), payload), method=METHOD))
    earlier.cancel("operations/a")
    insert(store, record_of(clock, "b", metadata=Any(type_url(EXPORT), {}), method=METHOD))
    earlier.cancel("operations/b")
    for text in ("metadata.target = new", "metadata.stage = COPYING"):
        assert listed(later, text) == ["operations/a"]
    assert listed(later, "metadata.target = ''") == ["operations/b"]


def test_metadata_in_binary_form_does_not_grow_the_index(store: Store, clock: ManualClock) -> None:
    """The fields that it does not know are there, though it cannot read them."""
    pytest.importorskip("google.protobuf")
    earlier = service(store, "verb", "stage", metadata=EarlierExport)
    earlier.types.register(ImportMetadata)
    earlier.methods.indexes.declare("target", IMPORT, shape_of(ImportMetadata))
    later = service(store, "verb", "stage", "target")
    message = later.types.pack(ExportMetadata(target="new", stage=Stage.COPYING, verb="copy"))
    whole = Any(message.type_url, later.types.binary_payload(message))
    message = earlier.types.pack(EarlierExport(verb="copy"))
    known = Any(message.type_url, earlier.types.binary_payload(message))
    for name, packed in (("whole", whole), ("known", known)):
        insert(store, record_of(clock, name, metadata=packed, method=METHOD))
        earlier.cancel(f"operations/{name}")
    for text in ("metadata.target = new", "metadata.stage = COPYING"):
        assert listed(later, text) == ["operations/whole"]
    assert listed(later, "metadata.verb = copy") == ["operations/known", "operations/whole"]
    keys = [json.loads(store.get(f"operations/{name}").keys or "") for name in ("whole", "known")]
    assert [len(each) for each in keys] == [1, 3]


def test_a_time_of_expiry_may_change(clock: ManualClock) -> None:
    """In memory, where the order of expiry is kept beside those of lists."""
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
    """What is found by the key, however far one look goes."""
    assert ids(store.page("", None, 99, WANTED, 1).records) != []
    return ids(store.page("", None, 99, WANTED).records)


def fill(store: Store, clock: ManualClock) -> None:
    """Records with the key, with another one, and without any."""
    for unique_id, keys in (("a", KEYED), ("b", '{"k1":"b"}'), ("c", '{"k2":"a"}'), ("d", None)):
        insert(store, record_of(clock, unique_id, keys=keys))


@contextmanager
def opened(path: Path, clock: ManualClock) -> Iterator[SQLiteStore]:
    """A store on a file."""
    with closing(SQLiteStore(path, clock=clock)) as store:
        yield store


def test_an_index_is_made_in_a_file_with_records(tmp_path: Path, clock: ManualClock) -> None:
    """It is found there by the next process, which makes none; a process without it reads all."""
    path = tmp_path / "operations.db"
    with opened(path, clock) as store:
        fill(store, clock)
        assert found(store) == ["a", "c", "d"]
        store.index({"k1"})
        assert found(store) == ["a", "c", "d"]
    with opened(path, clock) as other:
        before = other._file.rows("PRAGMA schema_version")
        other.index({"k1"})
        assert other._file.rows("PRAGMA schema_version") == before
        assert found(other) == ["a", "c", "d"]


# -- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def schema() -> str:
    """The name of a new schema."""
    pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server

    return shared_server().fresh_schema()


@pytest.fixture
def plain(schema: str) -> Iterator[typing.Any]:
    """A connection of psycopg's own, in that schema."""
    import psycopg

    from tests.services.postgres import shared_server

    with psycopg.connect(shared_server().url, autocommit=True) as link:
        link.execute(f"SET search_path = {schema}".encode())
        yield link


@pytest.fixture
def make(schema: str, clock: ManualClock) -> Iterator[typing.Any]:
    """Opens stores on that schema."""
    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import UNHURRIED, shared_server

    made: list[PostgresStore] = []

    def open_() -> PostgresStore:
        store = PostgresStore(shared_server().url, schema=schema, clock=clock, **UNHURRIED)
        store.secret()  # its first use, which makes the schema
        made.append(store)
        return made[-1]

    yield open_
    for store in made:
        store.close()


@contextmanager
def under_way(schema: str) -> Iterator[None]:
    """A transaction that has changed a record, and ends with the block."""
    import psycopg

    from tests.services.postgres import shared_server

    with psycopg.connect(shared_server().url) as link:
        link.execute(f"UPDATE {schema}.operations SET caller = 'x' WHERE name LIKE '%b'".encode())
        yield


INDEX = """SELECT indisvalid, indisunique, c.oid FROM pg_index i JOIN pg_class c
    ON c.oid = indexrelid WHERE relname = 'operations_by_k1' AND relnamespace = %s::regnamespace"""
AT_WORK = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND wait_event_type = 'Lock'"


TRIED = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND state = 'idle'"


def until(
    plain: typing.Any, statement: str, thread: threading.Thread, found: str = AT_WORK
) -> None:
    """Return once a transaction waits within such a statement, or has tried it."""
    end = time.monotonic() + PATIENCE
    while plain.execute(found, (f"{statement}%",)).fetchone() == (0,):
        assert thread.is_alive()
        assert time.monotonic() < end


def indexing(store: Store) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that makes the index, and the errors that it raises."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            store.index({"k1"})
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, raised


def over(thread: threading.Thread) -> None:
    """Wait for its end."""
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_index_is_made_while_others_write(
    make: typing.Any, plain: typing.Any, schema: str, clock: ManualClock
) -> None:
    """It waits for a transaction under way; none waits for it, and nothing is left out."""
    store = make()
    fill(store, clock)
    with under_way(schema):
        thread, raised = indexing(store)
        until(plain, "CREATE INDEX", thread)
        insert(store, record_of(clock, "e", keys=KEYED))
        store.update("operations/a", report(Any("x/a.Meta", {}), None, clock()))
    over(thread)
    assert raised == []
    assert plain.execute(INDEX, (schema,)).fetchone()[:2] == (True, False)
    assert found(store) == ["a", "c", "d", "e"]


def test_two_processes_make_one_index(
    make: typing.Any, plain: typing.Any, schema: str, clock: ManualClock
) -> None:
    """The second waits for the first, and finds it made."""
    one, other = make(), make()
    fill(one, clock)
    with under_way(schema):
        first, raised = indexing(one)
        until(plain, "CREATE INDEX", first)
        second, also_raised = indexing(other)
        until(plain, "SELECT pg_try_advisory_lock", second, TRIED)
    over(first)
    over(second)
    assert (raised, also_raised) == ([], [])
    assert len(plain.execute(INDEX, (schema,)).fetchall()) == 1
    assert found(one) == found(other) == ["a", "c", "d"]


def test_an_index_that_is_there_is_not_waited_for(
    make: typing.Any, plain: typing.Any, schema: str, clock: ManualClock
) -> None:
    """A second declaration of it asks for no lock."""
    from lro.stores.postgres import _schema

    make().index({"k1"})
    made = plain.execute(INDEX, (schema,)).fetchone()
    plain.execute("SELECT pg_advisory_lock(%s)", (_schema._lock_number(schema),))
    again = make()
    again.index({"k1"})
    again.index({"k1"})
    assert plain.execute(INDEX, (schema,)).fetchone() == made


def test_an_index_left_unfinished_is_replaced(
    make: typing.Any, plain: typing.Any, schema: str, clock: ManualClock
) -> None:
    """As one that failed, or whose maker died, leaves it: it would never be used."""
    import psycopg

    store = make()
    fill(store, clock)
    text = "CREATE UNIQUE INDEX CONCURRENTLY operations_by_k1 ON operations (parent_id)"
    with pytest.raises(psycopg.errors.UniqueViolation):
        plain.execute(text)
    assert plain.execute(INDEX, (schema,)).fetchone()[:2] == (False, True)
    store.index({"k1"})
    assert plain.execute(INDEX, (schema,)).fetchone()[:2] == (True, False)
    assert found(store) == ["a", "c", "d"]


def test_a_process_that_dies_making_an_index_leaves_it_to_the_next(
    make: typing.Any, plain: typing.Any, schema: str, clock: ManualClock
) -> None:
    """It raises; the next process finds what is left and no lock, and makes the index."""
    store = make()
    fill(store, clock)
    with under_way(schema):
        thread, raised = indexing(store)
        until(plain, "CREATE INDEX", thread)
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE I%'"
        plain.execute(kill)
        over(thread)
    assert [type(exc).__name__ for exc in raised] == ["Unavailable"]
    assert plain.execute(INDEX, (schema,)).fetchone()[0] is False
    store.index({"k1"})
    assert found(store) == ["a", "c", "d"]
