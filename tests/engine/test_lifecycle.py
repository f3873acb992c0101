"""The test vectors for states and pages of operations, on both stores, with a manual clock."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest

from lro import Code, Empty, LroError, Status, TypeRegistry
from lro._model.operation import delete, end
from lro.adapters import Record
from lro.executors.inline import InlineExecutor
from lro.http import VERBS
from lro.wire import ListOperationsRequest, ListOperationsResponse, parse_duration, parse_name
from tests.engine.engine_parts import declared
from tests.filters.messages import ExportMetadata
from tests.vector_files import by_id, vectors
from tests.work_messages import WorkMetadata, WorkRequest

CASES = vectors("lifecycle")["cases"]
TYPES = TypeRegistry(ExportMetadata)
REPORTS = {
    "complete": lambda to, step: to.complete(TYPES.from_json(step["response"], strict=True)),
    "fail": lambda to, step: to.fail(Status(**{"code": 0, **step["error"]})),
    "finish": lambda to, _: to.finish(),
    "acknowledge_cancel": lambda to, _: to.acknowledge_cancel(),
    "set_metadata": lambda to, step: to.report(TYPES.from_json(step["metadata"], strict=True)),
}


CONTENT = vectors("paging")
EMPTY = TypeRegistry().pack(Empty())
MUTATIONS = {
    "append": lambda token: token + "A",
    "truncate": lambda token: token[:-1],
    "flip": lambda token: ("C" if token[0] == "B" else "B") + token[1:],
}


class Life:
    """A case of the vectors: its service, and its operations by their aliases."""

    def __init__(self, case, store, clock, make_service):
        self.clock = clock
        off = {f"{verb.title()}Operation" for verb in case.get("supports", {})}
        off |= {"ListOperations"} if "list" in case.get("supports", {}) else set()
        options = {"verbs": [verb for verb in VERBS if verb not in off]}
        if "ttl_days" in case:
            options["keep_for"] = timedelta(days=case["ttl_days"])
        self.service = make_service(store, InlineExecutor(), **options)
        self.method = self.service.declare(
            "lrofix.v1.Fixtures.Export",
            request=WorkRequest,
            response=Empty,
            metadata=ExportMetadata,
        )
        self.names = {}

    def name(self, alias):
        return self.names.get(alias, f"operations/unknown-{alias}")

    def step(self, step):
        act = self.report if step["do"] in REPORTS else getattr(self, step["do"])
        expected = step.get("expect", {})
        if "error" in expected:
            with pytest.raises(LroError) as caught:
                act(step)
            assert caught.value.code is Code[expected["error"]]
        else:
            act(step)

    def check(self, operation, expected):
        wanted = {key: expected[key] for key in ("done", "state", "result") if key in expected}
        result = "error" if operation.error else "response" if operation.response else None
        found = {"done": operation.done, "state": operation.state, "result": result}
        assert {key: found[key] for key in wanted} == wanted
        if "error_code" in expected:
            assert operation.error.code == expected["error_code"]

    def start(self, step):
        metadata = step.get("metadata")
        operation = self.method.start(
            WorkRequest(rest=step.get("payload", {})),
            request_id=step.get("request_id", ""),
            metadata=None if metadata is None else TYPES.from_json(metadata, strict=True),
            target=step.get("target", "") if step.get("exclusive") else "",
            caller=step.get("caller", ""),
            validate_only=step.get("validate_only", False),
        )
        expected = step["expect"]
        self.check(operation.operation, expected)
        if "same_as" in expected:
            assert operation.name == self.names[expected["same_as"]]
        elif expected.get("name_empty"):
            assert operation.name == ""
            return
        else:
            assert operation.name not in self.names.values()
        self.names[step["as"]] = operation.name

    def get(self, step):
        self.check(self.service.get(self.name(step["op"])), step["expect"])

    def wait(self, step):
        timeout = parse_duration(step["timeout"])
        self.check(self.service.wait(self.name(step["op"]), timeout), step["expect"])

    def cancel(self, step):
        assert self.service.cancel(self.name(step["op"])) is None

    def delete(self, step):
        assert self.service.delete(self.name(step["op"])) is None

    def list(self, step):
        page = self.service.list(ListOperationsRequest())
        known = {name: alias for alias, name in reversed(self.names.items())}
        assert sorted(known[one.name] for one in page.operations) == step["expect"]["ops"]

    def report(self, step):
        reporter = self.service.reporter(self.name(step["op"]))
        assert REPORTS[step["do"]](reporter, step) is step["expect"].get("applied")

    def is_cancel_requested(self, step):
        reporter = self.service.reporter(self.name(step["op"]))
        assert reporter.cancel_requested is step["expect"]["value"]

    def advance(self, step):
        self.clock.advance(step["seconds"])


@pytest.mark.parametrize("case", CASES, ids=by_id)
@pytest.mark.parametrize(
    ("store", "maintained"), [("sqlite", False), ("memory", True)], indirect=["store"]
)
def test_state_changes_follow_the_model(case, store, clock, make_service, maintained):
    """Each step of a case has the expected effect and reply, even if maintenance runs after it."""
    life = Life(case, store, clock, make_service)
    for step in case["steps"]:
        life.step(step)
        if maintained:
            life.service.run_maintenance()


class Walk:
    """A paging case of the vectors: its service, and the page tokens that it has saved."""

    def __init__(self, service, clock):
        self.service, self.clock = service, clock
        self.tokens = {}

    def insert(self, name, create_time):
        moment = datetime.fromisoformat(create_time)
        record = Record(
            name=name,
            parent=parse_name(name).parent,
            method="acme.v1.Works.Work",
            create_time=moment,
            update_time=moment,
        )
        self.service.store.insert(record, EMPTY, None)

    def fill(self, case):
        for record in case.get("store", ()):
            self.insert(record["name"], record["create_time"])
        if "generate" in case:
            plan = case["generate"]
            start = datetime.fromisoformat(plan["start"])
            for number in range(plan["count"]):
                moment = start + timedelta(seconds=number * plan["step_seconds"])
                self.insert(f"{plan['prefix']}{number:04d}", moment.isoformat())

    def step(self, step):
        match step["do"]:
            case "list":
                self.list(step)
            case "insert":
                self.insert(**step["record"])
            case "delete":
                self.service.store.update(step["name"], delete(self.clock()))
            case "complete":
                change = end(EMPTY, now=self.clock(), keep_for=timedelta(days=30))
                self.service.store.update(step["name"], change)
            case "advance":
                self.clock.advance(step["seconds"])
            case other:
                raise AssertionError(other)

    def list(self, step):
        request = dict(step["request"])
        token = request.get("page_token", "")
        if isinstance(token, dict):
            kept = self.tokens[token["saved"]]
            request["page_token"] = MUTATIONS.get(token.get("mutate"), str)(kept)
        expected = step["expect"]
        if "error" in expected:
            with pytest.raises(LroError) as caught:
                self.service.list(ListOperationsRequest(**request))
            assert caught.value.code is Code[expected["error"]]
            return
        page = self.service.list(ListOperationsRequest(**request))
        names = [operation.name for operation in page.operations]
        if "names" in expected:
            assert names == expected["names"]
        else:
            found = (len(names), names[0], names[-1])
            assert found == (expected["count"], expected["first"], expected["last"])
        assert bool(page.next_page_token) is expected["next"]
        self.tokens[step.get("save_token", "")] = page.next_page_token


@pytest.mark.parametrize("case", CONTENT["cases"], ids=by_id)
def test_page_walk_follows_the_model(case, store, clock, make_service):
    """Each page has the expected operations, and has a token if and only if more pages follow."""
    service = make_service(store, InlineExecutor())
    declared(service)
    walk = Walk(service, clock)
    walk.fill(case)
    for step in case["steps"]:
        walk.step(step)


def test_page_constants_match_the_vectors():
    """The page sizes and the lifetime of page tokens equal those in the vectors."""
    from lro._model import page_tokens

    wanted = [CONTENT[key] for key in ("default_page_size", "max_page_size", "token_ttl_seconds")]
    life = page_tokens.TOKEN_LIFE.total_seconds()
    assert [page_tokens.DEFAULT_PAGE_SIZE, page_tokens.MAX_PAGE_SIZE, life] == wanted
    assert set(CONTENT["mutations"]) == set(MUTATIONS)


def test_a_filter_walks_on_through_what_does_not_match(store, make_service, clock):
    """Matches of a filter that are far apart are all found, each exactly once (spec §3.4(7))."""
    service = make_service(store, InlineExecutor())
    method = declared(service)
    names = []
    for number in range(450):
        clock.advance(1)
        operation = method.start(WorkRequest(), metadata=WorkMetadata(percent=number))
        names.append(operation.name)
    wanted = "metadata.percent = 3 OR metadata.percent = 444 OR metadata.percent = 200"
    found, token = [], ""
    while True:
        request = ListOperationsRequest(filter=wanted, page_size=1, page_token=token)
        page = service.list(request)
        found += [operation.name for operation in page.operations]
        token = page.next_page_token
        if not token:
            break
    assert found == [names[444], names[200], names[3]]


def test_walk_of_short_pages_ends(store, make_service, clock):
    """A walk through all pages ends even if the store returns one record at a time."""
    service = make_service(store, InlineExecutor(), clock=lambda: 0.0)
    method = declared(service)
    for _ in range(60):
        method.start(WorkRequest(), metadata=WorkMetadata(percent=5))
    page, asked = service.store.page, []

    def short(parent, after, limit, prefilter, scan, max_bytes):
        asked.append(scan)
        return page(parent, after, 1, prefilter, scan, max_bytes)

    service.store.page = short
    found = service.list(ListOperationsRequest(filter="metadata.percent < 5"))
    assert found == ListOperationsResponse()
    assert len(asked) > 60
    assert max(asked) < 2**31


def test_a_page_ends_in_time(store, make_service, clock):
    """A page that takes too long ends early, with a token that continues after its last record."""
    at = itertools.count(step=0.2)  # each read of the clock takes 0.2 seconds
    service = make_service(store, InlineExecutor(), clock=lambda: next(at))
    method = declared(service)
    names = []
    for number in range(20):
        clock.advance(1)
        names.append(method.start(WorkRequest(), metadata=WorkMetadata(percent=number % 7)).name)
    found, sizes, token = [], [], ""
    while token or not sizes:
        request = ListOperationsRequest(filter="-metadata.percent < 6", page_token=token)
        page = service.list(request)
        found += [operation.name for operation in page.operations]
        sizes.append(len(page.operations))
        token = page.next_page_token
        assert len(sizes) < 30
    assert found == [names[13], names[6]]
    assert 0 in sizes
