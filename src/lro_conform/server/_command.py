"""The command that judges a server: ``lro conform URL``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click
import httpx

from lro_conform._checks import GRPC, HTTP, Check, ConformanceReport
from lro_conform._options import Reporting, UnusableInput, report_options, run_judging
from lro_conform._report import select
from lro_conform.server._bench import Pace
from lro_conform.server._http import HttpTarget
from lro_conform.server._judge import CHECKS, ServerUnreachable, judge, merged
from lro_conform.server._starts import (
    CommandStarter,
    HttpStarter,
    OperationStarter,
    RequestTemplate,
    StartKind,
)

TOKEN: Final = "LRO_TOKEN"
"""The environment variable for a bearer token, the same as for the client's commands."""

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~]*)", re.ASCII)
_OWN_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})
_METADATA: Final = re.compile(r"[0-9a-z_.-]+(?<!-bin)")
"""Matches names of headers that gRPC can send too. Names that end in -bin need binary values."""
F = TypeVar("F", bound=Callable[..., Any])

_MANY_SECONDS: Final = click.FloatRange(min=0, min_open=True, max=86_400)


def _read_headers(_: object, __: object, given: Sequence[str]) -> list[tuple[str, str]]:
    """Read the values of ``--header``, for click.

    Raises:
        click.BadParameter: A value does not have the form ``Name: value``.
    """
    headers = []
    for text in given:
        found = _HEADER.fullmatch(text)
        if found is None:
            raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
        if found[1].lower() in _OWN_HEADERS:
            raise click.BadParameter(f"{found[1]} is set by the requests themselves")
        headers.append((found[1], found[2].strip()))
    return headers


def _read_url(_: object, __: object, given: str) -> str:
    """Read the URL, for click.

    Raises:
        click.BadParameter: The text is not an HTTP URL, or has credentials, a query or a fragment.
    """
    if not given:
        return given
    try:
        url = httpx.URL(given)
        usable = url.scheme in ("http", "https") and url.host and (url.port or 1) <= _MAX_PORT
    except (httpx.InvalidURL, ValueError):  # ValueError: IDNA does not allow the host
        url, usable = httpx.URL(), False
    if not usable or not re.fullmatch(r"[!-~]+", given):
        raise click.BadParameter(f"{given!r} is not a URL of http or https")
    if url.userinfo:
        raise click.BadParameter("give credentials by --header or --token-file, not in the URL")
    if url.query or url.fragment:
        raise click.BadParameter("the URL has a query or a fragment")
    return given


_MAX_PORT: Final = 65_535


def _read_target(_: object, __: object, given: str) -> str:
    """Read the value of ``--grpc``, for click.

    Raises:
        click.BadParameter: The value has characters that a target cannot have.
    """
    if not re.fullmatch(r"[!-~]*", given):
        raise click.BadParameter(f"{given!r} is not a target")
    return given


def _read_prefix(_: object, __: object, given: str) -> str:
    """Read the value of ``--prefix``, for click, without a trailing slash.

    Raises:
        click.BadParameter: The value is not a path.
    """
    if given and not re.fullmatch(r"/[!-~]*", given):
        raise click.BadParameter(f"{given!r} is not a path that begins with a slash")
    return given.rstrip("/")


def _read_parent(_: object, __: object, given: str | None) -> str | None:
    """Read the value of ``--parent``, for click.

    Raises:
        click.BadParameter: The value has unprintable characters, or bytes that are not UTF-8.
    """
    if given and not given.isprintable():
        raise click.BadParameter(f"{given!r} is not a name")
    return given


def _read_request(_: object, __: object, given: str | None) -> RequestTemplate | None:
    """Read the value of ``--start``, ``--start-soon`` or ``--start-fail``, for click.

    Raises:
        click.BadParameter: The value is not a request.
    """
    try:
        return None if given is None else RequestTemplate.parse(given)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@attrs.frozen(kw_only=True)
