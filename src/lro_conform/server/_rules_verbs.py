"""Rules of the five methods: their replies, waiting, cancelling, deleting, and races."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from lro_conform._checks import Level
from lro_conform._sources import aip, operations_proto, rfc
from lro_conform._strict_json import shown
from lro_conform.server._answers import Answer, result_of
from lro_conform.server._bench import RPCS, Bench, Facts, NotJudged, NotOffered, RuleBook, expect
from lro_conform.server._starts import StartKind

RULES: Final = RuleBook()
MUST, SHOULD, INFO = Level.MUST, Level.SHOULD, Level.INFO


async def _call(bench: Bench, rpc: str) -> Facts:
    """Yield a fact if a method is supported, but fails for an existing operation."""
    answer = await bench.first(rpc)
    if await bench.left_out(answer):
        raise NotOffered(f"{RPCS[rpc]} is not supported: {answer}")
    if not answer.ok:
        yield f"{answer}; expected success, or UNIMPLEMENTED"


@RULES("calls.get", "GetOperation works.", MUST, operations_proto("GetOperation"))
async def calls_get(bench: Bench) -> Facts:
    for fact in expect(await bench.first("get"), "OK"):
        yield fact


@RULES(
    "calls.list",
    "ListOperations works, or answers UNIMPLEMENTED.",
    MUST,
    operations_proto("ListOperations"),
    optional=True,
)
async def calls_list(bench: Bench) -> Facts:
    async for fact in _call(bench, "list"):
        yield fact


@RULES(
    "calls.cancel",
    "CancelOperation works, or answers UNIMPLEMENTED.",
    MUST,
    operations_proto("CancelOperation"),
    optional=True,
)
async def calls_cancel(bench: Bench) -> Facts:
    async for fact in _call(bench, "cancel"):
        yield fact


@RULES(
    "calls.delete",
    "DeleteOperation works, or answers UNIMPLEMENTED.",
    MUST,
    operations_proto("DeleteOperation"),
    optional=True,
)
async def calls_delete(bench: Bench) -> Facts:
    async for fact in _call(bench, "delete"):
        yield fact


@RULES(
    "calls.wait",
    "WaitOperation works, or answers UNIMPLEMENTED. Over HTTP its route may be missing.",
    MUST,
    operations_proto("WaitOperation"),
    optional=True,
)
async def calls_wait(bench: Bench) -> Facts:
    async for fact in _call(bench, "wait"):
        yield fact


@RULES(
    "wait.done-at-once",
    "A wait for an operation that is done is answered at once.",
    MUST,
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_done_at_once(bench: Bench) -> Facts:
    await bench.need("wait")
    first = await bench.finished()
    for timeout in (bench.pace.hold + 2 * bench.pace.slack, None):
        answer = await bench.target.wait(str(first.body["name"]), timeout)
        if answer.fault or answer.seconds > bench.slack:
            yield f"{answer} after {answer.seconds:.1f} s"
        elif result_of(answer.body) != result_of(first.body):
            yield f"{answer}, but GetOperation returned {shown(result_of(first.body))}"


@RULES(
    "wait.timeout",
    "A wait lasts at most as long as its timeout, and then returns the current state without an"
    " error.",
    MUST,
    operations_proto("WaitOperationRequest.timeout"),
    optional=True,
)
async def wait_timeout(bench: Bench) -> Facts:
    await bench.need("wait")
    name = await bench.long()
    answer = await bench.target.wait(name, bench.pace.hold)
    for fact in expect(answer, "OK"):
        yield fact
    if answer.seconds > bench.pace.hold + bench.slack:
        yield f"a timeout of {bench.pace.hold:g} s was answered after {answer.seconds:.1f} s"
    if answer.ok and answer.body.get("name") != name:
        yield f"{answer}: this is a different operation"


@RULES(
    "wait.waits",
    "A wait lasts until the operation is done, or until about its timeout.",
    INFO,
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_waits(bench: Bench) -> Facts:
    await bench.need("wait")
    answer = await bench.target.wait(await bench.long(), bench.pace.hold)
    if answer.done:
        raise NotJudged("the operation that should take long is done meanwhile")
    if answer.ok and answer.seconds < bench.pace.hold / 2:
        yield f"a timeout of {bench.pace.hold:g} s was answered after {answer.seconds:.3f} s"


@RULES(
    "wait.until-end",
    "A wait is answered soon after the operation is done.",
    MUST,
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_until_end(bench: Bench) -> Facts:
    await bench.need("wait", "cancel")
    name = await bench.start(StartKind.LONG)
    timeout = bench.pace.hold + 2 * bench.pace.slack
    waiting = asyncio.ensure_future(bench.target.wait(name, timeout))
    await asyncio.sleep(bench.pace.hold / 2)
    await bench.target.cancel(name)
    try:
        ended = await bench.until_done(name)
    finally:
        answer = await waiting
    for fact in expect(answer, "OK"):
        yield fact
    if answer.ended > ended.ended + bench.slack:
        yield f"answered {answer.ended - ended.ended:.1f} s after the operation was done"


@RULES(
    "wait.zero",
    "A wait with a timeout of zero returns the current state at once.",
    MUST,
    operations_proto("WaitOperationRequest.timeout"),
    optional=True,
)
async def wait_zero(bench: Bench) -> Facts:
    await bench.need("wait")
    answer = await bench.target.wait(await bench.long(), 0)
    for fact in expect(answer, "OK"):
        yield fact
    if answer.seconds > bench.slack:
        yield f"answered after {answer.seconds:.1f} s"


@RULES(
    "wait.changes-nothing",
    "A wait does not change the operation if it times out or its caller disconnects.",
    MUST,
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_changes_nothing(bench: Bench) -> Facts:
    await bench.need("wait")
    name = await bench.running()
    await bench.target.wait(name, bench.pace.hold)
    left = asyncio.ensure_future(bench.target.wait(name, bench.pace.hold + 2 * bench.pace.slack))
    await asyncio.sleep(bench.pace.hold / 2)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await asyncio.sleep(bench.pace.hold)
    answer = await bench.target.get(name)
    for fact in expect(answer, "OK"):
        yield fact
    if "error" in answer.body:
        yield f"after two waits that ended before it: {answer}"


@RULES(
    "wait.negative",
    "A wait with a negative timeout is refused with INVALID_ARGUMENT.",
    SHOULD,
    operations_proto("WaitOperationRequest.timeout"),
    aip(193, "Guidance"),
    optional=True,
)
async def wait_negative(bench: Bench) -> Facts:
    await bench.need("wait")
    for fact in expect(await bench.target.wait(await bench.long(), -1), "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "wait.unknown",
    "A wait for an operation that does not exist is answered with NOT_FOUND.",
    MUST,
    aip(193, "Guidance"),
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_unknown(bench: Bench) -> Facts:
    await bench.need("wait")
    answer = await bench.target.wait(await bench.unknown(), bench.pace.hold)
    for fact in expect(answer, "NOT_FOUND"):
        yield fact


@RULES(
    "wait.beside-others",
    "Waits do not delay other calls.",
    SHOULD,
    operations_proto("WaitOperation"),
    optional=True,
)
async def wait_beside_others(bench: Bench) -> Facts:
    await bench.need("wait")
    name = await bench.start(StartKind.LONG)
    timeout = bench.pace.hold + bench.pace.slack
    waits = [asyncio.ensure_future(bench.target.wait(name, timeout)) for _ in range(4)]
    await asyncio.sleep(bench.pace.hold / 4)
    answer = await bench.target.get(name)
    await bench.target.cancel(name)  # a cancel, if supported, ends the waits
    await asyncio.gather(*waits)
    if answer.fault or answer.seconds > bench.slack:
        yield f"{answer} after {answer.seconds:.1f} s, beside four waits"


@RULES(
    "cancel.empty",
    "CancelOperation returns google.protobuf.Empty.",
    MUST,
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_empty(bench: Bench) -> Facts:
    await bench.need("cancel")
    answer = await bench.first("cancel")
    if answer.body:
        yield f"{answer}; expected an empty message"


@RULES(
    "cancel.at-once",
    "CancelOperation does not wait for the operation to end.",
    SHOULD,
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_at_once(bench: Bench) -> Facts:
    await bench.need("cancel")
    answer = await bench.first("cancel")
    if answer.seconds > bench.slack:
        yield f"{answer} after {answer.seconds:.1f} s"


@RULES(
    "cancel.ends",
    "An operation that is cancelled ends.",
    SHOULD,
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_ends(bench: Bench) -> Facts:
    await bench.need("cancel")
    try:
        await bench.cancelled()
    except NotJudged as exc:
        yield str(exc)


@RULES(
    "cancel.code",
    "A cancelled operation still exists, and has the error code 1 (CANCELLED) or has completed.",
    MUST,
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_code(bench: Bench) -> Facts:
    await bench.need("cancel")
    answer = await bench.target.get(bench.subjects["cancel"])
    for fact in expect(answer, "OK"):
        yield fact
    body = (await bench.cancelled()).body
    error = body.get("error")
    if error is not None and (not isinstance(error, dict) or error.get("code") != 1):
        yield f"after the cancel it ended with {shown(error)}"


@RULES(
    "cancel.again",
    "CancelOperation may be repeated, even if the operation is done.",
    SHOULD,
    operations_proto("CancelOperation"),
    rfc(9110, "9.2.2"),
    optional=True,
)
async def cancel_again(bench: Bench) -> Facts:
    await bench.need("cancel")
    name = await bench.start(StartKind.LONG)
    for _ in range(2):
        for fact in expect(await bench.target.cancel(name), "OK"):
            yield fact
    await bench.until_done(name)
    for fact in expect(await bench.target.cancel(name), "OK"):
        yield fact


@RULES(
    "cancel.done-unchanged",
    "CancelOperation does not change an operation that is done.",
    MUST,
    operations_proto("Operation.done"),
    optional=True,
)
async def cancel_done_unchanged(bench: Bench) -> Facts:
    await bench.need("cancel")
    first = await bench.finished()
    name = str(first.body["name"])
    answer = await bench.target.cancel(name)
    if not answer.ok and not answer.refused:
        yield f"{answer}; expected success, or a refusal"
    after = await bench.target.get(name)
    if not after.ok or result_of(after.body) != result_of(first.body):
        yield f"before {shown(result_of(first.body))}, after the cancel {after}"


@RULES(
    "cancel.unknown",
    "CancelOperation of an operation that does not exist is answered with NOT_FOUND.",
    MUST,
    aip(193, "Guidance"),
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_unknown(bench: Bench) -> Facts:
    await bench.need("cancel")
    for fact in expect(await bench.target.cancel(await bench.unknown()), "NOT_FOUND"):
        yield fact


@RULES(
    "cancel.no-other",
    "CancelOperation does not end any other operation.",
    MUST,
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_no_other(bench: Bench) -> Facts:
    await bench.need("cancel")
    other = await bench.running()
    name = await bench.start(StartKind.LONG)
    await bench.target.cancel(name)
    await bench.until_done(name)
    answer = await bench.target.get(other)
    if not answer.ok or answer.done:
        yield f"{shown(name)} was cancelled; then {answer}"


@RULES(
    "cancel.race",
    "If a cancel and the end of the work race, all callers see the same result.",
    MUST,
    operations_proto("Operation.result"),
    operations_proto("CancelOperation"),
    optional=True,
)
async def cancel_race(bench: Bench) -> Facts:
    await bench.need("cancel")
    kind = StartKind.SOON if bench.starter.offers(StartKind.SOON) else StartKind.LONG
    ends = {"error": 0, "response": 0}
    for number in range(bench.pace.rounds):
        name = await bench.start(kind)
        observers = [asyncio.ensure_future(_observed(bench, name)) for _ in range(3)]
        await asyncio.sleep(number * bench.pace.hold / max(bench.pace.rounds, 1))
        cancels = [bench.target.cancel(name) for _ in range(3)]
        for answer in await asyncio.gather(*cancels):
            if not answer.ok and not answer.refused:
                yield f"{answer}; expected success, or a refusal"
        found = [answer.body for answer in await asyncio.gather(*observers)]
        last = (await bench.target.get(name)).body
        for body in found:
            if result_of(body) != result_of(last):
                yield f"one saw {shown(result_of(body))}, one {shown(result_of(last))}"
                return
        ends["error" if "error" in last else "response"] += 1
    bench.note(f"{ends['response']} completed and {ends['error']} were cancelled")


async def _observed(bench: Bench, name: str) -> Answer:
    return await bench.until_done(name)


@RULES(
    "delete.empty",
    "DeleteOperation returns google.protobuf.Empty.",
    MUST,
    operations_proto("DeleteOperation"),
    optional=True,
)
async def delete_empty(bench: Bench) -> Facts:
    await bench.need("delete")
    answer = await bench.first("delete")
    if answer.body:
        yield f"{answer}; expected an empty message"


@RULES(
    "delete.gone",
    "Get, Cancel, Wait and Delete of a deleted operation are answered with NOT_FOUND.",
    MUST,
    aip(135, "Errors"),
    operations_proto("DeleteOperation"),
    optional=True,
)
async def delete_gone(bench: Bench) -> Facts:
    name = await bench.deleted()
    for answer in (await bench.target.get(name), await bench.target.delete(name)):
        for fact in expect(answer, "NOT_FOUND"):
            yield fact
    for rpc in ("cancel", "wait"):
        if not (await bench.first(rpc)).ok:
            continue
        again = bench.target.cancel(name) if rpc == "cancel" else bench.target.wait(name, 0)
        for fact in expect(await again, "NOT_FOUND"):
            yield fact


@RULES(
    "delete.unknown",
    "DeleteOperation of an operation that does not exist is answered with NOT_FOUND.",
    MUST,
    aip(135, "Errors"),
    optional=True,
)
async def delete_unknown(bench: Bench) -> Facts:
    await bench.need("delete")
    for fact in expect(await bench.target.delete(await bench.unknown()), "NOT_FOUND"):
        yield fact


@RULES(
    "delete.no-other",
    "DeleteOperation does not remove any other operation.",
    MUST,
    operations_proto("DeleteOperation"),
    optional=True,
)
async def delete_no_other(bench: Bench) -> Facts:
    await bench.need("delete")
    other, name = await bench.running(), await bench.disposable()
    await bench.target.delete(name)
    answer = await bench.target.get(other)
    for fact in expect(answer, "OK"):
        yield f"{shown(name)} was deleted; then {fact}"
    if answer.done:
        yield f"{shown(name)} was deleted; then {answer}"


@RULES(
    "delete.running",
    "DeleteOperation also removes an operation in progress.",
    INFO,
    operations_proto("DeleteOperation"),
    optional=True,
)
async def delete_running(bench: Bench) -> Facts:
    await bench.need("delete")
    # A deleted operation cannot be cancelled any more, so it occupies a worker until it ends.
    kind = StartKind.SOON if bench.starter.offers(StartKind.SOON) else StartKind.LONG
    for fact in expect(await bench.target.delete(await bench.start(kind)), "OK"):
        yield fact


@RULES(
    "delete.stays-gone",
    "A deleted operation does not reappear when its work ends.",
    MUST,
    operations_proto("DeleteOperation"),
    optional=True,
)
async def delete_stays_gone(bench: Bench) -> Facts:
    await bench.need("delete")
    began = time.monotonic()
    ended = await bench.until_done(await bench.start(StartKind.SOON))
    takes = min(ended.ended - began, bench.pace.end)
    name = await bench.start(StartKind.SOON)
    answer = await bench.target.delete(name)
    if not answer.ok:
        raise NotJudged(f"an operation in progress is not deleted: {answer}")
    await asyncio.sleep(2 * takes)
    for fact in expect(await bench.target.get(name), "NOT_FOUND"):
        yield fact
