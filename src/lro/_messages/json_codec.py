"""Reads and writes messages as JSON values, by the shapes of their classes (spec §1.8).

A codec makes the reader and the writer of a class when it first needs them. Each failure is an
:class:`InvalidArgument` whose ``field`` is the path of the wrong field in the message.

Reading and writing are implemented twice. The general code defines the result. For each class a
reader and a writer are also compiled. The compiled functions make no call per field, and pass
unusual values to the general code. In this project, a second implementation must be at least 1.5
times as fast as the first on a published target, and its module must state the figures.

The target (``bench/codec.py``) is at most 1.8 times the time of hand-written code. To encode an
operation with its messages takes 1.65 times as long as hand-written code, and to decode it 1.77
times. With only the general code, the two factors are 3.0 and 2.65, which is 1.8 and 1.5 times as
long as with the compiled code, and a start over HTTP costs 4 % more CPU time.
"""

from __future__ import annotations

import functools
import keyword
import operator
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import CodeType
from typing import Any, Final, TypeAlias

import attrs

from lro._base.errors import MAX_VIOLATIONS, InvalidArgument, InvalidFields, got
from lro._base.status import AnyMessage, Json
from lro._messages.scalars import (
    DUMPERS,
    EXACT,
    LOADERS,
    Dumper,
    Loader,
    dump_plain_int,
    enum_codec,
    is_text,
)
from lro._messages.schema import Field, Kind, Label, Make, Shape, Violations, raise_all
from lro._messages.shapes import is_message_class, is_typed_dict, library_of, shape_of
from lro._messages.times import datetime_text, parse_datetime
from lro._messages.wellknown import (
    NULL_IS_A_VALUE,
    SPECIAL,
    UNCOPIED,
    dump_any,
    dump_json,
    load_any,
)

Namespace = dict[str, Any]

_WRITTEN: Final[Mapping[object, tuple[str, str]]] = {
    Kind.STRING: ("v.__class__ is str and (v.isascii() or is_text(v))", "v"),
    Kind.BOOL: ("v.__class__ is bool", "v"),
    Kind.INT32: (f"v.__class__ is int and {-(2**31)} <= v < {2**31}", "v"),
    Kind.INT64: (f"v.__class__ is int and {-(2**63)} <= v < {2**63}", "str(v)"),
    int: (
        f"v.__class__ is int and {-(2**63)} <= v < {2**63}",
        f"v if {-EXACT} <= v <= {EXACT} else str(v)",
    ),
    # The difference is 0 only for finite numbers.
    Kind.DOUBLE: ("v.__class__ is float and v - v == 0.0", "v"),
    datetime: ("v.__class__ is datetime", "datetime_text(v)"),
}
"""Source code by kind or Python class: a test of ``v``, and the JSON form if the test passes.

``int`` is the plain class; ``Kind.INT64`` the integers that are always text.
"""
_DIGITS: Final = "v.__class__ is str and v.isascii() and v.isdigit() and len(v) < 19"
_READ: Final[Mapping[object, tuple[str, str]]] = {
    **{kind: _WRITTEN[kind] for kind in (Kind.STRING, Kind.BOOL, Kind.INT32, Kind.DOUBLE)},
    Kind.INT64: (_DIGITS, "int(v)"),
    int: (f"{_WRITTEN[int][0]} or {_DIGITS}", "v if v.__class__ is int else int(v)"),
    datetime: (
        "v.__class__ is str",
        "fromisoformat(v) if len(v) == 20 and v[4::3] == '--T::Z' else parse_datetime(v)",
    ),
}
"""Source code by kind or Python class: a test of JSON ``v``, and its value if the test passes."""


