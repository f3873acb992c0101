"""Models and dataclasses of pydantic 2 as message classes.

A message is read field by field, as with other classes. Then the class validates the message, so
that all constraints and validators apply. Aliases are the names in JSON. A type without a proto
equivalent is written as pydantic writes it: as text, as a number, or as any JSON value.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import pydantic
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import ComputedFieldInfo, FieldInfo
from pydantic.functional_serializers import PlainSerializer, WrapSerializer
from pydantic.functional_validators import BeforeValidator, PlainValidator, WrapValidator
from pydantic_core import ErrorDetails

from lro._base.errors import DeclarationError, InvalidArgument, MissingExtra, all_of, got
from lro._base.status import Json
from lro._messages.scalars import EXACT
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
    foreign_kind,
    marks_of,
    raise_all,
)

T = TypeVar("T")

_LEAST: Final = (2, 11)
_WRITE: Final = (PlainSerializer, WrapSerializer)
_READ: Final = (BeforeValidator, PlainValidator, WrapValidator)


def has_fields(cls: Any) -> bool:
    """Return True if a model's JSON is an object of its fields, unlike that of a RootModel.

    Raises:
        MissingExtra: The version of pydantic is too old.
    """
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _LEAST:
        raise MissingExtra("a message class of pydantic", "pydantic")
    root = getattr(cls, "__pydantic_root_model__", False)
    return not root and not cls.__pydantic_decorators__.model_serializers


def declared(cls: Any) -> list[Declared]:
    """Return the fields of a class, including computed fields, which are only written."""
    if not cls.__pydantic_complete__:
        _complete(cls)
    written = _serialized_fields(cls)
    found = []
    for name, field in cls.__pydantic_fields__.items():
        if field.exclude:
            if field.is_required():
                wrong = "is excluded from JSON, and has no default for reading"
                raise DeclarationError(f"{cls.__qualname__}.{name}", wrong)
        elif field.init is not False:
            found.append(_declared(cls, name, field, written.get(name)))
    for name, one in cls.__pydantic_decorators__.computed_fields.items():
        found.append(_computed(name, one.info))
    return found


def foreign(annotation: Any) -> ForeignType | None:
    """Return how pydantic writes a type, by the type's JSON Schema; None if it has no schema."""
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        kind = foreign_kind(adapter.json_schema(mode="serialization"))
    except PydanticUserError:
        return None

    def lift(value: Any) -> object:
        read = adapter.validate_python
        return _contained(lambda: read(value, strict=False, by_alias=True, by_name=True))

    def lower(value: object) -> object:
        write = adapter.dump_python
        written = _contained(lambda: write(value, mode="json", by_alias=True, warnings="error"))
        exact = _with_exact_integers(written)
        return exact if exact == written or reads_back(exact, value) else written

    def reads_back(exact: object, value: object) -> bool:
        # A type such as int | str reads the text as a text; a literal refuses it.
        try:
            return lift(exact) == value
        except InvalidArgument:
            return False

    return None if kind is None else ForeignType(kind=kind, lift=lift, lower=lower)


def rewrites(annotation: object) -> bool:
    """Return True if the annotation has a serializer."""
    return any(isinstance(mark, _WRITE) for mark in marks_of(annotation))


def maker(cls: Any, shape: Shape) -> Make:
    """Return the function that makes messages, which the class validates."""
    own_readers = _own_readers(cls)
    fields = {field.name: field for field in shape.fields}

    def make(known: dict[str, object], wrong: Violations) -> object:
        wrong = [(name, error) for name, error in wrong if name not in own_readers]
        failed = {name for name, _ in wrong}
        validate = cls.__pydantic_validator__.validate_python
        message: object = None
        try:
            message = validate(known, strict=False, by_alias=False, by_name=True)
        except pydantic.ValidationError as exc:
            for one in exc.errors(include_url=False, include_input=False):
                name = str(one["loc"][0]) if one["loc"] else ""
                if name not in failed:
                    is_map = name in fields and fields[name].label is Label.MAP
                    wrong.append((name, _invalid(one, one["loc"], key=is_map)))
        except InvalidArgument as exc:  # raised by a validator
            wrong.append(("", exc))
        except (ValueError, TypeError) as exc:
            wrong.append(("", InvalidArgument("", str(exc) or f"is not a valid {cls.__name__}")))
        raise_all(wrong)
        return message

    return make


LIBRARY: Final = Library(declared=declared, maker=maker, foreign=foreign, rewrites=rewrites)


def _complete(cls: Any) -> None:
    try:
        if isinstance(cls, type) and issubclass(cls, pydantic.BaseModel):
            cls.model_rebuild()
        else:
            pydantic.dataclasses.rebuild_dataclass(cls)
    except PydanticUndefinedAnnotation as exc:
        raise NameError(exc.message) from exc


