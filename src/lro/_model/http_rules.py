"""Path templates, which match and build paths (spec §5.1-§5.4, §5.15)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, InvalidArgument, MalformedRequest

MAX_PATH: Final = 16 * 1024
"""Maximum length of a raw path, in characters.

A name has at most 1024 code points, each of at most twelve characters when escaped.
"""

_IDENT: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_LITERAL: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()+,;@]|%[0-9A-Fa-f]{2})+")
_PLAIN: Final = rf"(?:\*\*?|{_LITERAL.pattern})"
_PART: Final = re.compile(
    rf"(?P<plain>{_PLAIN})"
    rf"|\{{(?P<field>{_IDENT}(?:\.{_IDENT})*)(?:=(?P<segments>{_PLAIN}(?:/{_PLAIN})*))?\}}"
)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_ESCAPED_SLASH: Final = re.compile(r"(%2[Ff])")


def percent_decode(text: str, field: str) -> str:
    """Decode the percent-escapes of a text as UTF-8 (spec §5.3(3)).

    ``field`` is the field of the error: ``path`` or ``query``.

    Raises:
        MalformedRequest: An escape is malformed, or the bytes are not UTF-8.
    """
    if "%" not in text and text.isascii():
        return text
    if bad := _BAD_ESCAPE.search(text):
        raise MalformedRequest(field, f"{bad[0]!r} is not a percent-escape")
    try:
        text.encode()  # fails for lone surrogates, which edges make from bytes that are not UTF-8
        return unquote(text, errors="strict")
    except UnicodeError:
        raise MalformedRequest(field, f"the bytes of {text[:80]!r} are not UTF-8") from None


def check_path(path: str) -> None:
    """Check that a raw path is not too long.

    Raises:
        MalformedRequest: The path is longer than any path that a route matches.
    """
    if len(path) > MAX_PATH:
        why = f"must have at most {MAX_PATH} characters, got {len(path)}"
        raise MalformedRequest("path", why)


def keep_slashes(segment: str) -> str:
    """Decode a checked segment, except ``%2F`` and ``%2f`` (spec §5.3(2))."""
    if "%" not in segment:
        return segment
    pieces = _ESCAPED_SLASH.split(segment)
    return "".join(p if n % 2 else unquote(p, errors="strict") for n, p in enumerate(pieces))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RawPath(ByFields):
    """A path that is split and decoded once for all templates.

    ``raw`` has the segments as received, ``texts`` the decoded segments. ``verb`` is the decoded
    text after the last raw colon, or None. ``stem`` is the path before that colon, or None if
    nothing precedes the colon in the last segment (spec §5.4(1)).
    """

    raw: tuple[str, ...]
    texts: tuple[str, ...]
    verb: str | None = None
    stem: RawPath | None = None

    @classmethod
    def parse(cls, path: str) -> RawPath | None:
        """Read a raw path without its query; None if no template can match it (spec §5.2).

        Raises:
            MalformedRequest: The path has a malformed escape or bytes that are not UTF-8.
        """
        first, *raw = path.split("/")
        percent_decode(first, "path")
        texts = tuple(percent_decode(segment, "path") for segment in raw)
        if first or not raw or not all(raw):
            return None
        rest, colon, verb = raw[-1].rpartition(":")
        if not colon:
            return cls(raw=tuple(raw), texts=texts)
        stem = cls(raw=(*raw[:-1], rest), texts=(*texts[:-1], percent_decode(rest, "path")))
        return cls(
            raw=tuple(raw),
            texts=texts,
            verb=percent_decode(verb, "path"),
            stem=stem if rest else None,
        )


class Wildcard(enum.Enum):
    """The wildcards: ``*`` for one segment, ``**`` for any number of segments at the end."""

    ONE = "*"
    MANY = "**"


@attrs.frozen(eq=False, repr=False)
class Literal(ByFields):
    """A fixed segment or verb: as ``written`` in the template, and its decoded ``text``."""

    written: str
    text: str


Segment: TypeAlias = Literal | Wildcard


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Variable(ByFields):
    """A variable: its field, its value's segments, and the index of the first in the URL's path."""

    field: str
    start: int
    segments: tuple[Segment, ...]

    @property
    def single(self) -> bool:
        """True if the value is exactly one segment that is not ``**`` (spec §5.3(1))."""
        return len(self.segments) == 1 and self.segments[0] is not Wildcard.MANY

    def read(self, path: RawPath) -> str:
        """Return the value in a path that matched (spec §5.2(5), §5.3)."""
        if self.single:
            return path.texts[self.start]
        end = None if self.segments[-1] is Wildcard.MANY else self.start + len(self.segments)
        return "/".join(map(keep_slashes, path.raw[self.start : end]))

    def write(self, value: str) -> str:
        """Return the value percent-encoded, as part of a path (spec §5.15).

        Raises:
            InvalidArgument: The value does not fit the segments.
        """
        parts = [value] if self.single else value.split("/") if value else []
        if "" in parts or not _fits(self.segments, parts):
            wanted = "/".join(s.value if isinstance(s, Wildcard) else s.text for s in self.segments)
            raise InvalidArgument(self.field, f"{value!r} does not have the form {wanted!r}")
        try:
            return quote(value, safe="" if self.single else "/")
        except UnicodeEncodeError:
            raise InvalidArgument(self.field, f"{value!r} is no Unicode text") from None


Part: TypeAlias = Segment | Variable


def _flatten(template: Template) -> tuple[Segment, ...]:
    lists = (part.segments if isinstance(part, Variable) else (part,) for part in template.parts)
    return tuple(segment for segments in lists for segment in segments)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Template(ByFields):
    """A path template of an HTTP rule, such as ``/v1/{name=operations/**}:cancel`` (spec §5.1).

    ``parts`` are the pieces between slashes; slashes in braces do not count. In ``segments`` each
    variable is replaced by its segments. :meth:`parse` makes templates.
    """

    text: str
    parts: tuple[Part, ...]
    verb: Literal | None
    segments: tuple[Segment, ...] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_flatten, takes_self=True)
    )

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a template.

        Raises:
            DeclarationError: The text does not follow the grammar of spec §5.1.
        """
        if not text.startswith("/"):
            raise DeclarationError(text, "it must begin with a slash")
        parts: list[Part] = []
        taken = position = 0
        while text[position : position + 1] == "/":
            found = _PART.match(text, position + 1)
            if found is None:
                raise DeclarationError(text, f"no segment begins at character {position + 1}")
            part = _part(text, found, taken)
            taken += len(part.segments) if isinstance(part, Variable) else 1
            parts.append(part)
            position = found.end()
        verb = _LITERAL.match(text, position + 1) if text[position : position + 1] == ":" else None
        end = verb.end() if verb else position
        if end < len(text) or not parts:
            raise DeclarationError(text, f"it goes wrong at character {end}: {text[end:]!r}")
        template = cls(
            text=text, parts=tuple(parts), verb=_literal(text, verb[0]) if verb else None
        )
        template._check()
        return template

    def _check(self) -> None:
        if Wildcard.MANY in self.segments[:-1]:
            raise DeclarationError(self.text, "'**' may only be the last segment")
        fields = [variable.field for variable in self.variables]
        for field in fields:
            if fields.count(field) > 1:
                raise DeclarationError(self.text, f"the variable {field!r} occurs twice")

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, from left to right."""
        return tuple(part for part in self.parts if isinstance(part, Variable))

    @property
    def specificity(self) -> tuple[int, ...]:
        """A sort key: the most specific template for a path comes first (spec §5.7(3)).

        In each segment a literal sorts before ``*``, and ``*`` before ``**``. A shorter tuple sorts
        first, so an exact end comes before ``**``.
        """
        ranks = {Wildcard.ONE: 1, Wildcard.MANY: 2}
        return tuple(ranks[s] if isinstance(s, Wildcard) else 0 for s in self.segments)

    @property
    def example(self) -> str:
        """A path that the template matches, with an ``x`` for each wildcard."""
        texts = (one.written if isinstance(one, Literal) else "x" for one in self.segments)
        verb = f":{self.verb.written}" if self.verb else ""
        return f"/{'/'.join(texts)}{verb}"

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the variables in a raw path without query, or None.

        Raises:
            MalformedRequest: The path has a malformed escape or bytes that are not UTF-8.
        """
        parsed = RawPath.parse(path)
        return None if parsed is None else self.bind(parsed)

    def bind(self, path: RawPath) -> dict[str, str] | None:
        """Return the result of :meth:`match` for a parsed path."""
        if self.verb is not None:
            if path.verb != self.verb.text or path.stem is None:
                return None
            path = path.stem
        if not _fits(self.segments, path.texts):
            return None
        return {variable.field: variable.read(path) for variable in self.variables}

    def expand(self, bindings: Mapping[str, str]) -> str:
        """Return the path whose variables have these values; unknown variables are ignored.

        Raises:
            InvalidArgument: A value is missing or does not fit its variable (spec §5.15).
            DeclarationError: The template has a wildcard outside a variable.
        """
        path = "/".join(filter(None, (self._write(part, bindings) for part in self.parts)))
        if not path:  # only ``/{x=**}`` can be empty, and no template matches an empty path
            raise InvalidArgument(self.variables[0].field, "a path needs at least one segment")
        return f"/{path}:{self.verb.written}" if self.verb else f"/{path}"

    def _write(self, part: Part, bindings: Mapping[str, str]) -> str:
        if isinstance(part, Literal):
            return part.written
        if isinstance(part, Wildcard):
            why = f"{part.value!r} stands outside a variable, so no path can be built"
            raise DeclarationError(self.text, why)
        if part.field not in bindings:
            raise InvalidArgument(part.field, f"is missing, {self.text} needs it")
        return part.write(bindings[part.field])


def path_template(name: str, path: str) -> Template:
    """Parse a path template; ``name`` is the name of the argument that has it.

    Raises:
        DeclarationError: The path is not a template; the error names the argument.
    """
    try:
        return Template.parse(path)
    except DeclarationError as exc:
        wanted = f"must be a path such as /v1/images:resize, got {path!r}"
        raise DeclarationError(name, f"{wanted} ({exc.description})") from None


def _fits(segments: Sequence[Segment], texts: Sequence[str]) -> bool:
    many = segments[-1] is Wildcard.MANY
    fixed = len(segments) - many
    if len(texts) < fixed or (len(texts) > fixed and not many):
        return False
    pairs = zip(segments, texts, strict=False)
    return all(isinstance(segment, Wildcard) or segment.text == text for segment, text in pairs)


def _part(template: str, found: re.Match[str], start: int) -> Part:
    if found["plain"]:
        return _segment(template, found["plain"])
    written = (found["segments"] or "*").split("/")
    segments = tuple(_segment(template, segment) for segment in written)
    return Variable(field=found["field"], start=start, segments=segments)


def _segment(template: str, written: str) -> Segment:
    return Wildcard(written) if written.startswith("*") else _literal(template, written)


def _literal(template: str, written: str) -> Literal:
    try:
        return Literal(written, percent_decode(written, "path"))
    except MalformedRequest:  # no path could match this literal (spec §5.3(3))
        raise DeclarationError(template, f"the bytes of {written!r} are not UTF-8") from None
