"""HTTP rules of methods: they build a request message from a path, a query and a body.

The rules are those of ``google.api.http`` and AIP-127: the variables of the path are fields of the
request, the body is one field or all other fields, and the query has the remaining fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, cast

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, InvalidArgument, MalformedRequest
from lro._base.status import WRAPPED_TYPES, Json
from lro._messages.json_text import MAX_DEPTH
from lro._messages.schema import DURATION, STRUCT, TIMESTAMP, Field, Kind, Label, Shape
from lro._model.http_rules import Template, Wildcard, path_template

WHOLE: Final = "*"
"""The ``body`` of a rule whose body has all fields that are not in the path."""
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
"""The HTTP methods that can start an operation; GET must change nothing."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HttpRule(ByFields):
    """How a method is called over HTTP: HTTP method, path template and body.

    ``body`` is ``"*"`` for all fields that are not in the path, the name of a field, or empty if
    the body is not read.
    """

    method: str = "POST"
    template: Template
    body: str = WHOLE

    @classmethod
    def of(cls, name: str, path: str, method: str = "POST", body: str | None = None) -> HttpRule:
        """Make a rule from a declaration; in errors, the argument with the path is called ``name``.

        The default of ``body`` is ``"*"``, or empty for DELETE.

        Raises:
            DeclarationError: The path is not a template or has a wildcard outside a variable, the
                HTTP method cannot start an operation, or DELETE has a body.
        """
        if method not in METHODS:
            wanted = f"must be one of {', '.join(METHODS)}, got {method!r}"
            raise DeclarationError("http_method", wanted)
        if method == "DELETE" and body:
            raise DeclarationError("body", f"must be empty: DELETE has no body, got {body!r}")
        template = path_template(name, path)
        if any(isinstance(part, Wildcard) for part in template.parts):
            why = "a wildcard must be in a variable, such as {name=things/*}"
            raise DeclarationError(name, f"{why}, got {path!r}")
        default = "" if method == "DELETE" else WHOLE
        return cls(method=method, template=template, body=default if body is None else body)


FieldPath: TypeAlias = tuple[Field, ...]
"""The fields from a field of a message down to a nested field."""

Parameters: TypeAlias = Iterable[tuple[str, str]]
"""The names and values of a query."""


@attrs.frozen(eq=False, repr=False)
class RequestBinding(ByFields):
    """Says which parts of an HTTP request set which fields of a request message.

    ``variables`` has the fields in the path by variable. ``body`` is the field that the body sets,
    or None if the body sets all fields or none.
    """

    rule: HttpRule
    shape: Shape
    variables: Mapping[str, FieldPath]
    body: Field | None

    @classmethod
    def of(cls, rule: HttpRule, shape: Shape | None, request: str) -> RequestBinding | None:
        """Bind a rule to a request class; None if the body is the whole request.

        Raises:
            DeclarationError: The rule names a field that the class does not have, or that the path
                or the body of a request cannot set.
        """
        if rule.body == WHOLE and not rule.template.variables:
            return None
        if shape is None:
            why = f"the fields of {request} are not known, so that no path or query can give them"
            raise DeclarationError(rule.template.text, why)
        variables = {}
        for variable in rule.template.variables:
            try:
                variables[variable.field] = _path_to(shape, variable.field)
            except LookupError as exc:
                why = f"the variable {variable.field!r} is not a field of {request}: {exc}"
                raise DeclarationError(rule.template.text, why) from None
            if variables[variable.field][-1].label is Label.REPEATED:
                why = f"the variable {variable.field!r} is a repeated field"
                raise DeclarationError(rule.template.text, why)
        body = None
        if rule.body not in ("", WHOLE):
            body = shape.spellings.get(rule.body)
            if body is None or not _is_object(body):
                why = f"{rule.body!r} is not a message that {request} has as a field"
                raise DeclarationError("body", why)
        return cls(rule, shape, variables, body)

    def fields(
        self, content: dict[str, Json] | None, bound: Mapping[str, str], parameters: Parameters
    ) -> dict[str, Json]:
        """Return the request as a JSON object.

        ``content`` is the content of the body, if any; ``bound`` has the variables of the path.
        ``request_id`` and ``validate_only``, which every start takes, can be parameters too.

        Raises:
            MalformedRequest: Two parts have different values for a field, a parameter is not a
                field, or its value does not fit.
        """
        fields: dict[str, Json] = {}
        if content is not None and self.rule.body == WHOLE:
            fields = content
        elif content is not None and self.body is not None:
            fields[self.body.json_name] = cast(Json, content)
        for name, text in bound.items():
            self._bind(fields, name, text)
        taken: set[str] = set()
        for name, text in parameters:
            self._read(fields, name, text, taken)
        return fields

    def _bind(self, fields: dict[str, Json], name: str, text: str) -> None:
        path = self.variables[name]
        last, inside = path[-1], _inside(fields, path, name)
        value = _value(last, text, name)
        for key in (last.name, last.json_name):
            if inside.pop(key, None) not in (None, "", value):
                raise MalformedRequest(name, f"must be that of the path, {text[:80]!r}")
        inside[last.json_name] = value

    def _read(self, fields: dict[str, Json], name: str, text: str, taken: set[str]) -> None:
        added = _ADDED.get(name)
        if added is not None and name not in self.shape.spellings:
            path: FieldPath = (added,)
        else:
            try:
                path = _path_to(self.shape, name)
            except LookupError as exc:
                why = f"has a parameter {name[:80]!r} that is not a field of the request: {exc}"
                raise MalformedRequest("query", why) from None
        where = _full_name(path)
        if where in map(_full_name, self.variables.values()):
            raise MalformedRequest(where, "is given by the path, not by the query")
        if path[0] is self.body:
            raise MalformedRequest(where, "is given by the body, not by the query")
        last, inside = path[-1], _inside(fields, path, where)
        value = _value(last, text, where)
        if last.label is Label.REPEATED:
            cast("list[Json]", inside.setdefault(last.json_name, [])).append(value)
        elif where in taken:
            raise MalformedRequest(where, "is given twice")
        else:
            inside[last.json_name] = value
        taken.add(where)


