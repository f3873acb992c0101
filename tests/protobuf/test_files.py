"""Descriptors that are made from classes or read from files, and what they cannot express."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta

import attrs
import pytest
from google.protobuf import empty_pb2, source_context_pb2, struct_pb2
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorSet,
    UninterpretedOption,
)
from google.rpc import error_details_pb2

from lro import (
    AnyMessage,
    DeclarationError,
    Empty,
    Int32,
    InvalidArgument,
    Operation,
    Service,
    TypeRegistry,
    message,
)
from lro._messages.protobuf import binary as _binary
from lro._model.json import with_enum_numbers
from lro.errors import EncodingError, MissingExtra, UnknownType
from lro.executors.inline import InlineExecutor
from lro.protobuf import descriptor_set, register_file_set, register_module
from lro.stores.memory import MemoryStore
from lro.types import ErrorInfo, Float, StringValue, UInt64, Value, field_number
from tests.protobuf.fixtures import FILE_SET, Color, file_set, of_attrs, of_protobuf


class Shade(enum.Enum):
    UNSPECIFIED = "?"
    DARK = "dark"


@attrs.frozen
class Inner:
    text: str = ""
    again: Inner | None = None


@message("acme.v1.Outer.Nested")
@attrs.frozen
class Nested:
    inner: Inner | None = None


@message("acme.v1.Outer")
@attrs.frozen
class Outer:
    zero: str = attrs.field(default="", metadata=field_number(70))
    maybe: int | None = None
    five: Int32 = 5
    color: Color = Color.UNSPECIFIED
    shade: Shade = Shade.UNSPECIFIED
    shades: tuple[Shade, ...] = ()
    inner: Inner | None = None
    nested: tuple[Nested, ...] = ()
    by_name: Mapping[str, Inner] = attrs.field(factory=dict)
    by_flag: Mapping[bool, Color] = attrs.field(factory=dict)
    moment: datetime | None = None
    span: timedelta | None = None
    anything: object = None
    struct: Mapping[str, object] = attrs.field(factory=dict)
    packed: AnyMessage | None = None
    name: StringValue | None = None
    rate: Float = 0.0
    big: tuple[UInt64, ...] = ()


def described(*classes):
    """Return the descriptor of the first of these classes."""
    types = TypeRegistry(*classes)
    return types.binary.descriptor(types.name_of(classes[0]))


def test_descriptor_fields_match_the_class():
    """The descriptor has the class's field numbers, presence, lists, maps, enums and types."""
    fields = described(Outer, Nested).fields_by_name
    assert (fields["zero"].number, fields["maybe"].number, fields["five"].number) == (70, 2, 3)
    assert [name for name in fields if fields[name].has_presence] == [
        *("maybe", "five", "inner", "moment", "span", "anything", "struct", "packed", "name")
    ]
    assert fields["inner"].message_type.full_name == "acme.v1.Inner"
    assert fields["nested"].message_type.full_name == "acme.v1.Outer.Nested"
    assert fields["nested"].message_type.containing_type.full_name == "acme.v1.Outer"
    entry = fields["by_flag"].message_type
    assert entry.GetOptions().map_entry
    assert entry.fields_by_name["value"].enum_type.full_name == "acme.v1.Color"
    assert fields["moment"].message_type.full_name == "google.protobuf.Timestamp"
    assert fields["span"].message_type.full_name == "google.protobuf.Duration"
    assert fields["anything"].message_type.full_name == "google.protobuf.Value"
    assert fields["struct"].message_type.full_name == "google.protobuf.Struct"
    assert fields["name"].message_type.full_name == "google.protobuf.StringValue"
    assert described(Outer, Nested).file.name == "acme/v1/acme.proto"


def test_enum_is_declared_once_in_its_package():
    """Enums keep aliases; if another enum has a value's name, the enum is within a message."""
    fields = described(Outer, Nested).fields_by_name
    color, shade = fields["color"].enum_type, fields["shade"].enum_type
    assert [(one.name, one.number) for one in color.values] == [
        *(("UNSPECIFIED", 0), ("RED", 1), ("CRIMSON", 1), ("BLUE", -5))
    ]
    assert color.GetOptions().allow_alias
    assert shade.full_name == "acme.v1.ShadeEnum.Shade"
    assert [(one.name, one.number) for one in shade.values] == [("UNSPECIFIED", 0), ("DARK", 1)]
    assert fields["shades"].enum_type is shade