def compile_dumper(
    cls: type, shape: Shape, hook: Callable[[Field], Dumper], slow: Dumper
) -> Dumper:
    """Compile the function that writes a message of this class as a JSON object.

    ``hook`` returns the writer of a field's whole value. ``slow`` is the general code, which writes
    the messages that the compiled function does not.
    """
    lines = ["def dump(message):", " if message.__class__ is not cls: return slow(message)"]
    lines += [" shown = {}", " try:"]
    names: Namespace = {"cls": cls, "slow": slow}
    for number, field in enumerate(shape.fields):
        attribute = field.get is None and not keyword.iskeyword(field.name)
        names[f"g{number}"] = field.get or operator.attrgetter(field.name)
        read = f"message.{field.name}" if attribute else f"g{number}(message)"
        lines.append(f"  v = {read}")
        lines += (f"  {line}" for line in _write(field, number))
        names[f"h{number}"] = _late(names, f"h{number}", field, hook)
    lines += ["  return shown"]
    lines += [" except (Refused, ValueError, OverflowError): return slow(message)"]
    dump: Dumper = _made("dump", lines, names)
    return dump


def compile_loader(
    cls: type, shape: Shape, hook: Callable[[Field], Loader], slow: Loader, drop: object
) -> Loader:
    """Compile the function that reads a message of this class from a JSON object.

    ``hook`` returns the reader of a field's whole value. That reader returns ``drop`` for an
    unknown enum name that is to be ignored. ``slow`` is the general code, which reads the messages
    that the compiled function does not.
    """
    defaults = _defaults(cls)
    if defaults is None or any(field.name not in defaults for field in shape.fields):
        return slow
    lines = ["def load(value):", " if value.__class__ is not dict: return slow(value)"]
    lines += [f" n = {len(shape.fields)}", " try:"]
    names: Namespace = {"cls": cls, "slow": slow, "DROP": drop}
    places = _places(cls)
    arguments: list[str] = []
    for number, field in enumerate(shape.fields):
        alias, default, made = defaults[field.name]
        names[f"d{number}"] = default
        missing = f"n -= 1; a{number} = d{number}" + ("()" if made else "")
        if default is attrs.NOTHING:
            missing = "return slow(value)"
        lines.append(f"  if {field.json_name!r} in value:")
        lines.append(f"   v = value[{field.json_name!r}]")
        lines += (f"   {line}" for line in _read(field, number))
        lines.append(f"  else: {missing}")
        names[f"h{number}"] = _late(names, f"h{number}", field, hook)
        in_place = places[number : number + 1] == (alias,) and len(arguments) == number
        arguments.append(f"a{number}" if in_place else f"{alias}=a{number}")
    lines.append("  if n != len(value): return slow(value)")
    lines.append(f"  return cls({', '.join(arguments)})")
    lines.append(" except (Refused, ValueError, TypeError): return slow(value)")
    load: Loader = _made("load", lines, names)
    return load


def _write(field: Field, number: int) -> list[str]:
    optional = field.label is Label.OPTIONAL
    key, kind = repr(field.json_name), field.kind
    test, form = _WRITTEN.get(_code_key(field), ("", ""))
    if field.lower is not None:
        test = ""
    other = "return slow(message)"
    some = "" if field.explicit else "if w: "
    # Iterators are excluded, because ``slow`` may read the value again.
    if field.label is Label.REPEATED:
        return [
            f"if v.__class__ is not tuple and v.__class__ is not list: {other}",
            *(_each(test, form, list, other) if test else [f"w = h{number}(v)"]),
            f"{some}shown[{key}] = w",
        ]
    if field.label is Label.MAP or (field.zero == {} and not optional):
        return [f"w = h{number}(v)", f"{some}shown[{key}] = w"]
    put = f"shown[{key}] = {form}"
    if test and optional:
        return ["if v is None: pass", f"elif {test}: {put}", f"else: {other}"]
    if test:
        # Negative zero is not a default (spec §1.7(7)).
        given = "v or repr(v) != '0.0'" if kind is Kind.DOUBLE else "v"
        return [f"if {test}:", f" if {given}: {put}", f"else: {other}"]
    if kind is Kind.ENUM and not optional:
        return [f"if v is not z{number}: shown[{key}] = h{number}(v)"]
    if optional:
        return [f"if v is not None: shown[{key}] = h{number}(v)"]
    if kind is Kind.FLOAT:  # compared with zero after the conversion to 32 bits
        return [f"w = h{number}(v)", f"if w or repr(w) != '0.0': shown[{key}] = w"]
    return [f"w = h{number}(v)", f"if v: shown[{key}] = w"]


