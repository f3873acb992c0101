"""Rules of lists: their pages, tokens and filters."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from lro_conform._checks import Level
from lro_conform._sources import aip, operations_proto
from lro_conform._strict_json import repeated, shown
from lro_conform.server._answers import Answer, operation_problem, result_of
from lro_conform.server._bench import (
    Bench,
    Facts,
    NotJudged,
    NotOffered,
    RuleBook,
    expect,
    operations_in,
    parent_of,
)
from lro_conform.server._starts import StartKind

RULES: Final = RuleBook()
LAST_RULES: Final = RuleBook()
"""Rules that run after all other rules, because their requests may crash a server."""
MUST, SHOULD, INFO = Level.MUST, Level.SHOULD, Level.INFO

_MOST_PAGES: Final = 300
_LARGE: Final = 100_000
"""A page size above the maximum of most servers. Some servers allocate memory for a full page."""
_AT_LEAST: Final = 3
"""Minimum number of operations in a list that is read page by page."""


async def _list(bench: Bench, **given: Any) -> Answer:
    await bench.need("list")
    return await bench.target.list(await bench.parent_name(), **given)


async def _have_pages(bench: Bench) -> None:
    await bench.need("list")
    while len(bench.started) < _AT_LEAST:
        await bench.start(StartKind.LONG)


async def _token(bench: Bench, **given: Any) -> str:
    """Return the page token after a first page with one operation."""
    await _have_pages(bench)
    answer = await _list(bench, page_size=1, **given)
    token = answer.body.get("nextPageToken")
    if not answer.ok or not isinstance(token, str) or not token:
        raise NotJudged(f"there is no next page: {answer}")
    return token


@RULES(
    "pages.shape",
    "A page has a list of operations, and a string as its token.",
    MUST,
    operations_proto("ListOperationsResponse"),
)
async def pages_shape(bench: Bench) -> Facts:
    answer = await _list(bench)
    found = answer.body.get("operations", [])
    if not answer.ok or not isinstance(found, list):
        yield f"{answer}"
        return
    for one in found:
        problem = operation_problem(one) if isinstance(one, Mapping) else "it is not an object"
        if problem:
            yield f"in a page: {problem}: {shown(one)}"
            return
    if not isinstance(answer.body.get("nextPageToken", ""), str):
        yield f"nextPageToken is {shown(answer.body['nextPageToken'])}"


@RULES(
    "pages.contains",
    "The list of a parent contains the operations that were started below it.",
    MUST,
    operations_proto("ListOperations"),
    aip(132, "Guidance"),
)
async def pages_contains(bench: Bench) -> Facts:
    name = await bench.long()
    pages, ended = await _walk(bench, 1000)
    if all(one.get("name") != name for page in pages for one in operations_in(page)):
        if not ended:
            raise NotJudged(f"the list has more than {_MOST_PAGES} pages")
        yield f"{shown(name)} is in none of {len(pages)} pages"


async def _walk(bench: Bench, size: int) -> tuple[list[Answer], bool]:
    pages: list[Answer] = []
    token, tokens = None, set()
    while len(pages) < _MOST_PAGES:
        answer = await _list(bench, page_size=size, page_token=token)
        if not answer.ok:
            raise NotJudged(f"a page cannot be read: {answer}")
        pages.append(answer)
        token = answer.body.get("nextPageToken")
        if not token or not isinstance(token, str):
            return pages, True
        if token in tokens:
            return pages, False
        tokens.add(token)
    return pages, False


@RULES(
    "pages.walk",
    "The pages of a list contain each operation exactly once, and are finite in number.",
    MUST,
    aip(158, "Guidance"),
)
async def pages_walk(bench: Bench) -> Facts:
    await _have_pages(bench)
    known = len(operations_in(await _list(bench, page_size=1000)))
    size = max(1, known // 3)
    before = list(bench.started)
    pages, ended = await _walk(bench, size)
    names = [str(one.get("name")) for page in pages for one in operations_in(page)]
    twice = repeated(names)
    if twice:
        yield f"{shown(min(twice))} is in the pages more than once"
    if not ended and len(pages) < _MOST_PAGES:
        yield f"after {len(pages)} pages an earlier token is repeated"
        return
    if not ended:
        raise NotJudged(f"the list has more than {_MOST_PAGES} pages")
    parent = await bench.parent_name()
    for name in before:
        if name in names or (bench.parent is None and parent_of(name) != parent):
            continue
        answer = await bench.target.get(name)
        if answer.ok:
            yield f"pages of {size} do not reach {shown(name)} of {shown(parent)}"
            return


@RULES(
    "pages.size",
    "A page has at most page_size operations.",
    MUST,
    aip(158, "Guidance"),
    operations_proto("ListOperationsRequest.page_size"),
)
async def pages_size(bench: Bench) -> Facts:
    await _have_pages(bench)
    for size in (1, 2):
        answer = await _list(bench, page_size=size)
        if len(operations_in(answer)) > size:
            yield f"a page_size of {size} returned {len(operations_in(answer))} operations"


@RULES(
    "pages.zero-size",
    "If page_size is 0 or not set, the server chooses the size.",
    MUST,
    aip(158, "Guidance"),
)
async def pages_zero_size(bench: Bench) -> Facts:
    await bench.long()
    for answer in (await _list(bench, page_size=0), await _list(bench)):
        for fact in expect(answer, "OK"):
            yield fact
            return
        if not operations_in(answer) and not answer.body.get("nextPageToken"):
            yield f"{answer}, although there are operations"


@RULES(
    "pages.negative-size",
    "A negative page_size is refused with INVALID_ARGUMENT.",
    MUST,
    aip(158, "Guidance"),
)
async def pages_negative_size(bench: Bench) -> Facts:
    for fact in expect(await _list(bench, page_size=-1), "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "pages.other-size", "The page_size may change from page to page.", MUST, aip(158, "Guidance")
)
async def pages_other_size(bench: Bench) -> Facts:
    token = await _token(bench)
    answer = await _list(bench, page_size=2, page_token=token)
    for fact in expect(answer, "OK"):
        yield fact
    if len(operations_in(answer)) > 2:
        yield f"a page_size of 2 returned {len(operations_in(answer))} operations"


@RULES(
    "pages.bad-token",
    "A page token that the server has not issued is refused with INVALID_ARGUMENT.",
    MUST,
    aip(158, "Guidance"),
    aip(193, "Guidance"),
)
async def pages_bad_token(bench: Bench) -> Facts:
    for fact in expect(await _list(bench, page_token="not-a-token"), "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "pages.altered-token",
    "A page token that was altered is refused with INVALID_ARGUMENT.",
    SHOULD,
    aip(158, "Opacity"),
)
async def pages_altered_token(bench: Bench) -> Facts:
    token = await _token(bench)
    half = len(token) // 2
    altered = token[:half] + ("A" if token[half] != "A" else "B") + token[half + 1 :]
    for fact in expect(await _list(bench, page_token=altered), "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "pages.opaque-token",
    "A page token reveals no content, even after base64 decoding.",
    MUST,
    aip(158, "Opacity"),
)
async def pages_opaque_token(bench: Bench) -> Facts:
    token = await _token(bench)
    for text in (token.rstrip("="), _plain(token)):
        if re.fullmatch(r"\d{1,15}", text) or re.search(r"operations/|[\"':=,]|offset|page", text):
            yield f"{shown(token)} reads as {shown(text)}"
            return


def _plain(token: str) -> str:
    try:
        decoded = base64.b64decode(
            token.replace("-", "+").replace("_", "/") + "=" * (-len(token) % 4), validate=True
        )
        text = decoded.decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return text if text.isprintable() else ""


@RULES(
    "pages.url-safe-token",
    "A page token has only characters that need no escaping in a URL.",
    MUST,
    aip(158, "Opacity"),
)
async def pages_url_safe_token(bench: Bench) -> Facts:
    token = await _token(bench)
    if not re.fullmatch(r"[A-Za-z0-9._~=-]+", token):
        yield f"the token is {shown(token)}"


@RULES(
    "pages.same-token",
    "A page token may be used again, and returns the same page.",
    INFO,
    aip(158, "Expiring page tokens"),
)
async def pages_same_token(bench: Bench) -> Facts:
    token = await _token(bench)
    first, again = [await _list(bench, page_size=1, page_token=token) for _ in range(2)]
    names = [[one.get("name") for one in operations_in(page)] for page in (first, again)]
    if not again.ok or names[0] != names[1]:
        yield f"first {shown(names[0])}, then {again}"


@RULES(
    "pages.other-filter",
    "A page token is refused with INVALID_ARGUMENT if the filter has changed.",
    SHOULD,
    aip(158, "Guidance"),
)
async def pages_other_filter(bench: Bench) -> Facts:
    await _filters(bench)
    token = await _token(bench)
    answer = await _list(bench, page_size=1, page_token=token, filter="done = true")
    for fact in expect(answer, "INVALID_ARGUMENT"):
        yield fact


@RULES(
    "pages.unknown-parent",
    "The list of a parent that does not exist is empty, or is refused.",
    MUST,
    aip(193, "Guidance"),
)
async def pages_unknown_parent(bench: Bench) -> Facts:
    await bench.need("list")
    answer = await bench.target.list("projects/lro-conform-unknown")
    if answer.ok and operations_in(answer):
        yield f"{answer}, although this parent does not exist"
    if not answer.ok and not answer.refused:
        yield f"{answer}; expected an empty list, or a refusal"
    if answer.code == "NOT_FOUND":  # a framework may have no route for this parent
        bench.log[bench.log.index(answer)] = attrs.evolve(answer, foreign=True)


@RULES(
    "pages.agree",
    "An operation that is done has the same result in a list as in GetOperation.",
    MUST,
    operations_proto("ListOperations"),
)
async def pages_agree(bench: Bench) -> Facts:
    first = await bench.finished()
    pages, _ = await _walk(bench, 1000)
    for one in (one for page in pages for one in operations_in(page)):
        if one.get("name") == first.body["name"] and result_of(one) != result_of(first.body):
            yield f"got {shown(result_of(first.body))}, listed {shown(result_of(one))}"


@RULES(
    "pages.deleted",
    "A list does not contain deleted operations.",
    MUST,
    operations_proto("DeleteOperation"),
    aip(135, "Guidance"),
)
async def pages_deleted(bench: Bench) -> Facts:
    name = await bench.deleted()
    pages, _ = await _walk(bench, 1000)
    if any(one.get("name") == name for page in pages for one in operations_in(page)):
        yield f"{shown(name)} was deleted, but is listed"


async def _filters(bench: Bench) -> None:
    """Check that the server supports filters.

    Raises:
        NotOffered: The server refuses the simplest filter.
    """
    answer = await _list(bench, filter="done = true")
    if answer.code in ("UNIMPLEMENTED", "INVALID_ARGUMENT"):
        raise NotOffered(f"filters are not supported: {answer}")


@RULES("filters.empty", "An empty filter matches every operation.", MUST, aip(160, "Guidance"))
async def filters_empty(bench: Bench) -> Facts:
    await bench.long()
    answer = await _list(bench, filter="")
    for fact in expect(answer, "OK"):
        yield fact
    if answer.ok and not operations_in(answer) and not answer.body.get("nextPageToken"):
        yield f"{answer}, although there are operations"


@RULES(
    "filters.done",
    "The filter done = true matches operations that are done, and no others.",
    SHOULD,
    aip(160, "Comparison Operators"),
    operations_proto("ListOperationsRequest.filter"),
    optional=True,
)
async def filters_done(bench: Bench) -> Facts:
    await _filters(bench)
    running, over = await bench.long(), str((await bench.finished()).body["name"])
    for text, wanted, unwanted in (("true", over, running), ("false", running, over)):
        names = await _matching(bench, f"done = {text}")
        if wanted not in names:
            yield f"the filter done = {text} does not find {shown(wanted)}"
        if unwanted in names:
            yield f"the filter done = {text} finds {shown(unwanted)}"


async def _matching(bench: Bench, text: str) -> set[str]:
    names: set[str] = set()
    token = None
    for _ in range(_MOST_PAGES):
        answer = await _list(bench, page_size=1000, page_token=token, filter=text)
        names |= {str(one.get("name")) for one in operations_in(answer)}
        token = answer.body.get("nextPageToken")
        if not answer.ok or not isinstance(token, str) or not token:
            return names
    raise NotJudged(f"the list has more than {_MOST_PAGES} pages")


@RULES(
    "filters.malformed",
    "A malformed filter is refused with INVALID_ARGUMENT.",
    MUST,
    aip(160, "Limitations"),
    optional=True,
)
async def filters_malformed(bench: Bench) -> Facts:
    await _filters(bench)
    for text in ("done =", "(done = true", '"open'):
        for fact in expect(await _list(bench, filter=text), "INVALID_ARGUMENT"):
            yield fact


@RULES(
    "filters.unknown-field",
    "A filter on a field that does not exist is refused with INVALID_ARGUMENT.",
    SHOULD,
    aip(160, "Traversal operator"),
    optional=True,
)
async def filters_unknown_field(bench: Bench) -> Facts:
    await _filters(bench)
    answer = await _list(bench, filter="lro_conform_unknown = 1")
    for fact in expect(answer, "INVALID_ARGUMENT"):
        yield fact


@LAST_RULES(
    "pages.large-size",
    "A page_size above the server's maximum is treated as the maximum.",
    SHOULD,
    aip(158, "Guidance"),
)
async def pages_large_size(bench: Bench) -> Facts:
    for fact in expect(await _list(bench, page_size=_LARGE), "OK"):
        yield fact