def _declared(cls: Any, name: str, field: FieldInfo, schema: Json) -> Declared:
    annotation: Any = field.annotation
    if field.discriminator is not None:  # pydantic removes the discriminator from the annotation
        mark = pydantic.Field(discriminator=field.discriminator)
        annotation = Annotated[annotation, mark]
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    foreign, get = None, None
    if isinstance(schema, dict):
        kind = foreign_kind(schema) or Kind.MESSAGE
        foreign, get = ForeignType(kind=kind, lift=_same, lower=_same), _serializer(name)
    elif _config(cls).get("use_enum_values"):
        get = _enum_getter(name, annotation)
    in_json, aliases = _aliases(cls, name, field)
    default: object = REQUIRED
    if not field.is_required():
        takes_data = field.default_factory_takes_validated_data
        default = DYNAMIC if takes_data else field.get_default(call_default_factory=True)
    return Declared(
        name=name,
        annotation=annotation,
        default=default,
        json_name=in_json,
        aliases=aliases,
        explicit=field.is_required(),
        get=get,
        foreign=foreign,
        about=(field,),
        limited=True,
        factory=field.default_factory is not None,
    )


def _computed(name: str, field: ComputedFieldInfo) -> Declared:
    return Declared(
        name=name,
        annotation=field.return_type,
        default=REQUIRED,
        json_name=field.alias or "",
        read_only=True,
        about=(field,),
    )


def _config(cls: Any) -> Mapping[str, Any]:
    # A model has one of these two attributes; a dataclass has the first or neither.
    found: Mapping[str, Any] | None = getattr(cls, "__pydantic_config__", None)
    return found or getattr(cls, "model_config", {})


def _aliases(cls: Any, name: str, field: FieldInfo) -> tuple[str, tuple[str, ...]]:
    # Returns the alias that is written, or an empty text, and all aliases that are read.
    given = field.validation_alias
    choices = given.choices if isinstance(given, pydantic.AliasChoices) else [given]
    read = tuple(one for one in choices if isinstance(one, str))
    if given is not None and not read:
        wrong = "is read from a part of another field (AliasPath), which no message can have"
        raise DeclarationError(f"{cls.__qualname__}.{name}", wrong)
    return field.serialization_alias or (read[0] if read else ""), read


def _serialized_fields(cls: Any) -> dict[str, Json]:
    # Returns the JSON Schemas of fields that have a serializer method.
    own = cls.__pydantic_decorators__.field_serializers.values()
    names = {name for one in own for name in one.info.fields}
    if not names:
        return {}
    schema = pydantic.TypeAdapter(cls).json_schema(mode="serialization", by_alias=False)
    if "$ref" in schema:  # the model contains itself
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, Json] = schema["properties"]
    return {name: one for name, one in found.items() if "*" in names or name in names}


def _serializer(name: str) -> Callable[[Any], object]:
    def get(message: Any) -> object:
        write = message.__pydantic_serializer__.to_python
        return _contained(lambda: write(message, mode="json", include={name})[name])

    return get


def _enum_getter(name: str, annotation: object) -> Callable[[Any], object] | None:
    cls = _enum_in(annotation)
    if cls is None:
        return None

    def member(value: object) -> object:
        if isinstance(value, dict):
            return {key: member(one) for key, one in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [member(one) for one in value]
        return None if value is None else _contained(lambda: cls(value))

    return lambda message: member(getattr(message, name))


def _enum_in(annotation: object) -> type[enum.Enum] | None:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation
    found = map(_enum_in, typing.get_args(annotation))
    return next((one for one in found if one is not None), None)


def _own_readers(cls: Any) -> frozenset[str]:
    # Returns fields whose validators receive the raw value, which need not be ProtoJSON.
    decorators = cls.__pydantic_decorators__
    if any(one.info.mode != "after" for one in decorators.model_validators.values()):
        return frozenset(cls.__pydantic_fields__)
    found = {
        name
        for one in decorators.field_validators.values()
        if one.info.mode != "after"
        for name in one.info.fields
    }
    if "*" in found:
        return frozenset(cls.__pydantic_fields__)
    marked = {
        name
        for name, field in cls.__pydantic_fields__.items()
        if any(isinstance(mark, _READ) for mark in field.metadata)
    }
    return frozenset(found | marked)


def _same(value: T) -> T:
    return value


def _with_exact_integers(value: Any) -> Any:
    """Return JSON in which each integer beyond 53 bits is a text, as in a field of type int."""
    if isinstance(value, dict):
        return {key: _with_exact_integers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_exact_integers(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) > EXACT else value


def _contained(action: Callable[[], T]) -> T:
    try:
        return action()
    except pydantic.ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False)
        raise all_of([_invalid(one, one["loc"]) for one in found]) from None
    except (ValueError, TypeError) as exc:
        raise InvalidArgument("", str(exc)) from None


def _invalid(
    error: ErrorDetails, place: Sequence[int | str], *, key: bool = False
) -> InvalidArgument:
    # ``key`` means that the second part of the location is the key of a map.
    path = ""
    for depth, part in enumerate(place):
        if part == "[key]":
            continue
        if isinstance(part, int) or (key and depth == 1):
            path += f"[{part if isinstance(part, int) else got(part)}]"
        else:
            path += f".{part}" if path else part
    cause = error.get("ctx", {}).get("error")
    text = str(cause) if isinstance(cause, Exception) else error["msg"]
    return InvalidArgument(path, text or error["msg"])