def _read(field: Field, number: int) -> list[str]:
    test, form = _READ.get(_code_key(field), ("", ""))
    if field.lift is not None:
        test = ""
    other = "return slow(value)"
    if not test or field.label is Label.MAP:
        lines = [f"if v is None: {other}", f"a{number} = h{number}(v)"]
        return [*lines, f"if a{number} is DROP: {other}"] if field.kind is Kind.ENUM else lines
    if field.label is Label.REPEATED:
        lines = [f"if v.__class__ is not list: {other}", *_each(test, form, field.container, other)]
        return [*lines, f"a{number} = w"]
    return [f"if {test}: a{number} = {form}", f"else: {other}"]


def _code_key(field: Field) -> object:
    return field.python if field.as_number or field.python is datetime else field.kind


def _each(test: str, form: str, container: type, other: str) -> list[str]:
    # The list is copied first, because other threads may change it.
    if form == "v":
        return [f"w = {container.__name__}(v)", "for v in w:", f" if not ({test}): {other}"]
    whole = f"[{form} for v in v if {test}]"
    lines = [f"w = {whole}", f"if len(w) != len(v): {other}"]
    return lines if container is list else [*lines, f"w = {container.__name__}(w)"]


def _late(
    names: Namespace, name: str, field: Field, hook: Callable[[Field], Callable[..., Any]]
) -> Callable[[Any], Any]:
    # The first call gets the field's reader or writer from ``hook``, and puts it in the place of
    # this function. If the class contains itself, an earlier call of ``hook`` would recurse for
    # ever.
    def first(value: Any) -> Any:
        names[name] = found = hook(field)
        return found(value)

    names[f"z{name[1:]}"] = field.zero
    return first


def _defaults(cls: type) -> dict[str, tuple[str, object, bool]] | None:
    # Returns for each field the name of its argument, its default, and True if the default is a
    # factory. Returns None if the defaults cannot be known before a message is made.
    if not attrs.has(cls):
        return None
    found: dict[str, tuple[str, object, bool]] = {}
    for one in attrs.fields(cls):
        default: Any = one.default
        made = isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # a function to mypy
        if made and default.takes_self:
            return None
        found[one.name] = (one.alias, default.factory if made else default, made)
    return found


def _places(cls: type) -> tuple[str, ...]:
    # Returns the parameters that can be passed by position, which is faster.
    maker: object = cls.__new__
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]  # of this very class
    if code is None or maker is not object.__new__:
        return ()
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
    return names


def _made(name: str, lines: list[str], names: Namespace) -> Any:
    names |= {"Refused": InvalidArgument, "is_text": is_text, "datetime": datetime}
    names |= {"fromisoformat": datetime.fromisoformat}
    names |= {"datetime_text": datetime_text, "parse_datetime": parse_datetime}
    exec(_compiled("\n".join(lines)), names)
    return names[name]


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    # Only field names come from the class, as identifiers or quoted by repr(), so the text is safe
    # to execute. All registries share the compiled code.
    return compile(text, "<codec>", "exec")


DROP: Final = object()
"""The result of reading an unknown enum name that is ignored (spec §1.8(5))."""

Row: TypeAlias = tuple[str, Loader, bool]
"""How to read the value of a key: field name, reader of the value, True if null is a value."""


def below(path: str, error: InvalidArgument) -> InvalidArgument:
    """Prefix the field path of an error with the enclosing field."""
    if isinstance(error, InvalidFields):
        return InvalidFields(
            *(attrs.evolve(one, field=_joined(path, one.field)) for one in error.violations)
        )
    return InvalidArgument(_joined(path, error.field), error.description)


def _joined(path: str, inner: str) -> str:
    return f"{path}{inner}" if inner[:1] in ("", "[") else f"{path}.{inner}"