def test_every_field_survives_the_binary_form():
    """A message with a value in each kind of field is read back unchanged."""
    types = TypeRegistry(Outer, Nested)
    inner = Inner("x", Inner("y"))
    whole = Outer(
        maybe=0,
        five=0,
        color=Color.BLUE,
        shade=Shade.DARK,
        shades=(Shade.DARK, Shade.UNSPECIFIED),
        inner=inner,
        nested=(Nested(inner), Nested()),
        by_name={"a": inner},
        by_flag={True: Color.RED},
        span=timedelta(seconds=-1.5),
        anything=[1.0, None, {"a": "b"}],
        struct={"a": [True]},
        packed=types.pack(Nested(inner)),
        name=StringValue(""),
        rate=0.5,
        big=(2**64 - 1,),
    )
    packed = types.pack(whole)
    binary = AnyMessage(packed.type_url, types.binary_payload(packed))
    assert types.unpack(binary, Outer) == whole
    assert types.json_payload(binary) == packed.payload
    assert types.json_payload(packed) is packed.payload
    assert types.binary_payload(binary) is binary.payload
    assert types.binary_payload(AnyMessage()) == b""
    with pytest.raises(InvalidArgument, match="in binary form"):  # only the registry can read bytes
        types.codec("acme.v1.Outer").load(b"", strict=True)
    types.unpack(binary, Outer).struct["a"].append("changed")  # changes only this copy
    assert types.unpack(binary, Outer) == whole


@pytest.mark.parametrize(
    ("number", "printed"), [(0.0, "0"), (-0.0, "-0.0"), (3.0, "3"), (0.5, "0.5")]
)
def test_whole_numbers_of_a_value_are_printed_as_in_json(number, printed):
    binary = struct_pb2.Value(number_value=number).SerializeToString()
    shown = TypeRegistry().json_payload(AnyMessage("x/google.protobuf.Value", binary))
    assert repr(shown) == printed


def test_binary_any_in_a_message_has_the_json_of_its_message():
    """A binary Any is printed as its message's JSON, or refused if its class is not registered."""
    types = TypeRegistry(Outer, Nested)
    inside = AnyMessage(
        "x/acme.v1.Outer.Nested", types.binary_payload(types.pack(Nested(Inner("x"))))
    )
    assert types.dump(Outer(packed=inside)) == {
        "five": 5,
        "packed": {"@type": "x/acme.v1.Outer.Nested", "inner": {"text": "x"}},
    }
    with pytest.raises(EncodingError, match=r"packed is a a\.B in binary form"):
        types.dump(Outer(packed=AnyMessage("x/a.B", b"x")))


@pytest.mark.parametrize(
    ("full_name", "file"),
    [
        ("Made", "messages.proto"),
        ("acme.images.v1.Made", "acme/images/v1/images.proto"),
        ("acme.v1beta2.Made", "acme/v1beta2/acme.proto"),
        ("v1.Made", "v1/messages.proto"),
    ],
)
def test_files_are_named_after_their_packages(full_name, file):
    """A file is named after its package; a nested class without a full name is in the same file."""
    fields = {
        "inner": attrs.field(default=None, type=Inner | None),
        "color": attrs.field(default=Color.UNSPECIFIED, type=Color),
    }
    found = described(message(full_name)(attrs.make_class("Made", fields)))
    assert found.file.name == file
    assert found.fields_by_name["inner"].message_type.full_name == full_name.replace(
        "Made", "Inner"
    )
    assert found.fields_by_name["color"].enum_type.full_name == full_name.replace("Made", "Color")


# -- classes that proto cannot express ------------------------------------------------------------


def ints(**members):
    """Make an IntEnum with these members."""
    return enum.IntEnum("Odd", members)


