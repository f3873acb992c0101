"""Readers and writers of one message class, unrolled into a function of its own.

The general code in ``_codec`` is the truth and handles every case. What is made here handles the
plain ones - every field present at most once, of exactly its type - at the speed of code written by
hand, and leaves all others, errors included, to the general code by calling ``slow``. attrs and
cattrs make their methods the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from lro._base.errors import InvalidArgument
from lro._messages.scalars import Dumper, Loader, is_text
from lro._messages.schema import Field, Kind, Label, Shape

Namespace = dict[str, Any]

MISSING: Final = object()
_RANGES: Final[Mapping[Kind, tuple[int, int]]] = {
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
}


def compile_dumper(
    cls: type, shape: Shape, hook: Callable[[Field], Dumper], slow: Dumper
) -> Dumper:
    """A writer: message -> JSON object. ``hook`` gives the writer of one field's whole value."""
    lines = ["def dump(message):", " if message.__class__ is not cls: return slow(message)"]
    lines += [" shown = {}", " try:"]
    names: Namespace = {"cls": cls, "slow": slow, "text": is_text}
    for number, field in enumerate(shape.fields):
        lines.append(f"  v = message.{field.name}")
        lines += (f"  {line}" for line in _write(field, number))
        names[f"h{number}"] = _late(names, f"h{number}", field, hook)
    lines += ["  return shown", " except Refused: return slow(message)"]
    dump: Dumper = _made("dump", lines, names)
    return dump


def compile_loader(
    cls: type,
    shape: Shape,
    hook: Callable[[Field], Loader],
    slow: Callable[[Any, object], object],
    drop: object,
) -> Callable[[Any, object], object]:
    """A reader: JSON object -> message. ``drop`` is what an enum name reads as to be ignored."""
    defaults = _defaults(cls)
    if defaults is None or any(field.name not in defaults for field in shape.fields):
        return slow
    lines = ["def load(value, _):", " if value.__class__ is not dict: return slow(value, _)"]
    lines += [" n = 0", " get = value.get", " try:"]
    names: Namespace = {"cls": cls, "slow": slow, "M": MISSING, "DROP": drop, "text": is_text}
    arguments = []
    for number, field in enumerate(shape.fields):
        alias, default, made = defaults[field.name]
        names[f"d{number}"] = default
        missing = f"a{number} = d{number}" + ("()" if made else "")
        if default is attrs.NOTHING:
            missing = "return slow(value, _)"
        lines.append(f"  v = get({field.json_name!r}, M)")
        lines.append(f"  if v is M: {missing}")
        lines += (f"  {line}" for line in _read(field, number))
        names[f"h{number}"] = _late(names, f"h{number}", field, hook)
        arguments.append(f"{alias}=a{number}")
    lines.append("  if n != len(value): return slow(value, _)")
    lines.append(f"  return cls({', '.join(arguments)})")
    lines.append(" except (Refused, ValueError, TypeError): return slow(value, _)")
    load: Callable[[Any, object], object] = _made("load", lines, names)
    return load


def _write(field: Field, number: int) -> list[str]:
    optional = field.label is Label.OPTIONAL
    key, kind = repr(field.json_name), field.kind
    put = f"shown[{key}] = v"
    shown = put if optional else f"if v: {put}"
    absent = "if v is None: pass" if optional else "if False: pass"
    other = "else: return slow(message)"
    plain = field.label in (Label.IMPLICIT, Label.OPTIONAL)
    if not plain or (field.zero == {} and not optional):
        return [f"w = h{number}(v)", f"if w: shown[{key}] = w"]
    if kind is Kind.STRING:
        return [absent, "elif v.__class__ is str and text(v):", f" {shown}", other]
    if kind is Kind.BOOL:
        no = put if optional else "pass"
        return [absent, f"elif v is True: {put}", f"elif v is False: {no}", other]
    if kind in _RANGES:
        low, high = _RANGES[kind]
        if kind is Kind.INT64:
            shown = shown.replace("= v", "= str(v)")
        return [absent, f"elif v.__class__ is int and {low} <= v <= {high}:", f" {shown}", other]
    if kind is Kind.DOUBLE:
        # v - v is zero for finite numbers alone; a negative zero is not a default (spec §1.7(7)).
        whole = "elif v.__class__ is float and v - v == 0.0:"
        shown = put if optional else f"if v or repr(v) != '0.0': {put}"
        return [absent, whole, f" {shown}", other]
    if kind is Kind.ENUM and not optional:
        return [f"if v is not z{number}: shown[{key}] = h{number}(v)"]
    if optional:
        return [f"if v is not None: shown[{key}] = h{number}(v)"]
    if kind is Kind.FLOAT:  # as above, for what is written
        return [f"w = h{number}(v)", f"if w or repr(w) != '0.0': shown[{key}] = w"]
    return [f"w = h{number}(v)", f"if v: shown[{key}] = w"]


def _read(field: Field, number: int) -> list[str]:
    take, other = f" a{number} = v; n += 1", "else: return slow(value, _)"
    if field.label in (Label.IMPLICIT, Label.OPTIONAL):
        if field.kind is Kind.STRING:
            return ["elif v.__class__ is str and text(v):", take, other]
        if field.kind is Kind.BOOL:
            return ["elif v is True or v is False:", take, other]
        if field.kind is Kind.INT32:
            low, high = _RANGES[Kind.INT32]
            return [f"elif v.__class__ is int and {low} <= v <= {high}:", take, other]
        if field.kind is Kind.DOUBLE:
            return ["elif v.__class__ is float and v - v == 0.0:", take, other]
    lines = ["elif v is None: return slow(value, _)", f"else: a{number} = h{number}(v); n += 1"]
    if field.kind is Kind.ENUM:
        lines.append(f"if a{number} is DROP: return slow(value, _)")
    return lines


def _late(
    names: Namespace, name: str, field: Field, hook: Callable[[Field], Callable[..., Any]]
) -> Callable[[Any], Any]:
    # Looked up by the first call and put in its own place: a class may contain itself.
    def first(value: Any) -> Any:
        names[name] = found = hook(field)
        return found(value)

    names[f"z{name[1:]}"] = field.zero
    return first


def _defaults(cls: type) -> dict[str, tuple[str, object, bool]] | None:
    """Name of the argument, default, and whether that makes one; None for what is not known."""
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


def _made(name: str, lines: list[str], names: Namespace) -> Any:
    names["Refused"] = InvalidArgument
    exec("\n".join(lines), names)  # only field names, which are identifiers, are put into the text
    return names[name]
