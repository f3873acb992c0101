"""The life of operations: the vectors, on both stores, by the clock of the test."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lro import Any, Code, Empty, ListOperationsRequest, LroError, Status, TypeRegistry
from lro._engine.service import VERBS
from lro.executors.inline import InlineExecutor
from lro.wire import parse_duration
from tests.filters.messages import ExportMetadata
from tests.vector_files import by_id, vectors
from tests.work_messages import WorkRequest

CASES = vectors("lifecycle")["cases"]
TYPES = TypeRegistry(ExportMetadata)


class Life:
    """One case as it goes along: its service, and the operations by their aliases."""

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
        act = getattr(self, step["do"])
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

    def applied(self, step, report):
        assert report(self.service.reporter(self.name(step["op"]))) is step["expect"].get("applied")

    def complete(self, step):
        response = TYPES.from_json(step["response"], strict=True)
        self.applied(step, lambda reporter: reporter.complete(response))

    def fail(self, step):
        error = Status(step["error"].get("code", 0), step["error"].get("message", ""))
        self.applied(step, lambda reporter: reporter.fail(error))

    def finish(self, step):
        self.applied(step, lambda reporter: reporter.finish())

    def acknowledge_cancel(self, step):
        self.applied(step, lambda reporter: reporter.acknowledge_cancel())

    def set_metadata(self, step):
        metadata = TYPES.from_json(step["metadata"], strict=True)
        self.applied(step, lambda reporter: reporter.report(metadata))

    def is_cancel_requested(self, step):
        reporter = self.service.reporter(self.name(step["op"]))
        assert reporter.cancel_requested is step["expect"]["value"]

    def advance(self, step):
        self.clock.advance(step["seconds"])


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_a_life(case, store, clock, make_service):
    """Each step has this effect and this answer."""
    life = Life(case, store, clock, make_service)
    for step in case["steps"]:
        life.step(step)


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_a_life_with_maintenance_after_every_step(case, store, clock, make_service):
    """Maintenance, whenever it comes, changes nothing that a caller could see."""
    life = Life(case, store, clock, make_service)
    for step in case["steps"]:
        life.step(step)
        life.service.run_maintenance()


def test_the_metadata_is_that_of_the_last_report(store, clock, make_service):
    """Replaced as a whole; the completing call may carry the final one (spec §2.10)."""
    life = Life({}, store, clock, make_service)
    operation = life.method.start(WorkRequest(), metadata=ExportMetadata(verb="a", target="t"))
    reporter = life.service.reporter(operation.name)
    assert reporter.report(ExportMetadata(verb="b"))
    found = life.service.get(operation.name).metadata
    start = {"createTime": "2030-01-01T00:00:00Z"}
    url = "type.googleapis.com/lrofix.v1.ExportMetadata"
    assert found == Any(url, {"verb": "b", **start})
    clock.advance(1)
    assert reporter.complete(Empty(), metadata=ExportMetadata(verb="c"))
    found = life.service.get(operation.name).metadata
    assert found == Any(url, {"verb": "c", **start, "endTime": "2030-01-01T00:00:01Z"})
    assert not reporter.fail(Status(Code.ABORTED), metadata=ExportMetadata(verb="d"))
    assert life.service.get(operation.name).metadata == found