@pytest.mark.parametrize(
    ("annotation", "metadata", "said"),
    [
        (ints(ONE=1), {}, "first member of Odd must be 0"),
        (ints(), {}, "first member of Odd must be 0"),
        (ints(ZERO=0, BIG=2**31), {}, "a member of Odd has more than 32 bits"),
        (ints(ZERO=0, LOW=-(2**31) - 1), {}, "a member of Odd has more than 32 bits"),
        (str, field_number(19_500), "19500 is not a valid field number"),
        (str, field_number(True), "True is not a valid field number"),
        (str, field_number(2046), "2046 is not a valid field number"),
        (enum.Flag("Odd", ["A", "B"]), {}, "Odd is a Flag"),
        (enum.Enum("Odd", ["NONE", "größe"]), {}, "Odd has a member 'größe'"),
        (enum.Enum("Odd", ["NONE", "option"]), {}, "Odd has a member 'option'"),
        (enum.Enum("Odd", ["A_B", "ab"]), {}, "names in Odd differ only by case and underscores"),
    ],
)
def test_class_with_unsupported_field_is_refused_when_registered(annotation, metadata, said):
    """An enum or a field number that proto does not allow raises an error that names the field."""
    made = attrs.make_class("Made", {"odd": attrs.field(type=annotation, metadata=metadata)})
    with pytest.raises(DeclarationError, match=rf"Made\.odd: .*{said}"):
        TypeRegistry().register(made, "acme.v1.Made")


def made(full_name="", **fields):
    """Make a class with fields of these types, and with a full name if one is given."""
    fields = {name: attrs.field(type=kind, default=None) for name, kind in fields.items()}
    return (message(full_name) if full_name else lambda cls: cls)(attrs.make_class("Made", fields))


@pytest.mark.parametrize("names", [("größe",), ("a_b", "aB")])
def test_invalid_or_colliding_field_names_are_refused(names):
    """A field name that is not ASCII is refused, and so are two names with the same JSON name."""
    with pytest.raises(DeclarationError, match=rf"Made\.{names[-1]}: "):
        TypeRegistry().register(made(**dict.fromkeys(names, str | None)), "acme.v1.Made")


ONE, TWO = made("a.One", x=str | None), made("b.Two", x=str | None)
TAKEN = made("acme.v1.ShadeEnum", color=Color | None, shade=Shade | None)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        # Two classes without full names would be the same message.
        ([made("acme.v1.Made", x=list[made()], y=list[made(a=str | None)])], "names another class"),
        ([ONE, TWO, made("b.Three", x=list[ONE]), made("a.Four", x=list[TWO])], "imports itself"),
        ([TAKEN], "ShadeEnum already exists"),
        # A message within one of Google's messages cannot be declared in any file.
        ([made("google.rpc.Status.Inside")], "."),
    ],
)
def test_messages_that_no_files_can_declare_are_refused(classes, said):
    """Messages with duplicate names, circular imports or names already in use are refused."""
    with pytest.raises(DeclarationError, match=said):
        TypeRegistry(*classes).binary  # noqa: B018  # made on access


# -- protobuf classes -----------------------------------------------------------------------------


def test_a_class_of_protobuf_is_registered_by_its_own_name():
    """A protobuf class is registered by its own name; packed messages keep unknown fields."""
    source = of_protobuf()
    book = source.codec("lrofix.v1.Book").python
    types = TypeRegistry(book)
    message = book(title="t")
    message.MergeFromString(b"\x98\x06\x01")  # the unknown field 99
    packed = types.pack(message)
    assert packed.payload == message.SerializeToString()
    assert types.unpack(packed, book) == message
    assert types.to_json(packed) == {"@type": packed.type_url, "title": "t"}
    assert types.dump(message) == {"title": "t"}
    assert types.load({"title": "t"}, book) == book(title="t")
    with pytest.raises(InvalidArgument, match="titel: is not a field of Book"):
        types.load({"titel": "t"}, book)
    assert types.load({"titel": "t"}, book, strict=False) == book()
    with pytest.raises(InvalidArgument, match="must be a Book, got 5"):
        types.codec("lrofix.v1.Book").dump(5)
    with pytest.raises(DeclarationError, match=r"lrofix\.v1\.Book: is the name of"):
        types.register(of_protobuf().codec("lrofix.v1.Book").python)
    with pytest.raises(InvalidArgument, match=r"1 bytes are not a lrofix\.v1\.Book in binary form"):
        types.unpack(AnyMessage(packed.type_url, b"\xff"), book)


