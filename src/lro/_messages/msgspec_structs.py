"""Structs of msgspec as message classes.

msgspec reports only the first error of a message. So each value is converted separately, and all
errors are reported. ``rename`` and ``field(name=...)`` set the names in JSON. A type without a
proto equivalent is written as msgspec writes it: as text, or as any JSON value.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, TypeVar

import msgspec
import msgspec.json
import msgspec.structs

from lro._base.errors import InvalidArgument
from lro._base.status import Json
from lro._messages.schema import (
    DYNAMIC,
    REQUIRED,
    Declared,
    ForeignType,
    Kind,
    Label,
    Library,
    Make,
    Shape,
    Violations,
    bare,
    foreign_kind,
    marks_of,
    raise_all,
)

T = TypeVar("T")

_TIMES: Final = (datetime, timedelta)


def declared(cls: Any) -> list[Declared]:
    """Return the fields of a Struct."""
    return [_declared(one) for one in msgspec.structs.fields(cls)]


def foreign(annotation: object) -> ForeignType | None:
    """Return how msgspec writes a type, by the type's JSON Schema; None if it has no schema."""
    if bare(annotation) is msgspec.Raw:
        return None
    try:
        kind = foreign_kind(msgspec.json.schema(annotation))
    except TypeError:  # msgspec does not know the type
        return None

    def lift(value: Any) -> object:
        return _contained(lambda: msgspec.convert(_whole(value), annotation))

    def lower(value: object) -> object:
        return _contained(lambda: msgspec.to_builtins(value, str_keys=True))

    return None if kind is None else ForeignType(kind=kind, lift=lift, lower=lower)


def constraint(annotation: object, kind: Kind) -> Callable[[Any], object] | None:
    """Return a function that checks a value by the Meta in its annotation; None without a Meta."""
    single = kind not in (Kind.ENUM, Kind.MESSAGE) or bare(annotation) in _TIMES
    if not single or not any(isinstance(one, msgspec.Meta) for one in marks_of(annotation)):
        return None
    return lambda value: _converted(value, annotation)


def maker(cls: Any, shape: Shape) -> Make:
    """Return the function that makes messages and checks the lengths of lists and maps."""
    required = [field.name for field in shape.fields if field.explicit]
    checks = _container_checks(cls, shape)

    def make(known: dict[str, Any], wrong: Violations) -> object:
        wrong = [*wrong]
        failed = {name for name, _ in wrong}
        for name in required:
            if name not in known:
                wrong.append((name, InvalidArgument(name, "is required")))
        for name, check in checks.items():
            if name in known and name not in failed:
                try:
                    check(known[name])
                except InvalidArgument as exc:
                    wrong.append((name, InvalidArgument(name, exc.description)))
        raise_all(wrong)
        try:
            return cls(**known)
        except InvalidArgument:
            raise
        except (ValueError, TypeError) as exc:
            raise InvalidArgument("", str(exc) or f"is not a valid {cls.__name__}") from exc

    return make


LIBRARY: Final = Library(declared=declared, maker=maker, foreign=foreign, constraint=constraint)


def _declared(field: Any) -> Declared:
    annotation, default = field.type, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    get = None
    if msgspec.UnsetType in typing.get_args(annotation):
        if default is msgspec.UNSET:
            default = DYNAMIC
        rest = [one for one in typing.get_args(annotation) if one is not msgspec.UnsetType]
        annotation, get = typing.Union[(*rest, None)], _unset_as_none(field.name)
    return Declared(
        name=field.name,
        annotation=annotation,
        default=REQUIRED if default is msgspec.NODEFAULT else default,
        json_name=field.encode_name if field.encode_name != field.name else "",
        explicit=field.required,
        get=get,
        limited=True,
        factory=field.default_factory is not msgspec.NODEFAULT,
    )


def _unset_as_none(name: str) -> Callable[[Any], object]:
    def get(message: object) -> object:
        value = getattr(message, name)
        return None if value is msgspec.UNSET else value

    return get


def _container_checks(cls: Any, shape: Shape) -> dict[str, Callable[[Any], object]]:
    found: dict[str, Callable[[Any], object]] = {}
    for field in msgspec.structs.fields(cls):
        label, marks = shape.spellings[field.name].label, marks_of(field.type)
        if label is Label.REPEATED and marks:
            found[field.name] = _check_length(Annotated[(list[Any], *marks)], list)
        if label is Label.MAP and marks:
            found[field.name] = _check_length(Annotated[(dict[Any, Any], *marks)], dict.fromkeys)
    return found


def _check_length(annotation: object, like: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: _converted(like(range(len(value))), annotation)


def _converted(value: object, annotation: object) -> object:
    return _contained(lambda: msgspec.convert(value, annotation, builtin_types=(bytes, *_TIMES)))


def _whole(value: Json) -> Json:
    # Convert whole floats to integers: a JSON value in binary form has only doubles as numbers.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    return value


def _contained(action: Callable[[], T]) -> T:
    try:
        return action()
    except (
        msgspec.MsgspecError,
        ValueError,
        TypeError,
    ) as exc:  # MsgspecError is not a ValueError in msgspec 0.19
        text, _, path = str(exc).partition(" - at `$")
        raise InvalidArgument(path.rstrip("`").lstrip("."), text) from None