class JsonCodec:
    """Reads and writes messages as JSON values.

    With ``strict``, which servers use for requests, unknown fields, unknown enum names and unknown
    types in an Any are errors. Without ``strict``, unknown fields and enum names are dropped, and
    an Any of an unknown type stays as it is. With ``complete``, unknown enum names and missing
    required fields are errors even without ``strict``. ``check_any`` validates an Any and returns
    its canonical form. ``show_any`` writes an Any. With ``draft``, plain containers are not copied,
    because ``plain_copy`` copies and checks the whole message afterwards, and a message that the
    compiled writer does not write is an error.
    """

    def __init__(
        self,
        *,
        strict: bool,
        complete: bool = False,
        check_any: Callable[[AnyMessage], AnyMessage],
        show_any: Callable[[AnyMessage], Json] = dump_any,
        draft: bool = False,
    ) -> None:
        self.strict = strict
        self._complete = strict or complete
        self._draft = draft
        self._check_any = check_any
        self._show_any = show_any
        self._readers: dict[object, Loader] = {}
        self._writers: dict[object, Dumper] = {}

    def load(self, value: Json, cls: type) -> Any:
        """Read a message of this class from a JSON value.

        Raises:
            InvalidArgument: The value is not a valid message; ``field`` is the path of the error.
        """
        return self.reader(cls)(value)

    def reader(self, cls: Any) -> Callable[[Json], Any]:
        """Return :meth:`load` for one class."""
        found = self._readers.get(cls)
        if found is None:
            found = self._readers[cls] = self._new_reader(cls)
        return found

    def writer(self, cls: Any) -> Dumper:
        """Return :meth:`dump` for one class."""
        found = self._writers.get(cls)
        if found is None:
            found = self._writers[cls] = self._new_writer(cls)
        return found

    def dump(self, message: object, cls: type | None = None) -> Json:
        """Write a message as its canonical JSON value (spec §1.8(1)).

        Raises:
            InvalidArgument: A field has a value that its type does not allow.
        """
        return self.writer(cls or type(message))(message)

    def _new_reader(self, cls: Any) -> Loader:
        if cls is AnyMessage:
            return self._load_any
        if cls in SPECIAL:
            return SPECIAL[cls][0]
        return self._message_loader(cls)

    def _new_writer(self, cls: Any) -> Dumper:
        if cls is AnyMessage:
            return typing.cast(Dumper, self._show_any)
        if self._draft and cls in UNCOPIED:
            return UNCOPIED[cls]
        if cls in SPECIAL:
            return SPECIAL[cls][1]
        return self._message_dumper(cls) if is_message_class(cls) else dump_json

    def _load_any(self, value: Json) -> AnyMessage:
        found = load_any(value, strict=self.strict)
        return found if found.empty or not self.strict else self._check_any(found)

    # -- fields -------------------------------------------------------------------------------

    def _one_loader(self, field: Field) -> Loader:
        read, lift = self._kind_loader(field), field.lift
        return read if lift is None else lambda value: lift(read(value))

    def _kind_loader(self, field: Field) -> Loader:
        if field.kind in LOADERS:
            return LOADERS[field.kind]
        if field.kind is Kind.ENUM:
            return enum_codec(field.python, None if self._complete else DROP)[0]
        return self.reader(field.python)

    def _one_dumper(self, field: Field) -> Dumper:
        write, lower = self._kind_dumper(field), field.lower
        return write if lower is None else lambda value: write(lower(value))

    def _kind_dumper(self, field: Field) -> Dumper:
        if field.as_number:
            return dump_plain_int
        if field.kind in DUMPERS:
            return DUMPERS[field.kind]
        if field.kind is Kind.ENUM:
            return enum_codec(field.python, None)[1]
        return self.writer(field.python)

    def _field_loader(self, field: Field) -> Loader:
        null_ok = field.python in NULL_IS_A_VALUE
        one = self._one_loader(field)
        return labelled(one, field.label, field.key_kind, null_ok, field.container)

    def _field_dumper(self, field: Field) -> Dumper:
        one = self._one_dumper(field)
        if field.label is Label.REPEATED:
            return _list_dumper(one)
        if field.label is Label.MAP:
            return _map_dumper(one, DUMPERS[field.key_kind or Kind.STRING])
        return one

    # -- messages -----------------------------------------------------------------------------

    def _message_loader(self, cls: type) -> Loader:
        shape, library = shape_of(cls), library_of(cls)
        made = library.maker(cls, shape) if library else _maker(cls)
        fill = _filler(shape, missed=self._complete)

        def make(known: dict[str, object], wrong: Violations) -> object:
            fill(known, wrong)
            return made(known, wrong)

        read = object_loader(cls.__name__, lambda: self._rows(cls).get, make, strict=self.strict)
        return compile_loader(cls, shape, self._field_loader, read, DROP)

    def _rows(self, cls: type) -> Mapping[str, Row]:
        return {
            spelling: (
                field.name,
                _dropped if field.read_only else self._field_loader(field),
                field.label is Label.OPTIONAL and field.python in NULL_IS_A_VALUE,
            )
            for spelling, field in shape_of(cls).spellings.items()
        }

    def _message_dumper(self, cls: type) -> Dumper:
        shape = shape_of(cls)
        if self._draft:
            return compile_dumper(cls, shape, self._field_dumper, _unusual)
        rows: Sequence[tuple[Field, Dumper]] | None = None
        is_dict = is_typed_dict(cls)

        def dump(message: object) -> Json:
            nonlocal rows
            if rows is None:  # found at the first call, because a class may contain itself
                rows = [(field, self._field_dumper(field)) for field in shape.fields]
            if not isinstance(message, dict if is_dict else cls):
                raise InvalidArgument("", f"must be a {cls.__name__}, got {got(message)}")
            if is_dict:
                _check_keys(typing.cast("dict[object, object]", message), shape)
            shown: dict[str, Json] = {}
            for field, write in rows:
                presence = field.label is Label.OPTIONAL
                try:
                    value = field.get(message) if field.get else getattr(message, field.name)
                    if value is None and presence:
                        continue
                    written = write(value)
                except InvalidArgument as exc:
                    raise below(field.name, exc) from None
                rounded = written if field.kind is Kind.FLOAT else value  # 32 bits
                empty = _is_zero(rounded, field.zero) or written == {} or written == []
                if presence or field.explicit or not empty:
                    shown[field.json_name] = written
            return shown

        return compile_dumper(cls, shape, self._field_dumper, dump)


