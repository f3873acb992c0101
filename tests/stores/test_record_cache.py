"""The cache of records that SQL stores keep: how much of it stays, and what counts as current."""

from __future__ import annotations

import pytest

from lro.stores import _rows
from lro.stores._rows import RecordCache
from lro.testing import ManualClock
from tests.stores.samples import end_of, record_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_the_oldest_records_are_dropped(clock: ManualClock) -> None:
    """Those kept fit into the limit together; a very large record is not kept at all."""
    cache = RecordCache()
    length = _rows.MAX_BYTES // 20 // 8
    for number in range(30):
        cache.keep(record_of(clock, str(number)), length)
    assert 15 < len(cache._kept) < 20
    assert cache.get("operations/0") is None
    assert cache.get("operations/29") is not None
    cache.keep(record_of(clock, "29"), _rows.MAX_BYTES)
    assert cache.get("operations/29") is None
    for name in ("operations/29", "operations/28", "operations/28"):
        cache.forget(name)
    assert cache.get("operations/28") is None
    for name in list(cache._kept):
        cache.forget(name)
    assert cache._bytes == 0


def test_an_ended_record_is_kept_only_if_it_was_asked_for(clock: ManualClock) -> None:
    """Before its end, or since: what no caller asks for must not fill the cache."""
    cache = RecordCache()
    for name in "abc":
        cache.keep(record_of(clock, name), 7)
    assert cache.get("operations/b") is not None
    current = cache._kept["operations/c"]
    assert cache.current("operations/c", current.stamp) is current.record
    ended = {name: end_of(clock)(record_of(clock, name)) for name in "abcd"}
    for record in ended.values():
        cache.keep(record, 7)
    assert cache.get("operations/a") is None
    assert cache.get("operations/b") is ended["b"]
    assert cache.get("operations/c") is ended["c"]
    assert cache.get("operations/d") is None
    cache.keep(ended["d"], 7, wanted=True)
    assert cache.get("operations/d") is ended["d"]
    for record in ended.values():
        cache.forget(record.name)
    assert cache._bytes == 0
