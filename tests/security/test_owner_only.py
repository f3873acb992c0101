"""``owner_only``: a caller without a name sees no operation with an owner (spec §3.1(5))."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lro
from lro import Code, asgi, wsgi
from lro.http import OperationsEdge
from tests.http.counting_service import CountRequest, build
from tests.security.guarded import START, STORES, VERBS, Place, guarded

SEEN = {"BatchGetOperations", "FullBatch", "ListOperations", "WatchOperations", "WatchMany", START}
"""Verbs that answer OK: they leave out a hidden operation, or report it as missing."""


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture(params=list(VERBS))
def place(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> Iterator[Place]:
    """A service behind each edge that shows operations to their owners only."""
    with guarded(request.param, "function", store, tmp_path, owner_only=True) as made:
        yield made


def test_caller_without_name_does_not_see_operations_with_owner(place: Place) -> None:
    """For a caller without a name, each verb treats an operation with an owner as missing."""
    name = place.start("ann")
    before = place.counting.service.store.get(name)
    for verb in place.verbs:
        place.script.authenticate = lambda headers, verb=verb: "" if len(verb) % 2 else None
        answer = place.call(verb, name)
        assert answer.code is (Code.OK if verb in SEEN else Code.NOT_FOUND), verb
        if verb in ("BatchGetOperations", "FullBatch"):
            assert answer.text == f'{{"operations":[],"missing":["{name}"]}}'
        elif verb in ("WatchOperations", "WatchMany"):
            assert answer.text.startswith("id: 1\nevent: missing\n")
        elif answer.code is Code.OK:
            assert name not in answer.text, verb
    assert place.counting.service.store.get(name) == before


@pytest.mark.parametrize("unnamed", ["", None])
def test_callers_with_and_without_name_see_their_own(place: Place, unnamed: Any) -> None:
    """Callers without a name share the operations that one of them has started."""
    for caller in ("ann", unnamed):
        place.script.authenticate = lambda headers, caller=caller: caller
        name = place.start()
        place.counting.finish(name)
        for verb in sorted(place.verbs, key=lambda verb: verb == "DeleteOperation"):
            answer = place.call(verb, name)
            assert answer.code is Code.OK, verb
            if verb not in ("DeleteOperation", "CancelOperation", START):
                assert name in answer.text, verb


def test_list_hides_what_was_started_before_owners_were_indexed() -> None:
    """Started without ``owner_only``, an operation has no indexed owner but is still hidden."""
    before = build()
    names = {who: before.count.start(CountRequest(), caller=who).name for who in ("ann", "bob")}
    guarded = build(before.service.store, owner_only=True).service
    for caller, name in names.items():
        listed = guarded.list(lro.wire.ListOperationsRequest(), caller=caller)
        assert [one.name for one in listed.operations] == [name]


@pytest.mark.parametrize("make", [OperationsEdge, asgi.OperationsApp, wsgi.OperationsApp])
def test_open_edge_refuses_method_of_guarded_service(make: Callable[..., Any]) -> None:
    """An edge refuses another service's method, which callers could start unauthenticated."""
    guarded, opened = build(owner_only=True), build().service
    with pytest.raises(lro.DeclarationError) as refused:
        make(opened, starts={"/v1/open": guarded.count})
    assert str(refused.value) == "acme.v1.Things.Count: is not declared by this service"


def add_to_grpc(service: lro.Service, **options: Any) -> None:
    """Add the service to a gRPC server that is never started."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    lro_grpc = importlib.import_module("lro.grpc")
    lro_grpc.add_to(grpc.server(ThreadPoolExecutor(1)), service, **options)


each_edge = pytest.mark.parametrize(
    "make_edge", [asgi.OperationsApp, wsgi.OperationsApp, add_to_grpc]
)


@each_edge
def test_edge_without_authenticate_is_refused(make_edge: Callable[..., Any]) -> None:
    """An owner-only service needs ``authenticate``, or all callers would be one owner."""
    counting = build(owner_only=True)
    with pytest.raises(lro.DeclarationError, match=r"^authenticate: is needed, since"):
        make_edge(counting.service)
    make_edge(counting.service, authenticate=lambda headers: None)
    counting.service.close()


@each_edge
def test_log_warns_of_authorize_without_authenticate(
    make_edge: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An edge with ``authorize`` but no ``authenticate`` is allowed, but logs a warning."""
    counting = build(authorize=lambda caller, verb, name: True)
    make_edge(counting.service, authenticate=lambda headers: None)
    assert caplog.text == ""
    make_edge(counting.service)
    assert "has no authenticate: authorize gets no names of callers" in caplog.text
    counting.service.close()