def test_built_in_messages_may_be_of_protobuf_or_our_class():
    """For a built-in message, protobuf's class and this library's class can both be used."""
    types = TypeRegistry(empty_pb2.Empty, error_details_pb2.ErrorInfo)
    packed = types.pack(error_details_pb2.ErrorInfo(reason="R"))
    assert types.unpack(packed, ErrorInfo) == ErrorInfo(reason="R")
    assert types.unpack(types.pack(ErrorInfo("R")), error_details_pb2.ErrorInfo).reason == "R"
    assert types.pack(empty_pb2.Empty()).payload == b""
    assert types.pack(Empty()).payload == {}
    assert types.codec("google.protobuf.Empty").python is Empty
    holder = made("acme.v1.Holder", info=ErrorInfo | None)
    field = described(holder).fields_by_name["info"]  # Google's file is imported
    assert field.message_type.full_name == "google.rpc.ErrorInfo"
    status = attrs.make_class("Mine", {"code": attrs.field(type=Int32, default=0)})
    holder = made(status=status | None)
    types.register(status, "google.rpc.Status")  # a class of the user for an existing descriptor
    types.register(holder, "acme.v1.Holder")
    assert types.binary_payload(types.pack(holder(status(5)))) == b"\x0a\x02\x08\x05"


def test_printed_messages_are_cached_if_small(monkeypatch):
    """The JSON of a small binary message is cached; the cache has a maximum size."""
    types = TypeRegistry(StringValue)
    name = "google.protobuf.StringValue"
    assert types.binary.to_json(name, b"\x0a\x01x") == types.binary.to_json(name, b"\x0a\x01x")
    monkeypatch.setattr(_binary, "_KEPT", 2)
    monkeypatch.setattr(_binary, "_KEPT_BYTES", 4)
    for text in "abcdef":
        assert types.binary.to_json(name, b"\x0a\x01" + text.encode()) == text
    assert types.binary.to_json(name, b"\x0a\x04long") == "long"
    assert len(types.binary._written) == 1


def test_any_of_empty_or_any_in_a_message_has_its_special_json():
    """A message's Any that packs an Empty or an Any is read back from bytes unchanged."""
    types = TypeRegistry(Outer, Nested)
    for inside in (types.pack(Empty()), types.pack(types.pack(StringValue("x")))):
        whole = types.pack(Outer(packed=inside))
        binary = AnyMessage(whole.type_url, types.binary_payload(whole))
        assert types.unpack(binary, Outer, strict=True).packed == inside


def test_hostile_bytes_are_refused():
    """Invalid bytes in an Any, or deeply nested Anys, raise InvalidArgument."""
    types = TypeRegistry(Outer, Nested)
    junk = AnyProto(type_url="x/google.protobuf.Duration", value=b"\xff")
    deep = AnyProto()
    for _ in range(400):
        deep = AnyProto(type_url="x/google.protobuf.Any", value=deep.SerializeToString())
    for packed in (junk, deep):
        message = types.binary.message_class("acme.v1.Outer")()
        message.packed.MergeFromString(packed.SerializeToString())
        with pytest.raises(InvalidArgument):
            types.unpack(AnyMessage("x/acme.v1.Outer", message.SerializeToString()), Outer)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_message_of_greatest_depth_has_a_binary_form(wrap):
    """A JSON value of 31 levels has a binary form; a value of 32 levels cannot be packed."""
    types, value = TypeRegistry(Outer, Nested), 1.0
    for _ in range(31):
        value = wrap(value)
    with pytest.raises(EncodingError, match="nested deeper"):
        types.pack(Outer(anything=wrap(value)))
    packed = types.pack(Outer(anything=value))
    assert (
        types.unpack(AnyMessage(packed.type_url, types.binary_payload(packed)), Outer).anything
        == value
    )


def test_class_registered_while_descriptors_are_made_is_not_lost(monkeypatch):
    """If a class is registered while descriptors are made, the descriptors are made again."""
    types, made = TypeRegistry(Nested), []
    whole = _binary.Binary

    def slow(*arguments):
        if not made:
            made.append(types.register(Outer))
        return whole(*arguments)

    monkeypatch.setattr(_binary, "Binary", slow)
    types.binary.descriptor("acme.v1.Outer.Nested")
    assert types.binary.descriptor("acme.v1.Outer").full_name == made[0]
    with pytest.raises(UnknownType):
        types.binary.descriptor("acme.v1.Unknown")


