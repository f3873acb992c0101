"""Rules that apply only to HTTP: routes, queries, bodies, HTTP methods and JSON."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

from lro_conform._checks import HTTP, Level
from lro_conform._sources import (
    aip,
    http_proto,
    operations_proto,
    protojson,
    rfc,
    system_parameters,
)
from lro_conform._strict_json import shown
from lro_conform.server._answers import Answer
from lro_conform.server._bench import (
    Bench,
    Facts,
    NotJudged,
    NotOffered,
    RuleBook,
    expect,
    operations_in,
)
from lro_conform.server._http import encoded
from lro_conform.server._starts import StartKind

RULES: Final = RuleBook(frozenset({HTTP}))
MUST, SHOULD, INFO = Level.MUST, Level.SHOULD, Level.INFO
UNKNOWN_PATH: Final = "/lro-conform/unknown"
"""A path below the prefix that no server serves."""


def _refusal(answer: Answer) -> Iterator[str]:
    """Yield a fact if a request was not refused, or failed only by a fault of the server."""
    if not answer.refused and not answer.redirected:
        yield f"{answer}; expected a refusal, not a server error"


def _tolerance(answer: Answer) -> Iterator[str]:
    """Yield a fact if a request neither succeeded nor was refused with INVALID_ARGUMENT."""
    if not answer.ok and answer.code != "INVALID_ARGUMENT":
        yield f"{answer}; expected success or INVALID_ARGUMENT"


@RULES(
    "names.encoded",
    "Percent-encoded characters of a name in a path are decoded.",
    MUST,
    http_proto("Path template syntax"),
    rfc(3986, "6.2.2.2"),
)
async def names_encoded(bench: Bench) -> Facts:
    name = await bench.long()
    start, _, id_ = name.rpartition("/")
    last = f"%{ord(id_[-1]):02X}" if id_ and id_[-1].isascii() else encoded(id_[-1:])
    path = f"{bench.http.prefix}/{encoded(start)}/{encoded(id_[:-1])}{last}"
    answer = await bench.http.ask("GET", path, rpc="get")
    for fact in expect(answer, "OK"):
        yield fact
    if answer.ok and answer.body.get("name") != name:
        yield f"{answer}; expected {shown(name)}"


@RULES(
    "routes.unknown-path",
    "A request for a path that the server does not serve is answered with 404.",
    INFO,
    rfc(9110, "15.5.5"),
)
async def routes_unknown_path(bench: Bench) -> Facts:
    answer = await bench.http.ask("GET", f"{bench.http.prefix}{UNKNOWN_PATH}")
    if answer.http is None or answer.http.status not in (404, 403, 401):
        yield f"{answer}; expected 404"


@RULES(
    "routes.unknown-verb",
    "A custom method that does not exist is refused.",
    MUST,
    aip(136, "Guidance"),
    rfc(9110, "15.5.5"),
)
async def routes_unknown_verb(bench: Bench) -> Facts:
    path = bench.http.path(await bench.long(), ":lroConformUnknown")
    for fact in _refusal(await bench.http.ask("POST", path, body={})):
        yield fact


@RULES(
    "routes.wrong-method",
    "An HTTP method that a path does not support is refused with 405, or as an unknown path.",
    SHOULD,
    rfc(9110, "15.5.6"),
)
async def routes_wrong_method(bench: Bench) -> Facts:
    name = await bench.long()
    for method in ("PUT", "PATCH"):
        unknown = await bench.http.ask(method, f"{bench.http.prefix}{UNKNOWN_PATH}", body={})
        refused = {405, 404, 501, 403}
        if unknown.http is not None and unknown.refused:
            refused.add(unknown.http.status)
        answer = await bench.http.ask(method, bench.http.path(name), body={})
        if answer.http is None or answer.http.status not in refused:
            yield f"{answer}; expected 405, 404 or 501"


@RULES("routes.allow", "A reply with 405 has the header Allow.", MUST, rfc(9110, "15.5.6"))
async def routes_allow(bench: Bench) -> Facts:
    await bench.http.ask("PUT", bench.http.path(await bench.long()), body={})
    refused = [one for one in bench.log if one.http is not None and one.http.status == 405]
    if not refused:
        raise NotOffered("no reply had the status 405")
    for one in refused:
        if one.http is not None and "allow" not in one.http.headers:
            yield f"{one} without the header Allow"
            return


@RULES(
    "routes.safe-get",
    "GET on the path of CancelOperation does not cancel the operation.",
    MUST,
    rfc(9110, "9.2.1"),
    operations_proto("CancelOperation"),
)
async def routes_safe_get(bench: Bench) -> Facts:
    name = await bench.running()
    answer = await bench.http.ask("GET", bench.http.path(name, ":cancel"))
    if answer.ok:
        yield f"{answer}"
    after = await bench.http.get(name)
    if not after.ok or after.done:
        yield f"after GET {shown(name)}:cancel: {after}"


@RULES("routes.head", "HEAD has the status of GET.", SHOULD, rfc(9110, "9.3.2"), rfc(9110, "9.1"))
async def routes_head(bench: Bench) -> Facts:
    answer = await bench.http.ask("HEAD", bench.http.path(await bench.long()))
    if answer.http is None or answer.http.status != 200:
        yield f"{answer}; expected the status 200"


@RULES("routes.options", "OPTIONS lists the methods of a path.", INFO, rfc(9110, "9.3.7"))
async def routes_options(bench: Bench) -> Facts:
    answer = await bench.http.ask("OPTIONS", bench.http.path(await bench.long()))
    if answer.http is None or answer.http.status >= 300 or "allow" not in answer.http.headers:
        yield f"{answer}; expected success with the header Allow"


@RULES(
    "forms.empty-body",
    "A POST without a body is read as an empty message.",
    SHOULD,
    http_proto("HttpRule.body"),
)
async def forms_empty_body(bench: Bench) -> Facts:
    await bench.need("cancel")
    path = bench.http.path(await bench.start(StartKind.LONG), ":cancel")
    for fact in expect(await bench.http.ask("POST", path, rpc="cancel"), "OK"):
        yield fact


@RULES(
    "forms.media-type",
    "The media type of a body is case-insensitive, and may have charset=utf-8.",
    MUST,
    rfc(9110, "8.3.1"),
    rfc(8259, "11"),
)
async def forms_media_type(bench: Bench) -> Facts:
    await bench.need("cancel")
    path = bench.http.path(await bench.start(StartKind.LONG), ":cancel")
    for kind in ("application/json; charset=utf-8", "Application/JSON;charset=UTF-8"):
        answer = await bench.http.ask("POST", path, content=b"{}", content_type=kind, rpc="cancel")
        if not answer.ok and answer.code != "FAILED_PRECONDITION":
            yield f"with Content-Type {kind}: {answer}"


@RULES(
    "forms.malformed-body",
    "A body that is not a JSON object is refused with INVALID_ARGUMENT, and changes nothing.",
    MUST,
    protojson(),
    rfc(8259, "2"),
)
async def forms_malformed_body(bench: Bench) -> Facts:
    await bench.need("cancel")
    name = await bench.running()
    for content in (b'{"', b"[]", b"{} {}", b"{'a': 1}", b'{"a": \xff}'):
        answer = await bench.http.ask(
            "POST", bench.http.path(name, ":cancel"), content=content, rpc="cancel"
        )
        for fact in expect(answer, "INVALID_ARGUMENT"):
            yield f"the body {ascii(content)[1:]}: {fact}"
    after = await bench.http.get(name)
    if after.done:
        yield f"after refused cancels: {after}"


@RULES(
    "forms.unknown-field",
    "An unknown field in a body is ignored, or refused with INVALID_ARGUMENT.",
    MUST,
    protojson(),
)
async def forms_unknown_field(bench: Bench) -> Facts:
    await bench.need("cancel")
    path = bench.http.path(await bench.start(StartKind.LONG), ":cancel")
    answer = await bench.http.ask("POST", path, body={"lroConformUnknown": 1}, rpc="cancel")
    for fact in _tolerance(answer):
        yield fact


@RULES(
    "forms.bound-name",
    "The name in the path is used; a name in the query or body is ignored, or refused with "
    "INVALID_ARGUMENT.",
    MUST,
    http_proto("HttpRule"),
    aip(127, "HTTP method and path"),
)
async def forms_bound_name(bench: Bench) -> Facts:
    other, name = await bench.running(), await bench.long()
    ask, path, given = bench.http.ask, bench.http.path, {"name": other}
    answers = [await ask("GET", path(name), query=given, rpc="get")]
    if (await bench.first("wait")).ok:
        body = {**given, "timeout": "0s"}
        answers.append(await ask("POST", path(name, ":wait"), body=body, rpc="wait"))
    if (await bench.first("delete")).ok:
        doomed = await bench.disposable()
        answers.append(await ask("DELETE", path(doomed), query=given, rpc="delete"))
    if (await bench.first("cancel")).ok:
        doomed = await bench.start(StartKind.LONG)
        answers.append(await ask("POST", path(doomed, ":cancel"), body=given, rpc="cancel"))
        with contextlib.suppress(NotJudged):
            await bench.cancelled()
            began = (await bench.target.cancel(doomed)).began
            ended = await bench.until_done(doomed)
            await asyncio.sleep(ended.ended - began)  # by then, a wrong cancel would be visible
    for answer in answers:
        for fact in _tolerance(answer):
            yield fact
        if answer.body.get("name") == other:
            yield f"{answer}; expected {shown(name)}"
    after = await bench.http.get(other)
    if not after.ok or after.done:
        yield f"after calls about others, with this name beside the path: {after}"


@RULES(
    "forms.unknown-parameter",
    "An unknown query parameter is ignored, or refused with INVALID_ARGUMENT.",
    MUST,
    http_proto("HttpRule"),
)
async def forms_unknown_parameter(bench: Bench) -> Facts:
    path = bench.http.path(await bench.long())
    for query in ({"lroConformUnknown": "1"}, {"": ""}, {"a.b[0]": "%"}):
        for fact in _tolerance(await bench.http.ask("GET", path, query=query, rpc="get")):
            yield fact


@RULES(
    "forms.alt",
    "The parameter $alt=json;enum-encoding=int, which generated clients send, is accepted.",
    SHOULD,
    system_parameters("$alt"),
)
async def forms_alt(bench: Bench) -> Facts:
    path = bench.http.path(await bench.long())
    query = {"$alt": "json;enum-encoding=int"}
    for fact in expect(await bench.http.ask("GET", path, query=query, rpc="get"), "OK"):
        yield fact


async def _sized(bench: Bench, parameter: str) -> Answer:
    await bench.need("list")
    while len(bench.started) < 2:
        await bench.start(StartKind.LONG)
    path = bench.http.list_path(await bench.parent_name())
    return await bench.http.ask("GET", path, query={parameter: "1"}, rpc="list")


@RULES(
    "forms.camel-parameter",
    "A query parameter with the field's JSON name, such as pageSize, is accepted.",
    MUST,
    http_proto("HttpRule"),
    protojson(),
    optional=True,
)
async def forms_camel_parameter(bench: Bench) -> Facts:
    answer = await _sized(bench, "pageSize")
    if not answer.ok or len(operations_in(answer)) > 1:
        yield f"pageSize=1: {answer}"


@RULES(
    "forms.snake-parameter",
    "A query parameter with the field's proto name, such as page_size, is accepted.",
    SHOULD,
    http_proto("HttpRule"),
    optional=True,
)
async def forms_snake_parameter(bench: Bench) -> Facts:
    answer = await _sized(bench, "page_size")
    if not answer.ok or len(operations_in(answer)) > 1:
        yield f"page_size=1: {answer}"


@RULES(
    "forms.wrong-type",
    "A query parameter whose value does not fit the field's type is refused with INVALID_ARGUMENT.",
    MUST,
    http_proto("HttpRule"),
    aip(193, "Guidance"),
    optional=True,
)
async def forms_wrong_type(bench: Bench) -> Facts:
    await bench.need("list")
    path = bench.http.list_path(await bench.parent_name())
    for value in ("many", "1.5", "99999999999999999999"):
        answer = await bench.http.ask("GET", path, query={"pageSize": value}, rpc="list")
        for fact in expect(answer, "INVALID_ARGUMENT"):
            yield f"pageSize={value}: {fact}"


@RULES(
    "forms.timeout",
    "A timeout that is not a Duration is refused with INVALID_ARGUMENT.",
    MUST,
    protojson("Duration"),
    optional=True,
)
async def forms_timeout(bench: Bench) -> Facts:
    await bench.need("wait")
    path = bench.http.path(await bench.long(), ":wait")
    for timeout in ("1", "soon", "PT1S"):
        answer = await bench.http.ask("POST", path, body={"timeout": timeout}, rpc="wait")
        for fact in expect(answer, "INVALID_ARGUMENT"):
            yield f"timeout {timeout!r}: {fact}"


@RULES(
    "robust.paths",
    "A malformed path is refused, and not with the status of a server error.",
    MUST,
    rfc(3986, "2.1"),
    rfc(9110, "15.5"),
)
async def robust_paths(bench: Bench) -> Facts:
    start, _, _ = bench.http.path(await bench.long()).rpartition("/")
    for id_ in ("%zz", "%ff", "%00", "%2F", "a%0Ab", "x" * 4000, "a//b"):
        for fact in _refusal(await bench.http.ask("GET", f"{start}/{id_}")):
            yield fact


@RULES(
    "robust.bodies",
    "A large or deeply nested body is refused or ignored, and causes no server error.",
    MUST,
    rfc(8259, "9"),
    rfc(9110, "15.5"),
)
async def robust_bodies(bench: Bench) -> Facts:
    await bench.need("cancel")
    path = bench.http.path(await bench.unknown(), ":cancel")
    deep = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
    large = b'{"a": "' + b"x" * 300_000 + b'"}'
    for what, content in (("20,000 levels", deep), ("300 kB", large)):
        answer = await bench.http.ask("POST", path, content=content)
        if not answer.ok and not answer.refused:
            yield f"a body of {what}: {answer}; expected success, or a refusal"


@RULES(
    "robust.queries",
    "A malformed query is refused or ignored, and causes no server error.",
    MUST,
    rfc(3986, "3.4"),
    rfc(9110, "15.5"),
)
async def robust_queries(bench: Bench) -> Facts:
    path = bench.http.path(await bench.long())
    for query in ("%zz", "a=%ff", "&&&", "a=1&a=2", "x" * 3000):
        answer = await bench.http.ask("GET", f"{path}?{query}")
        if not answer.ok and not answer.refused:
            yield f"{answer}; expected success, or a refusal"


@RULES(
    "robust.get-body",
    "The body of a GET has no meaning, and is ignored or refused.",
    MUST,
    rfc(9110, "9.3.1"),
    aip(131, "Requests"),
)
async def robust_get_body(bench: Bench) -> Facts:
    path = bench.http.path(await bench.long())
    answer = await bench.http.ask("GET", path, content=b"{", rpc="get")
    if not answer.ok and not answer.refused:
        yield f"{answer}; expected success, or a refusal"


@RULES(
    "auth.anonymous",
    "A request without the given credentials is refused with 401 and WWW-Authenticate, or 403.",
    SHOULD,
    rfc(9110, "15.5.2"),
    aip(193, "Permission Denied"),
    optional=True,
)
async def auth_anonymous(bench: Bench) -> Facts:
    if not any(name.lower() == "authorization" for name, _ in bench.http.headers):
        raise NotJudged("no credentials were given")
    path = bench.http.path(await bench.long())
    answer = await bench.http.ask("GET", path, rpc="get", anonymous=True)
    for fact in expect(answer, "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"):
        yield fact


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


@RULES(
    "json.times",
    "A metadata field that is named as a time is a Timestamp: RFC 3339 with an offset.",
    SHOULD,
    protojson("Timestamp"),
    aip(142, "Guidance"),
)
async def json_times(bench: Bench) -> Facts:
    await bench.long()
    for key, value in _metadata(bench):
        if key.endswith("Time") and not (isinstance(value, str) and _TIME.fullmatch(value)):
            yield f"metadata.{key} is {shown(value)}"
            return


@RULES(
    "json.metadata-names", "Fields of metadata are named in lowerCamelCase.", SHOULD, protojson()
)
async def json_metadata_names(bench: Bench) -> Facts:
    await bench.long()
    for key, _ in _metadata(bench):
        if "_" in key.strip("_"):
            yield f"metadata has a field {shown(key)}"
            return


def _metadata(bench: Bench) -> Iterator[tuple[str, object]]:
    """Yield the fields of all metadata so far, except of a Struct, whose names are arbitrary."""
    for body in bench.bodies():
        metadata = body.get("metadata")
        if isinstance(metadata, Mapping) and "value" not in metadata:
            yield from ((key, one) for key, one in metadata.items() if key != "@type")
