"""Rules of operations themselves: their starts, names, results and states."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import Final

from lro_conform._checks import Level
from lro_conform._sources import aip, code_proto, operations_proto, rfc
from lro_conform._strict_json import repeated, shown
from lro_conform.server._answers import operation_problem, result_of
from lro_conform.server._bench import Bench, Facts, NotJudged, NotOffered, RuleBook, expect
from lro_conform.server._starts import StartKind

RULES: Final = RuleBook()
MUST, SHOULD, INFO = Level.MUST, Level.SHOULD, Level.INFO


@RULES("start.operation", "A start returns an Operation.", MUST, aip(151, "Guidance"))
async def start_operation(bench: Bench) -> Facts:
    with contextlib.suppress(NotJudged):  # the first start has an answer to judge
        await bench.start(StartKind.LONG)
    for answer in bench.starts:
        problem = operation_problem(answer.body)
        if answer.fault or problem:
            yield f"{answer}" if answer.fault else f"{answer}: {problem}"


@RULES(
    "start.readable",
    "An operation can be read as soon as its start has returned.",
    MUST,
    operations_proto("GetOperation"),
    aip(151, "Guidance"),
)
async def start_readable(bench: Bench) -> Facts:
    name = await bench.start(StartKind.LONG)
    for fact in expect(await bench.target.get(name), "OK"):
        yield fact


@RULES("names.present", "Every operation has a name.", MUST, operations_proto("Operation.name"))
async def names_present(bench: Bench) -> Facts:
    with contextlib.suppress(NotJudged, NotOffered):  # finished operations must have names, too
        await bench.finished()
    for body in (await bench.target.get(await bench.long())).body, *bench.bodies():
        if not isinstance(body.get("name"), str) or not body["name"]:
            yield f"an operation has the name {shown(body.get('name'))}"
            return


@RULES(
    "names.form",
    "A name ends in operations/ID and has no empty segment.",
    SHOULD,
    operations_proto("Operation.name"),
    aip(122, "Guidance"),
)
async def names_form(bench: Bench) -> Facts:
    name = await bench.long()
    parts = name.split("/")
    if "" in parts:
        yield f"{shown(name)} has an empty segment"
    if "operations" not in parts[:-1]:
        yield f"{shown(name)} has no segment 'operations' before its last segment"


@RULES(
    "names.unique", "Two starts return different names.", MUST, operations_proto("Operation.name")
)
async def names_unique(bench: Bench) -> Facts:
    await bench.start(StartKind.LONG)
    await bench.start(StartKind.LONG)
    twice = repeated(bench.started)
    if twice:
        yield f"two starts returned {shown(min(twice))}"


@RULES(
    "names.same",
    "GetOperation returns the operation whose name was requested.",
    MUST,
    operations_proto("GetOperation"),
    aip(131, "Guidance"),
)
async def names_same(bench: Bench) -> Facts:
    name = await bench.long()
    answer = await bench.target.get(name)
    for fact in expect(answer, "OK"):
        yield fact
    if answer.ok and answer.body.get("name") != name:
        yield f"asked for {shown(name)}: {answer}"


@RULES(
    "names.unknown",
    "GetOperation with a name that no operation has is answered with NOT_FOUND.",
    MUST,
    aip(131, "Errors"),
    code_proto("NOT_FOUND"),
)
async def names_unknown(bench: Bench) -> Facts:
    for fact in expect(await bench.target.get(await bench.unknown()), "NOT_FOUND"):
        yield fact


@RULES(
    "names.case", "Names are case-sensitive.", SHOULD, aip(122, "Guidance"), rfc(3986, "6.2.2.1")
)
async def names_case(bench: Bench) -> Facts:
    name = await bench.long()
    start, _, id_ = name.rpartition("/")
    if id_ == id_.swapcase():
        raise NotJudged("the ids have no letters")
    answer = await bench.target.get(f"{start}/{id_.swapcase()}")
    for fact in expect(answer, "NOT_FOUND", "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "names.malformed",
    "A malformed name is refused, and not with the code of a server error.",
    MUST,
    aip(193, "Guidance"),
    code_proto("INVALID_ARGUMENT"),
)
async def names_malformed(bench: Bench) -> Facts:
    start = (await bench.long()).rpartition("/")[0]
    for wrong in ("-", "\x01", "x" * 3000):
        answer = await bench.target.get(f"{start}/{wrong}")
        if not answer.refused:
            yield f"{answer}; expected a refusal, such as INVALID_ARGUMENT or NOT_FOUND"


@RULES(
    "result.error-message",
    "The error of an operation has a message.",
    SHOULD,
    aip(193, "google.rpc.Status"),
)
async def result_error_message(bench: Bench) -> Facts:
    error = (await bench.ended(StartKind.FAIL)).body.get("error")
    message = error.get("message") if isinstance(error, Mapping) else None
    if not isinstance(message, str) or not message:
        yield f"error is {shown(error)}"


@RULES(
    "result.success",
    "An operation that succeeds is done, and has a response.",
    SHOULD,  # "Some services might not provide the result", says the proto
    operations_proto("Operation.result"),
    operations_proto("Operation.response"),
)
async def result_success(bench: Bench) -> Facts:
    body = (await bench.ended(StartKind.SOON)).body
    if "response" not in body:
        yield f"an operation of the kind soon ended without a response: {shown(body)}"


@RULES(
    "result.failure",
    "GetOperation of a failed operation succeeds, and returns the operation with its error.",
    MUST,
    operations_proto("Operation.error"),
    aip(151, "Errors"),
)
async def result_failure(bench: Bench) -> Facts:
    name = await bench.start(StartKind.FAIL)
    try:
        body = (await bench.until_done(name)).body
    except NotJudged as exc:
        yield str(exc)
        return
    if not body.get("error"):
        yield f"an operation of the kind fail ended without an error: {shown(body)}"


@RULES(
    "states.repeated-gets",
    "Each read of an operation that is done returns the same.",
    MUST,
    operations_proto("Operation.done"),
)
async def states_repeated_gets(bench: Bench) -> Facts:
    first = await bench.finished()
    name = str(first.body["name"])
    for _ in range(5):
        answer = await bench.target.get(name)
        for fact in expect(answer, "OK"):
            yield fact
            return
        if result_of(answer.body) != result_of(first.body):
            yield f"first {shown(result_of(first.body))}, later {shown(result_of(answer.body))}"
            return


@RULES(
    "states.many-gets",
    "Concurrent reads of an operation that is done return the same.",
    MUST,
    operations_proto("GetOperation"),
)
async def states_many_gets(bench: Bench) -> Facts:
    first = await bench.finished()
    name = str(first.body["name"])
    for answer in await asyncio.gather(*(bench.target.get(name) for _ in range(20))):
        for fact in expect(answer, "OK"):
            yield fact
            return
        if result_of(answer.body) != result_of(first.body):
            yield f"{answer} differs from {shown(result_of(first.body))}"
            return


@RULES(
    "metadata.times",
    "The times in metadata are in order: creation, start, end.",
    INFO,
    aip(142, "Guidance"),
)
async def metadata_times(bench: Bench) -> Facts:
    metadata = (await bench.finished()).body.get("metadata")
    fields = metadata if isinstance(metadata, Mapping) else {}
    known = ("createTime", "startTime", "endTime")
    times = [(key, fields[key]) for key in known if isinstance(fields.get(key), str)]
    if len(times) < 2:
        raise NotOffered("the metadata have fewer than two of the usual times")
    for (key, one), (later, other) in itertools.pairwise(times):
        if one.removesuffix("Z") > other.removesuffix("Z"):
            yield f"{key} {shown(one)} is after {later} {shown(other)}"