def test_binary_form_without_protobuf_names_the_extra(monkeypatch):
    """Without protobuf, the binary form raises a MissingExtra that names ``protobuf``."""
    monkeypatch.setitem(sys.modules, "lro._messages.protobuf.binary", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lro\[protobuf\]'"):
        TypeRegistry().binary  # noqa: B018


def test_message_that_protobuf_cannot_write_is_refused():
    """A message with a NaN, an invalid value or without a required field cannot be written."""
    part = TypeRegistry(UninterpretedOption.NamePart)
    with pytest.raises(EncodingError, match="missing required fields"):
        part.pack(UninterpretedOption.NamePart())
    values = TypeRegistry(struct_pb2.Value)
    assert values.codec("google.protobuf.Value").python is Value
    assert values._of_class[struct_pb2.Value].shape is None
    types = TypeRegistry(struct_pb2.Value)
    with pytest.raises(EncodingError, match="Value: Fail to serialize NaN"):
        types.dump(struct_pb2.Value(number_value=float("nan")))
    with pytest.raises(EncodingError):
        types.binary_payload(AnyMessage("x/google.protobuf.Duration", "soon"))
    with pytest.raises(UnknownType):
        types.binary_payload(AnyMessage("x/acme.v1.Unknown", {}))


# -- files of descriptors -------------------------------------------------------------------------


def test_files_of_one_name_keep_their_descriptors():
    """If two sets have files with the same name, each message keeps its own descriptor."""
    types = TypeRegistry()
    name = 'name: "api.proto" syntax: "proto3" package:'
    for package, kind, payload in (("a.v1", "INT64", b"\x08\x05"), ("b.v1", "SINT64", b"\x08\x0a")):
        field = f'name: "n" number: 1 json_name: "n" type: TYPE_{kind}'
        text = f'file {{ {name} "{package}" message_type {{ name: "M" field {{ {field} }} }} }}'
        register_file_set(types, file_set(text))
        message = types.codec(f"{package}.M").load({"n": "5"}, strict=True)
        assert types.pack(message).payload == payload
        assert types.dump(message) == {"n": "5"}


AGAIN = """
file {
  name: "user.proto" package: "acme.v1" syntax: "proto3" dependency: "again.proto"
  message_type {
    name: "Report"
    field { name: "status" number: 1 type: TYPE_MESSAGE type_name: ".google.rpc.Status" }
  }
}
file {
  name: "again.proto" package: "acme.v1" syntax: "proto3"
  dependency: ["google/protobuf/empty.proto", "google/rpc/status.proto"] public_dependency: 1
}
"""


def test_public_import_of_a_known_file_is_accepted():
    types = TypeRegistry()
    assert register_file_set(types, file_set(AGAIN)) == ("acme.v1.Report",)
    (again,) = types.binary.descriptor("acme.v1.Report").file.dependencies
    assert [file.name for file in again.public_dependencies] == ["google/rpc/status.proto"]


def test_a_file_set_is_registered():
    """A file set registers its new messages once; known messages keep their class."""
    types = TypeRegistry()
    new = register_file_set(types, FILE_SET)
    assert "lrofix.v1.ExportMetadata.Window" in new
    assert "lrofix.v1.ExportMetadata.LabelsEntry" not in new
    assert types.codec("google.rpc.ErrorInfo").python is ErrorInfo
    assert register_file_set(types, FILE_SET) == ()


def test_set_may_lack_the_well_known_imports(tmp_path):
    """A file set may lack well-known imports, as sets of ``protoc`` do, but no other imports."""
    whole = FileDescriptorSet.FromString(FILE_SET)
    own = [file for file in whole.file if file.package == "lrofix.v1"]
    new = register_file_set(TypeRegistry(), FileDescriptorSet(file=own).SerializeToString())
    assert "lrofix.v1.Book" in new
    own[0].dependency.append("elsewhere.proto")
    with pytest.raises(InvalidArgument, match=r"imports elsewhere\.proto, which is not in the set"):
        register_file_set(TypeRegistry(), FileDescriptorSet(file=own).SerializeToString())


def test_a_generated_module_is_registered():
    types = TypeRegistry()
    new = register_module(types, source_context_pb2)
    assert new == ("google.protobuf.SourceContext",)
    assert types.codec(new[0]).python is source_context_pb2.SourceContext
    assert register_module(types, source_context_pb2) == ()
    with pytest.raises(InvalidArgument, match="sys is not a module that protoc has generated"):
        register_module(types, sys)


@message("acme.shop.v1.Order")
@attrs.frozen
class Order:
    name: str = ""
    time: datetime | None = None


FIELD_FILES = ("behavior", "info")


def shop_set():
    """Return the descriptor set of a service: its file and all imported files."""
    with Service(MemoryStore(), InlineExecutor(), domain="acme.test", maintenance=False) as shop:
        shop.declare("acme.shop.v1.Shop.Buy", request=Order, response=Order, metadata=Order)
        return FileDescriptorSet.FromString(descriptor_set(shop))


def check_works(types, file_set):
    """Register a set of files; check that its message can be read, packed and printed."""
    register_file_set(types, file_set)
    value = {"name": "a", "time": "2030-01-01T00:00:00Z"}
    packed = types.pack(types.codec("acme.shop.v1.Order").load(value, strict=True))
    assert types.to_json(packed) == {"@type": packed.type_url, **value}


@pytest.mark.parametrize("alone", [False, True])
def test_a_set_that_imports_annotations_works(alone):
    """A set that imports annotations can be registered, with the imported files or without."""
    file_set = shop_set()
    if alone:
        # Older versions of the loaded files do not import the files field_*.proto.
        own = ("acme/shop/v1/shop.proto", *(f"google/api/field_{o}.proto" for o in FIELD_FILES))
        file_set = FileDescriptorSet(file=[one for one in file_set.file if one.name in own])
    check_works(TypeRegistry(), file_set.SerializeToString())
    check_works(TypeRegistry(), file_set)
    for file in file_set.file:  # buf marks its images with this field
        file.MergeFromString(b"\xd2\xf6\x03\x02\x08\x00")
    check_works(of_attrs(), file_set)


def test_a_set_with_newer_and_older_editions_of_known_files_works():
    """A newer edition of a known file adds messages; an older edition removes no field."""
    file_set = shop_set()
    files = {file.name: file for file in file_set.file}
    client = files["google/api/client.proto"]
    newer = client.message_type.add(name="Newer")
    known = client.message_type[0].name
    field = newer.field.add(name="known", number=1, type_name=f".google.api.{known}")
    field.type, field.label = FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.LABEL_OPTIONAL
    del files["google/rpc/status.proto"].message_type[0].field[1]
    types = TypeRegistry()
    check_works(types, file_set)
    read = types.codec("google.api.Newer").load({"known": {}}, strict=True)
    assert types.dump(read) == {"known": {}}
    fields = types.binary.descriptor("google.rpc.Status").fields_by_name
    assert list(fields) == ["code", "message", "details"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"\xff", "1 bytes are not a google.protobuf.FileDescriptorSet; make one by protoc"),
        (b"", "holds no file; make one by protoc"),
        (FileDescriptorSet(), "holds no file; make one by protoc"),
        (b"\x0a\x03\x12\x01a\x0a\x08\x0a\x01b\x22\x03\x0a\x01.", "b: "),
        ("api.binpb", "must be a FileDescriptorSet, or its bytes, got 'api.binpb'"),
    ],
)
def test_bytes_that_are_not_a_file_set_are_refused(wrong, said):
    """Anything that is not a file set is refused with an error that says why."""
    with pytest.raises(InvalidArgument, match=said):
        register_file_set(TypeRegistry(), wrong)