class ServerRun:
    """The server, and the options with which it is judged, from the command line."""

    url: str
    grpc: str
    templates: dict[StartKind, RequestTemplate]
    command: Sequence[str]
    headers: Sequence[tuple[str, str]]
    prefix: str
    parent: str | None
    call_seconds: float
    pace: Pace
    required: Sequence[Check]

    async def judge(self, checks: Sequence[Check]) -> ConformanceReport:
        """Judge over each transport for which an address is given.

        Raises:
            ServerUnreachable: The server cannot be judged.
            MissingExtra: gRPC is not installed.
            UnusableInput: httpx cannot read the proxy settings in the environment.
        """
        reports = []
        try:
            http = HttpTarget(
                address=self.url,
                prefix=self.prefix,
                headers=self.headers,
                call_seconds=self.call_seconds,
            )
        except (ValueError, ImportError, httpx.InvalidURL) as exc:
            text = f"a variable such as HTTPS_PROXY or NO_PROXY cannot be used: {exc}"
            raise UnusableInput(text) from exc
        try:
            if self.url:
                reports.append(await self._judge(http, http.log, http, checks))
            if self.grpc:
                reports.append(await self._judge_grpc(http, checks))
        finally:
            await http.aclose()
        return merged(reports)

    async def _judge_grpc(self, http: HttpTarget, checks: Sequence[Check]) -> ConformanceReport:
        from lro_conform.server._grpc import GrpcTarget

        address = re.sub(r"\A(?:grpcs?|https?)://", "", self.grpc)
        target = GrpcTarget(
            address=address,
            secure=self.grpc.startswith(("grpcs://", "https://")),
            headers=self.headers,
            call_seconds=self.call_seconds,
        )
        try:
            return await self._judge(target, target.log, http, checks)
        finally:
            await target.aclose()

    async def _judge(
        self, target: Any, log: list[Any], http: HttpTarget, checks: Sequence[Check]
    ) -> ConformanceReport:
        starter: OperationStarter = HttpStarter(http, self.templates)
        if self.command:
            starter = CommandStarter(self.command, target.address)
        return await judge(
            target,
            log,
            starter,
            checks=checks,
            pace=self.pace,
            parent=self.parent,
            required=self.required,
        )


def _read_command(_: object, __: object, given: str) -> list[str]:
    """Read the value of ``--start-command``, for click.

    Raises:
        click.BadParameter: A quote is not closed.
    """
    try:
        return shlex.split(given)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _request_option(flag: str, kind: StartKind, help_text: str) -> Callable[[F], F]:
    return click.option(flag, str(kind), metavar="REQUEST", callback=_read_request, help=help_text)


@click.command("server")
@click.argument("url", default="", callback=_read_url)
@click.option(
    "--grpc",
    metavar="TARGET",
    default="",
    callback=_read_target,
    help="HOST:PORT, or grpcs://HOST:PORT.",
)
@_request_option(
    "--start",
    StartKind.LONG,
    "Starts what runs until cancelled: 'POST /v1/x:y {\"a\": 1}'; $UUID becomes a new UUID.",
)
@_request_option("--start-soon", StartKind.SOON, "Starts what succeeds soon.")
@_request_option("--start-fail", StartKind.FAIL, "Starts what fails soon.")
@click.option(
    "--start-command",
    metavar="COMMAND",
    default="",
    callback=_read_command,
    help="A command that starts an operation of the kind LRO_CONFORM_KIND (long, soon or fail), "
    "and prints its name, or an Operation as JSON. Instead of --start.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    callback=_read_headers,
    help="A header to send with every call.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Bearer token; or LRO_TOKEN.")