def object_loader(
    named: str, rows: Callable[[], Callable[[str], Row | None]], make: Make, *, strict: bool
) -> Loader:
    """Return the reader of JSON objects that are messages called ``named`` (spec §1.8).

    ``rows`` returns the function that finds the row of a key. ``rows`` is called when the first
    message is read, because a message may contain itself. ``make`` makes a message from values by
    field name, or raises the violations. Unknown keys are refused if ``strict``, otherwise dropped.
    """
    find: Callable[[str], Row | None] | None = None

    def load(value: Json) -> object:
        nonlocal find
        if find is None:
            find = rows()
        if type(value) is not dict:
            raise InvalidArgument("", f"must be an object, got {got(value)}")
        given: set[str] = set()
        known: dict[str, object] = {}
        wrong: Violations = []
        for key, item in value.items():
            row = find(key)
            if row is None:
                if strict:
                    _note(wrong, key, InvalidArgument(key, f"is not a field of {named}"))
                continue
            name, read, null_ok = row
            if name in given:
                _note(wrong, name, InvalidArgument(name, "is given twice, in both spellings"))
                continue
            given.add(name)
            if item is None and not null_ok:
                continue
            try:
                found = read(item)
            except InvalidArgument as exc:
                _note(wrong, name, below(name, exc))
                found = item
            if found is not DROP:
                known[name] = found
        return make(known, wrong)

    return load


def labelled(
    one: Loader, label: Label, key_kind: Kind | None, null_ok: bool, container: type = tuple
) -> Loader:
    """Return the reader of a field's whole value; ``one`` reads a single value.

    ``null_ok`` means that null is a value. Lists are read as ``container``.
    """
    if label is Label.REPEATED:
        return _list_loader(one if null_ok else _element(one), container)
    if label is Label.MAP:
        keys = _key_loader(key_kind or Kind.STRING)
        return _map_loader(one if null_ok else _element(one), keys)
    return one


def _unusual(message: object) -> Json:
    raise InvalidArgument("", f"is unusual: {got(message)}")


def _is_zero(value: object, zero: object) -> bool:
    # -0.0 equals zero but is not the default (spec §1.7(7)).
    return value == zero and not (isinstance(value, float) and str(value)[0] == "-")


def _note(wrong: Violations, name: str, error: InvalidArgument) -> None:
    # The number of violations is bounded: a hostile message may have any number of wrong fields.
    wrong.append((name, error))
    if len(wrong) >= MAX_VIOLATIONS:
        raise_all(wrong)


