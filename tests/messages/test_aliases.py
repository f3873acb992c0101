"""Message classes that were renamed: messages stored under an old name can still be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest

import lro

OLD = "acme.prints.v1.PrintJob"
NEW = "acme.prints.v1.PrintRequest"
renamed = lro.message(NEW, aliases=(OLD,))


@renamed
@attrs.frozen
class Attrs:
    title: str = ""


@renamed
@dataclasses.dataclass(frozen=True)
class Data:
    title: str = ""


@renamed
class Model(pydantic.BaseModel):
    title: str = ""


@renamed
class Struct(msgspec.Struct):
    title: str = ""


@renamed
class Typed(TypedDict, total=False):
    title: str


CLASSES: list[Callable[..., Any]] = [Attrs, Data, Model, Struct, Typed]


def stored(payload: Any, name: str = OLD) -> lro.AnyMessage:
    return lro.AnyMessage(f"type.googleapis.com/{name}", payload)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("strict", [False, True])
def test_message_of_an_old_name_is_read_as_the_class(cls: Any, strict: bool) -> None:
    types, packed = lro.TypeRegistry(cls), stored({"title": "x"})
    assert types.unpack(packed, cls, strict=strict) == cls(title="x")
    assert types.unpack_any(packed, strict=strict) == cls(title="x")
    assert types.unpack_request(packed, cls) == cls(title="x")
    assert types.from_json({"@type": packed.type_url, "title": "x"}, strict=strict) == packed
    assert OLD in types
    assert types.codec(OLD) is types.codec(NEW)


def test_message_is_written_under_the_new_name_and_shown_as_it_was_stored() -> None:
    types = lro.TypeRegistry(Attrs)
    assert types.pack(Attrs("x")) == stored({"title": "x"}, NEW)
    shown = {"@type": f"type.googleapis.com/{OLD}", "title": "x"}
    assert types.to_json(stored({"title": "x"})) == shown
    assert types.checked(stored({"title": "x"})) == stored({"title": "x"})
    assert (types.present_name(OLD), types.present_name("acme.v1.Other")) == (NEW, "acme.v1.Other")
    assert ([*types.aliases_of(NEW)], [*types.aliases_of(OLD)]) == ([OLD], [])


@pytest.mark.parametrize("cls", CLASSES)
def test_message_of_an_old_name_is_read_from_its_binary_form(cls: Any) -> None:
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    types = lro.TypeRegistry(cls)
    payload = types.binary_payload(stored({"title": "x"}))
    assert payload == types.binary_payload(stored({"title": "x"}, NEW))
    assert types.json_payload(stored(payload)) == {"title": "x"}
    assert types.readable(stored(payload)) == stored({"title": "x"})
    assert types.unpack(stored(payload), cls) == cls(title="x")


def test_class_of_protobuf_has_aliases_too() -> None:
    """A protobuf class, whose name comes from its descriptor, can have aliases too."""
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    cls: Any = lro.TypeRegistry(Attrs).binary.message_class(NEW)
    types = lro.TypeRegistry(renamed(cls))
    payload = cls(title="x").SerializeToString()
    assert types.json_payload(stored(payload)) == {"title": "x"}
    assert types.unpack(stored(payload), cls) == cls(title="x")


def made(name: str, *aliases: str) -> type:
    return lro.message(name, aliases=aliases)(
        attrs.make_class("Made", {"title": attrs.field(type=str, default="")})
    )


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            ("a.v1.A",),
            ("a.v1.B", "a.v1.A"),
            r"^a\.v1\.A: is the name of .*Made.*, so it cannot be an alias",
        ),
        (("a.v1.B", "a.v1.A"), ("a.v1.A",), r"^a\.v1\.A: is an alias of a\.v1\.B: take it out of"),
        (
            ("a.v1.B", "a.v1.A"),
            ("a.v1.C", "a.v1.A"),
            r"^a\.v1\.A: is an alias of a\.v1\.B already, .* be an alias of a\.v1\.C: give it to",
        ),
        ((), ("a.v1.B", "google.rpc.ErrorInfo"), r"^google\.rpc\.ErrorInfo: is the name of"),
    ],
)
def test_alias_of_another_message_is_refused(
    first: tuple[str, ...], second: tuple[str, ...], text: str
) -> None:
    """An alias that is another message's name is refused in either order of registration."""
    types = lro.TypeRegistry(*([made(*first)] if first else []))
    with pytest.raises(lro.DeclarationError, match=text):
        types.register(made(*second))
    other = made("a.v1.D")
    assert types.register(other) == "a.v1.D"
    assert types.aliases_of(second[0]) == [*first[1:]] * (first[:1] == second[:1])


@pytest.mark.parametrize(
    ("aliases", "text"),
    [
        (OLD, r"^aliases: must be a tuple of full names, got 'acme"),
        ((OLD, 5), r"^aliases: must be a tuple of full names, got"),
        (("a b",), r"^'a b': is not a full name such as"),
        ((OLD, OLD), rf"^aliases: have {OLD} twice: give it once$"),
        ((NEW,), rf"^aliases: {NEW} is its present name: give the names of earlier releases only$"),
    ],
)
def test_malformed_alias_is_refused_where_it_is_written(aliases: Any, text: str) -> None:
    with pytest.raises(lro.DeclarationError, match=text):
        lro.message(NEW, aliases=aliases)