@click.option(
    "--prefix",
    default="/v1",
    show_default=True,
    callback=_read_prefix,
    help="The path prefix before operation names.",
)
@click.option(
    "--parent",
    callback=_read_parent,
    help="List operations of this parent; by default the parent of a started one.",
)
@click.option(
    "--call-timeout", type=_MANY_SECONDS, default=10, show_default=True, help="Seconds for a call."
)
@click.option(
    "--end-timeout",
    type=_MANY_SECONDS,
    default=30,
    show_default=True,
    help="Seconds within which operations must end that fail, succeed or are cancelled.",
)
@click.option(
    "--slack",
    type=_MANY_SECONDS,
    default=2,
    show_default=True,
    help="Seconds by which a reply may be late, if a rule says when it is due.",
)
@click.option(
    "--time-limit",
    type=_MANY_SECONDS,
    default=300,
    show_default=True,
    help="Seconds after which the run ends.",
)
@click.option(
    "--require",
    multiple=True,
    metavar="ID",
    help="Fail if this check, or a check of this area, is absent or not judged.",
)
@report_options
@click.pass_context
def server(ctx: click.Context, /, url: str, grpc: str, reporting: Reporting, **given: Any) -> None:
    """Judge a server of google.longrunning over HTTP at URL, and over gRPC at a TARGET.

    It starts operations by a request or a command, lists, cancels and deletes them, and sends
    requests that a server should refuse. Do not run it against a service that others need.

    Exit status: 0 if no must failed (with --strict: no should either), 1 if one did, 2 if the
    arguments are invalid, the server cannot be reached, nothing can be judged, or the run does not
    end in time.
    """
    try:
        required = select(CHECKS, only=given["require"]) if given["require"] else []
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if reporting.listing:
        ctx.exit(reporting.list(CHECKS))
    if not url and not grpc:
        raise click.UsageError("give the URL of a server, or --grpc TARGET")
    templates = {kind: given[kind] for kind in StartKind if given[kind] is not None}
    command: list[str] = given["start_command"]
    if bool(command) == bool(templates):
        raise click.UsageError("give either --start or --start-command")
    if templates and (StartKind.LONG not in templates or not url):
        raise click.UsageError("--start and the URL are needed, too")
    headers = _headers(given["headers"], given["token_file"])
    unsent = [name for name, _ in headers if grpc and not _METADATA.fullmatch(name.lower())]
    if unsent:
        raise click.UsageError(f"the header {unsent[0]} cannot be sent over gRPC")
    chosen = [*reporting.chosen(CHECKS), *required]
    checks = [one for one in CHECKS if one in chosen]
    over = {transport for transport, at in ((HTTP, url), (GRPC, grpc)) if at}
    for one in given["require"]:
        if not any(check.transports & over for check in select(CHECKS, only=[one])):
            raise click.UsageError(f"{one} is required, and cannot be judged over {min(over)}")
    run = ServerRun(
        url=url,
        grpc=grpc,
        templates=templates,
        command=command,
        headers=headers,
        prefix=given["prefix"],
        parent=given["parent"],
        call_seconds=given["call_timeout"],
        pace=Pace(end=given["end_timeout"], slack=given["slack"], total=given["time_limit"]),
        required=required,
    )
    try:
        reporting.check_output()
        report = run_judging(run.judge(checks))
    except ServerUnreachable as exc:
        raise UnusableInput(str(exc)) from exc
    ctx.exit(reporting.write(report))


def _headers(given: Sequence[tuple[str, str]], token_file: Path | None) -> list[tuple[str, str]]:
    """Return the headers of every call, with the token from the file or the environment.

    Raises:
        UnusableInput: The file cannot be read, or the token is malformed.
    """
    headers = list(given)
    if token_file is not None:
        try:
            token = token_file.read_text("utf-8").strip()
        except (OSError, ValueError) as exc:
            raise UnusableInput(f"the token file {token_file} cannot be read: {exc}") from exc
    elif any(name.lower() == "authorization" for name, _ in headers):
        return headers
    else:
        token = os.environ.get(TOKEN, "").strip()
    if token:
        bare = re.sub(r"\ABearer\s+", "", token, flags=re.IGNORECASE)
        if not re.fullmatch(r"[!-~]+", bare):
            raise UnusableInput("the token has characters that a header cannot have")
        headers.append(("Authorization", f"Bearer {bare}"))
    return headers