def _full_name(path: FieldPath) -> str:
    return ".".join(field.name for field in path)


def _path_to(shape: Shape, text: str) -> FieldPath:
    # Raises LookupError if the field does not exist, or is a message or map without a text form.
    *outer, last = text.split(".", MAX_DEPTH)
    path: list[Field] = []
    for part in outer:
        field = _field(shape, part)
        if not _is_object(field) or field.message_name in WRAPPED_TYPES:
            raise LookupError(f"{part[:80]!r} has no fields that can be given so")
        path.append(field)
        shape = field.shape
    field = _field(shape, last)
    message = field.kind is Kind.MESSAGE and field.message_name not in AS_TEXT
    if field.label is Label.MAP or message:
        raise LookupError(f"{last[:80]!r} is an object, and no text can be one")
    return (*path, field)


def _field(shape: Shape, name: str) -> Field:
    field = shape.spellings.get(name)
    if field is None:
        raise LookupError(f"there is no {name[:80]!r}")
    return field


def _is_object(field: Field) -> bool:
    single = field.label in (Label.IMPLICIT, Label.OPTIONAL) and field.kind is Kind.MESSAGE
    return single and field.message_name not in WRAPPED_TYPES - {STRUCT}


AS_TEXT: Final = frozenset(
    {TIMESTAMP, DURATION, "google.protobuf.FieldMask"}
    | {name for name in WRAPPED_TYPES if name.endswith("Value")}
) - {"google.protobuf.Value", "google.protobuf.ListValue"}
"""The messages whose JSON form is a text, a number or a bool."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)


def _value(field: Field, text: str, where: str) -> Json:
    if field.kind is Kind.BOOL or field.message_name == "google.protobuf.BoolValue":
        if text not in ("true", "false"):
            raise MalformedRequest(where, f"{text[:80]!r} is neither true nor false")
        return text == "true"
    if field.kind is Kind.ENUM and _NUMBER.fullmatch(text):
        return int(text)
    return text


def _inside(fields: dict[str, Json], path: FieldPath, where: str) -> dict[str, Json]:
    for field in path[:-1]:
        found = [fields.pop(key) for key in (field.name, field.json_name) if key in fields]
        inner = found[0] if found else None
        if len(found) > 1 or not isinstance(inner, dict | None):
            raise InvalidArgument(where, f"{field.name} must be one object")
        fields[field.json_name] = inner = {} if inner is None else inner
        fields = inner
    return fields


def _added(name: str, json_name: str, kind: Kind) -> Field:
    label = Label.IMPLICIT
    return Field(name=name, json_name=json_name, number=0, label=label, kind=kind, python=None)


_ADDED: Final = {
    spelling: field
    for field in (
        _added("request_id", "requestId", Kind.STRING),
        _added("validate_only", "validateOnly", Kind.BOOL),
    )
    for spelling in (field.name, field.json_name)
}