# -- shapes ---------------------------------------------------------------------------------------


def test_protobuf_class_has_the_shape_of_its_attrs_class():
    """A protobuf class has the shape of its attrs class, except for Python types."""
    ours, theirs = of_attrs(), of_protobuf()
    for name in ("lrofix.v1.ExportMetadata", "lrofix.v1.ImportMetadata", "lrofix.v1.Book"):
        expected, found = ours.codec(name).shape, theirs.codec(name).shape
        assert expected is not None
        assert found is not None
        for one, other in zip(expected.fields, found.fields, strict=True):
            same = ["name", "json_name", "label", "kind", "key_kind"]
            same += ["message_name"] * (one.message_name is not None)
            assert [getattr(one, x) for x in same] == [getattr(other, x) for x in same]


def test_enums_in_protobuf_messages_are_numbers_on_request():
    """Enums in metadata become numbers for Google's REST clients; unreadable bytes are kept."""
    types = of_protobuf()
    meta = types.codec("lrofix.v1.ExportMetadata").python
    packed = types.pack(meta(stage="COPYING"))
    shown = with_enum_numbers(Operation(metadata=packed), types)
    assert shown.metadata.payload == {"stage": 2}
    unreadable = Operation(metadata=AnyMessage("x/lrofix.v1.Book", b"\xff"))
    assert with_enum_numbers(unreadable, types) == unreadable
