"""Rules that apply only to gRPC."""

from __future__ import annotations

from typing import Final

from lro_conform._checks import GRPC, Level
from lro_conform._sources import aip, grpc_doc, operations_proto, status_proto
from lro_conform.server._answers import Answer
from lro_conform.server._bench import Bench, Facts, RuleBook, expect

RULES: Final = RuleBook(frozenset({GRPC}))
MUST, SHOULD = Level.MUST, Level.SHOULD


@RULES(
    "names.empty",
    "An empty name is refused with INVALID_ARGUMENT or NOT_FOUND.",
    MUST,
    aip(193, "Guidance"),
)
async def names_empty(bench: Bench) -> Facts:
    for fact in expect(await bench.target.get(""), "INVALID_ARGUMENT", "NOT_FOUND"):
        yield fact


@RULES(
    "grpc.unknown-method",
    "A call of a method that the service does not have is answered with UNIMPLEMENTED.",
    MUST,
    grpc_doc("Status codes", "statuscodes.md"),
)
async def grpc_unknown_method(bench: Bench) -> Facts:
    answer = await bench.grpc.ask("LroConformUnknown", b"")
    for fact in expect(answer, "UNIMPLEMENTED"):
        yield fact


@RULES(
    "grpc.unknown-field",
    "An unknown field in a request is ignored.",
    MUST,
    operations_proto("GetOperationRequest"),
)
async def grpc_unknown_field(bench: Bench) -> Facts:
    for fact in expect(await bench.grpc.get_with(await bench.long(), _FIELD_1000), "OK"):
        yield fact


_FIELD_1000: Final = b"\xc0\x3e\x01"
"""Field 1000, a varint, with the value 1."""


@RULES(
    "grpc.malformed",
    "A request that cannot be decoded is refused, and the connection stays open.",
    MUST,
    grpc_doc(),
)
async def grpc_malformed(bench: Bench) -> Facts:
    name = await bench.long()
    answer = await bench.grpc.ask("GetOperation", b"\xff\xff\xff")
    if answer.code == "OK":
        yield f"{answer}; expected a refusal"
    for fact in expect(await bench.target.get(name), "OK"):
        yield f"after malformed bytes: {fact}"


@RULES(
    "grpc.status-details",
    "grpc-status-details-bin is a google.rpc.Status with the code and message of the call.",
    MUST,
    status_proto("Status"),
    aip(193, "Guidance"),
)
async def grpc_status_details(bench: Bench) -> Facts:
    await bench.target.get(await bench.unknown())
    for answer in bench.log:
        if answer.trailer:
            yield f"{answer.call}: {answer.trailer}"
            return


@RULES(
    "grpc.deadline",
    "A wait is answered before the deadline of its call, if the deadline is before the timeout.",
    SHOULD,
    operations_proto("WaitOperationRequest.timeout"),
    optional=True,
)
async def grpc_deadline(bench: Bench) -> Facts:
    await bench.need("wait")
    hold, slack = bench.pace.hold, bench.pace.slack

    async def answer_within(seconds: float) -> Answer:
        name = await bench.long()
        return await bench.grpc.wait_within(name, timeout=2 * slack + 10, seconds=seconds)

    answer = await answer_within(3 * hold)
    # On a busy machine a reply may be late by chance; a slow network may need the longer deadline.
    for seconds in (*[3 * hold] * bench.pace.rounds, hold + slack):
        if answer.lost:
            answer = await answer_within(seconds)
    for fact in expect(answer, "OK", "DEADLINE_EXCEEDED"):
        yield fact
