"""The commands that check or describe an API: ``lint``, ``breaking``, ``proto``, ``openapi``."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lro import Service
from lro.cli._output import report
from lro.errors import InvalidArgument

_SERVICE: Final = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<attribute>[\w.]+)")


def read_set(source: str) -> bytes:
    """Read a ``FileDescriptorSet`` from a file, ``module:service``, or ``-`` (standard input).

    Raises:
        InvalidArgument: There is no such file or service.
        MissingExtra: A Python service needs the extra ``protobuf``.
    """
    if source == "-":
        if sys.stdin is None:
            raise InvalidArgument("-", "standard input is closed")
        return sys.stdin.buffer.read()
    named = _SERVICE.fullmatch(source)
    if named is None or os.path.exists(source):
        return _read(source)
    service = read_service(source)
    from lro.protobuf import descriptor_set  # only a service needs this extra

    return descriptor_set(service)


def read_service(source: str) -> Service:
    """Import the service of ``module:service``.

    Raises:
        InvalidArgument: There is no such service.
    """
    found = read_object(source)
    if not isinstance(found, Service):
        raise InvalidArgument(source, f"is {type(found).__name__}, not an lro.Service")
    return found


def read_object(source: str) -> object:
    """Import the object ``module:name``; modules in the working directory are found too.

    Raises:
        InvalidArgument: The module cannot be imported, or has no such object.
    """
    named = _SERVICE.fullmatch(source)
    if named is None:
        raise InvalidArgument(source, "is not module:service")
    return _load(named["module"], named["attribute"], source)


def read_allowance_files(paths: Iterable[str]) -> list[str]:
    """Read the allowance entries of these files.

    Raises:
        InvalidArgument: A file cannot be read.
    """
    from lro.lint import read_allowances

    found: list[str] = []
    for path in paths:
        try:
            found += read_allowances(_read(path).decode("utf-8-sig"))
        except UnicodeDecodeError as exc:
            raise InvalidArgument(path, f"is not UTF-8 text: {exc}") from exc
    return found


def _load(module: str, attribute: str, named: str) -> object:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as exc:  # importing the user's module can raise anything
        raise InvalidArgument(named, f"cannot be imported: {type(exc).__name__}: {exc}") from exc
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(named, f"there is no {part!r} in it") from None
        except Exception as exc:  # a property can raise anything
            text = f"{part!r} cannot be read: {type(exc).__name__}: {exc}"
            raise InvalidArgument(named, text) from exc
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as exc:  # ValueError: a path with a null character
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise InvalidArgument(path, f"cannot be read: {why}") from exc


F = TypeVar("F", bound=Callable[..., None])

_OPTIONS: Final = (
    click.option(
        "--allow",
        multiple=True,
        metavar="ENTRY",
        help="Do not report METHOD:CODE, METHOD or *:CODE. May be repeated.",
    ),
    click.option(
        "--allow-file",
        multiple=True,
        metavar="FILE",
        help="Read such entries from a file, one a line; # begins a comment. May be repeated.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print a JSON list."),
    click.option("--strict", is_flag=True, help="Count warnings as errors."),
)


def check_options(command: F) -> F:
    """Add the options of ``lint`` and ``breaking`` to a command, in the order of its help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("sources", metavar="DESCRIPTOR_SET...", nargs=-1, required=True)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Examine only this file of the set, such as acme/v1/api.proto. May be repeated.",
)
@check_options
@click.pass_context
def lint(
    context: click.Context,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    allow: tuple[str, ...],
    allow_file: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> None:
    """Check the operation_info of every long-running method.

    A DESCRIPTOR_SET is a file written by protoc --descriptor_set_out or buf build, - for standard
    input, or module:service for a Python service. Several count as one set.
    """
    from lro.lint._descriptors import DescriptorSet
    from lro.lint._lint import examine

    several = b"".join(map(read_set, sources))  # concatenated sets are one set
    files = DescriptorSet(several, " + ".join(sources))
    chosen = targets or None
    findings = examine(files, targets=chosen, allow=[*allow, *read_allowance_files(allow_file)])
    methods = sum(rpc.returns_operation for rpc in files.rpcs("targets", chosen))
    context.exit(report(findings, methods=methods, as_json=as_json, strict=strict))


@click.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Compare only the methods of this file of OLD. May be repeated.",
)
@check_options
@click.pass_context
def breaking(
    context: click.Context,
    old: str,
    new: str,
    targets: tuple[str, ...],
    allow: tuple[str, ...],
    allow_file: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> None:
    """Compare the long-running methods of two releases.

    OLD and NEW are each a file written by protoc --descriptor_set_out or buf build, - for
    standard input, or module:service for a Python service.
    """
    from lro.lint._breaking import compare
    from lro.lint._descriptors import DescriptorSet

    was, now = DescriptorSet(read_set(old), old), DescriptorSet(read_set(new), new)
    chosen = targets or None
    allowed = [*allow, *read_allowance_files(allow_file)]
    findings = compare(was, now, old_targets=chosen, allow=allowed)
    methods = sum(rpc.returns_operation for rpc in was.rpcs("old_targets", chosen))
    context.exit(report(findings, methods=methods, as_json=as_json, strict=strict))


@click.command()
@click.argument("service")
@click.option("--out", metavar="FOLDER", help="Write the files to this folder.")
@click.option(
    "--descriptor-set", metavar="FILE", help="Write a FileDescriptorSet with all imports."
)
def proto(service: str, out: str | None, descriptor_set: str | None) -> None:
    """Print the proto files of a service: its messages, its methods, and their types.

    SERVICE is module:service. The files import those of googleapis (google/longrunning,
    google/api, google/rpc) and of protobuf.
    """
    found = read_service(service)
    from lro import protobuf  # needs an extra

    sources = protobuf.proto_sources(found)
    if descriptor_set is not None:
        _write(Path(descriptor_set), protobuf.descriptor_set(found))
    for name, text in sources.items():
        if out is None and descriptor_set is None:
            click.echo(f"// {name}\n\n{text}" if len(sources) > 1 else text, nl=False)
        elif out is not None:
            _write(Path(out) / name, text.encode())
            click.echo(Path(out) / name)


@click.command()
@click.argument("source", metavar="MODULE:SERVICE")
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="PATTERN",
    help="Describe operations below this parent too, such as projects/*. May be repeated. Only for"
    " a service.",
)
@click.option("--out", metavar="FILE", help="Write the document to this file.")
def openapi(source: str, parents: tuple[str, ...], out: str | None) -> None:
    """Print the OpenAPI document of a service, or of an application that has one.

    MODULE:SERVICE is a service, whose methods with a path are in the document; or an application,
    such as an OperationsApp or a FastAPI application, which has its own document.
    """
    from lro.openapi import describe  # not needed by other commands

    found: Any = read_object(source)
    if isinstance(found, Service):
        text = json.dumps(describe(found, parents=parents), indent=2)
    elif hasattr(found, "edge") or callable(getattr(found, "openapi", None)):
        if parents:
            raise InvalidArgument(
                "--parent", "is only for a service: an application has its own parents"
            )
        try:
            own = describe(found) if hasattr(found, "edge") else found.openapi()
            text = json.dumps(own, indent=2)
        except Exception as exc:  # an application can raise anything
            raise InvalidArgument(source, f"{type(exc).__name__}: {exc}") from exc
    else:
        kind = type(found).__name__
        raise InvalidArgument(source, f"is {kind}, which has no OpenAPI document")
    text += "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(Path(out), text.encode())


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as exc:
        raise InvalidArgument(str(path), f"cannot be written: {exc.strerror}") from exc