def _filler(shape: Shape, *, missed: bool) -> Callable[[dict[str, object], Violations], None]:
    # Returns a function that sets absent fields that have no default. If ``missed``, explicit
    # fields stay absent, so that the class's library reports them.
    required = {field.name: field for field in shape.fields if field.required}

    def fill(known: dict[str, object], wrong: Violations) -> None:
        if required.keys() <= known.keys():
            return
        for name, field in required.items():
            if name in known or field.read_only:
                continue
            if field.nullable:
                known[name] = None
            elif field.explicit and missed:
                continue
            elif field.label is Label.REPEATED:
                known[name] = field.container()
            elif field.label is Label.MAP or field.python is dict:
                known[name] = {}
            elif field.label is Label.IMPLICIT or (field.explicit and field.has_zero):
                known[name] = field.zero
            else:
                wrong.append((name, InvalidArgument(name, "is required")))

    return fill


def _maker(cls: type) -> Make:
    def make(known: dict[str, object], wrong: Violations) -> object:
        raise_all(wrong)
        try:
            return cls(**known)
        except InvalidArgument:
            raise
        except (ValueError, TypeError) as exc:
            raise InvalidArgument("", str(exc) or f"is not a valid {cls.__name__}") from exc

    return make


def _dropped(_: Json) -> object:
    return DROP


def _check_keys(message: dict[object, object], shape: Shape) -> None:
    for key in message.keys() - {field.name for field in shape.fields}:
        raise InvalidArgument(str(key), f"is not a key of {shape.python.__name__}")


def _element(one: Loader) -> Loader:
    def load(value: Json) -> object:
        if value is None:
            raise InvalidArgument("", "must not be null inside a list or map")
        return one(value)

    return load


def _list_loader(one: Loader, container: type) -> Loader:
    def load(value: Json) -> object:
        if type(value) is not list:
            raise InvalidArgument("", f"must be a list, got {got(value)}")
        found = []
        wrong: Violations = []
        for place, item in enumerate(value):
            try:
                element = one(item)
            except InvalidArgument as exc:
                _note(wrong, "", below(f"[{place}]", exc))
                continue
            if element is not DROP:
                found.append(element)
        raise_all(wrong)
        return found if container is list else container(found)

    return load


def _map_loader(one: Loader, read_key: Loader) -> Loader:
    def load(value: Json) -> object:
        if type(value) is not dict:
            raise InvalidArgument("", f"must be an object, got {got(value)}")
        found = {}
        wrong: Violations = []
        for key, item in value.items():
            try:
                element = one(item)
                if element is not DROP:
                    found[read_key(key)] = element
            except InvalidArgument as exc:
                _note(wrong, "", below(f"[{got(key)}]", exc))
        raise_all(wrong)
        return found

    return load


def _key_loader(kind: Kind) -> Loader:
    if kind is Kind.BOOL:
        names: dict[Json, bool] = {"true": True, "false": False}

        def load(key: Json) -> object:
            if key not in names:
                raise InvalidArgument("", "must be 'true' or 'false' as a map key")
            return names[key]

        return load
    return LOADERS[kind]


def _list_dumper(one: Dumper) -> Dumper:
    def dump(value: object) -> Json:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise InvalidArgument("", f"must be a list, got {got(value)}")
        shown: list[Json] = []
        for place, item in enumerate(value):
            try:
                shown.append(one(item))
            except InvalidArgument as exc:
                raise below(f"[{place}]", exc) from None
        if isinstance(value, (set, frozenset)):
            # Sorted, because the order of a set differs from process to process.
            shown.sort(key=repr)
        return shown

    return dump


def _map_dumper(one: Dumper, key_dumper: Dumper) -> Dumper:
    def dump(value: object) -> Json:
        if not isinstance(value, Mapping):
            raise InvalidArgument("", f"must be a mapping, got {got(value)}")
        shown: dict[str, Json] = {}
        for key, item in value.items():
            try:
                text = key_dumper(key)
                shown[text if isinstance(text, str) else str(text).lower()] = one(item)
            except InvalidArgument as exc:
                raise below(f"[{got(key)}]", exc) from None
        return shown

    return dump
