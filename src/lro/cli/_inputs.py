"""What the commands read: descriptor sets from files or Python services, and allowances."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lro._base.errors import InvalidArgument
from lro._engine.service import Service

_SERVICE: Final = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<attribute>[\w.]+)")


def read_set(source: str) -> bytes:
    """A ``FileDescriptorSet``: of a file, of ``module:service``, or ``-`` for standard input.

    Raises:
        InvalidArgument: There is no such file, or no such service.
        MissingExtra: A Python service needs the extra ``protobuf``.
    """
    if source == "-":
        if sys.stdin is None:
            raise InvalidArgument("-", "standard input is closed")
        return sys.stdin.buffer.read()
    named = _SERVICE.fullmatch(source)
    if named is None or os.path.exists(source):
        return _read(source)
    service = load_service(named["module"], named["attribute"])
    from lro.protobuf import descriptor_set  # needs an extra that other sources do not

    return descriptor_set(service)


def read_service(source: str) -> Service:
    """The service of ``module:service``.

    Raises:
        InvalidArgument: There is no such service.
    """
    named = _SERVICE.fullmatch(source)
    if named is None:
        raise InvalidArgument(source, "is not module:service")
    return load_service(named["module"], named["attribute"])


def read_sets(sources: Iterable[str]) -> bytes:
    """Several sets as one: the format is made so that they are just put together."""
    return b"".join(map(read_set, sources))


def read_allowance_files(paths: Iterable[str]) -> list[str]:
    """The entries of these files.

    Raises:
        InvalidArgument: A file cannot be read.
    """
    from lro.lint import read_allowances

    found: list[str] = []
    for path in paths:
        try:
            found += read_allowances(_read(path).decode("utf-8-sig"))
        except UnicodeDecodeError as exc:
            raise InvalidArgument(path, f"is no text in UTF-8: {exc}") from exc
    return found


def load_service(module: str, attribute: str) -> Service:
    """The service that a module has under a name; modules are also looked for where we stand.

    Raises:
        InvalidArgument: The module cannot be imported, or has no service of that name.
    """
    named = f"{module}:{attribute}"
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as exc:  # whatever the user's module does when it is imported
        raise InvalidArgument(named, f"cannot be imported: {type(exc).__name__}: {exc}") from exc
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(named, f"there is no {part!r} in it") from None
        except Exception as exc:  # a property, say
            text = f"{part!r} cannot be had: {type(exc).__name__}: {exc}"
            raise InvalidArgument(named, text) from exc
    if not isinstance(found, Service):
        raise InvalidArgument(named, f"is {type(found).__name__}, not an lro.Service")
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as exc:  # ValueError: a path with a null character
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise InvalidArgument(path, f"cannot be read: {why}") from exc
