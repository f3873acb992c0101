"""Proto files made from a service, and clients that protoc generates from them."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import attrs
import pytest

pytest.importorskip("grpc_tools")

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

import lro
from lro import Job, Service, message, protobuf
from lro._messages.protobuf.options import HTTP, OPERATION_INFO
from lro.executors.inline import InlineExecutor
from lro.lint import lint
from lro.protobuf import StartOptions, read_options, write_options
from lro.stores.memory import MemoryStore
from tests.filters.every_field_kind import Everything
from tests.googleapis import write_googleapis
from tests.protobuf.fixtures import of_protobuf

OPTIONAL = "(.google.api.field_behavior) = OPTIONAL"


class Color(enum.IntEnum):
    UNSPECIFIED = 0
    RED = 1
    CRIMSON = 1


class Shade(enum.Enum):
    UNSPECIFIED = "?"


@attrs.frozen
class google:  # the package google has the same name
    """A message whose name is also a package's."""

    text: str = ""


@message("acme.google.v1.Nested.Part")
@attrs.frozen
class Part:
    color: Color = Color.UNSPECIFIED
    shade: Shade = Shade.UNSPECIFIED


@message("acme.google.v1.Nested")
@attrs.frozen
class Nested:
    parts: tuple[Part, ...] = ()
    maybe: int | None = None


@attrs.frozen
class PaintRequest:
    things: dict[str, google] = attrs.field(factory=dict)
    request_id: str = ""


@attrs.frozen
class PaintResponse:
    nested: Nested | None = None
    took: timedelta | None = None


@attrs.frozen
class PaintMetadata:
    """Metadata without fields."""


def paint(request: PaintRequest, job: Job[PaintMetadata]) -> PaintResponse:
    job.report(PaintMetadata())
    return PaintResponse(Nested((Part(Color.RED),), maybe=0), timedelta(seconds=2.5))


def wash(request: PaintRequest, job: Job[PaintMetadata]) -> PaintResponse:
    raise AssertionError("not called here")


def unused(request: FrameRequest) -> None: ...


def new_service() -> Service:
    """Make a service with two methods, of which one declares its path."""
    made = Service(MemoryStore(), InlineExecutor(), domain="acme.test", maintenance=False)
    made.method("acme.google.v1.PictureShop.Paint")(paint)
    made.method("acme.google.v1.PictureShop.Wash", path="/v9/wash")(wash)
    return made


@pytest.fixture
def service():
    """A new service with two methods."""
    with new_service() as made:
        yield made


def compiled(sources, folder):
    """Compile the proto files with protoc; return the folder of the generated modules."""
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    own = Path(grpc_tools.__file__).parent / "_proto"
    options = [f"-I{folder}", f"-I{own}", write_googleapis(folder), f"--python_out={folder}"]
    assert protoc.main(["protoc", *options, *sources]) == 0
    return folder


def imported(folder, name, monkeypatch):
    """Import the generated module of a proto file."""
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")


def test_the_files_compile_and_read_our_replies(service, tmp_path, monkeypatch):
    """A service's proto files compile, and the generated classes decode response and metadata."""
    sources = protobuf.proto_sources(service)
    assert list(sources) == ["acme/google/v1/google.proto"]
    pb = imported(compiled(sources, tmp_path), *sources, monkeypatch)
    started = service.start("acme.google.v1.PictureShop.Paint", PaintRequest())
    operation = protobuf.operation_to_proto(started, service.types)
    found = pb.PaintResponse()
    assert operation.response.Unpack(found)
    assert found.nested.parts[0].color == pb.CRIMSON
    assert found.nested.HasField("maybe")
    assert found.took.ToTimedelta().total_seconds() == 2.5
    assert operation.metadata.Is(pb.PaintMetadata.DESCRIPTOR)
    assert [field.number for field in pb.PaintRequest.DESCRIPTOR.fields] == [1, 2, 2047]


STUBS = """
import dry_pb2 as pb
import lro.v1.lro_pb2
from lro.protobuf import operation_to_proto
from lro import Operation, OperationMetadata, TypeRegistry
types = TypeRegistry()
done = Operation(name="operations/a", metadata=types.pack(OperationMetadata(verb="dry")))
found = lro.v1.lro_pb2.OperationMetadata()
assert operation_to_proto(done, types).metadata.Unpack(found) and found.verb == "dry"
"""


def test_stubs_that_import_our_metadata_are_found_beside_the_library(tmp_path):
    """Generated code that imports lro/v1/lro.proto works beside the library, in a new process."""
    sources = {
        "dry.proto": 'syntax = "proto3"; import "lro/v1/lro.proto"; message Dried {'
        " lro.v1.OperationMetadata last = 1; }"
    }
    with lro.Service(MemoryStore(), InlineExecutor()) as service:
        declare = service.method("acme.dry.v1.Dryers.Dry", request=lro.Empty, response=lro.Empty)
        declare(lambda request: request)
        ours = protobuf.proto_sources(service) | sources
    folder = compiled({"lro/v1/lro.proto": ours["lro/v1/lro.proto"], **sources}, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    subprocess.run([sys.executable, "-c", STUBS], env=environment, check=True)


@dataclasses.dataclass(frozen=True)
class DryRequest:
    size: int = 0


class Heat(enum.IntEnum):
    """How hot it may become.

    The ``UNSPECIFIED`` one is ours to choose.
    """

    UNSPECIFIED = 0
    HIGH = 1
    """What the temperature is called."""


@attrs.frozen
class DryResponse:
    """What is dry now.

    Nothing is wet.
    """

    heat: Heat = Heat.UNSPECIFIED


def dry(request: DryRequest) -> DryResponse:
    """Dry a picture."""
    raise AssertionError("not called here")


@attrs.frozen(kw_only=True)
class Sized:
    """How large it is."""

    width: int = 0
    """In millimetres.

    Without the frame.
    """
    height: int = 0


@attrs.frozen(kw_only=True)
class FrameRequest(Sized):
    """Frame a picture."""

    kind = "ours"
    """Not a field."""
    since: datetime
    """Of which year the frame is."""
    heat: Heat | None
    name: str
    inner: list[Sized]
    """Pictures within."""


@dataclasses.dataclass(frozen=True)
class FrameMetadata:
    width: int = 0
    """How much is done, in ``mm``."""
    end_time: datetime | None = None


def frame(request: FrameRequest, job: Job[FrameMetadata]) -> Sized:
    raise AssertionError("not called here")


@attrs.frozen(kw_only=True)
class CastRequest(Everything):
    """Every type that a field can have."""

    sized: Sized | None = None


def cast(request: CastRequest) -> Sized:
    """Cast it."""
    raise AssertionError("not called here")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The proto files of a service with methods in several packages, checked by compiling them."""
    with new_service() as service:
        service.method("acme.dryer.v1.Dryer.Dry")(dry)
        service.method("acme.frames.v1.Frames.Frame")(frame)
        path = "/v1/{name=frames/*}"
        service.method("acme.frames.v1.Frames.Melt", path=path, http_method="DELETE")(unused)
        service.method("acme.casts.v1.IronWorks.Cast")(cast)
        options = {"path": "/v1/{sized.height}/casts", "body": "sized", "http_method": "PATCH"}
        service.method("acme.casts.v1.IronWorks.Recast", **options)(cast)
        found = protobuf.proto_sources(service)
    compiled(found, tmp_path_factory.mktemp("protos"))
    return found


UUID = "(.google.api.field_info).format = UUID4"
BEHAVIOR = "(google.api.field_behavior) ="
LINES = {
    "google": [
        "package acme.google.v1;\n",
        # Names in the same package are short; an ambiguous name begins with a dot.
        "rpc Paint(PaintRequest) returns (.google.longrunning.Operation) {\n",
        'post: "/v1/pictureShop:paint"\n',
        'post: "/v9/wash"\n',
        'response_type: "PaintResponse"\n',
        f"map<string, google> things = 1 [{OPTIONAL}];\n",
        ".google.protobuf.Duration took = 2;\n",
        "optional int64 maybe = 2;\n",
        "repeated Nested.Part parts = 1;\n",
        "message PaintMetadata {}\n",
        "option allow_alias = true;\n",
        "ShadeEnum.Shade shade = 2;\n",
        # Options for generated code, the default host, and added fields.
        'option go_package = "acme/google/v1;acmegooglev1pb";\n',
        "option java_multiple_files = true;\n",
        'option java_outer_classname = "GoogleProto";\n',
        'option java_package = "com.acme.google.v1";\n',
        'option (.google.api.default_host) = "acme.test";\n',
        f"string request_id = 2 [\n    {OPTIONAL},\n    {UUID}\n  ];\n",  # the class has this field
        f"bool validate_only = 2047 [{OPTIONAL}];\n",
    ],
    "dryer": [
        "  // What the temperature is called.\n  HIGH = 1;",
        f"string request_id = 2046 [\n    {OPTIONAL},\n    {UUID}\n  ];\n".replace("(.g", "(g", 1),
        # Docstrings become comments, but not the generated docstring of a dataclass.
        "  // Dry a picture.\n  rpc Dry(",
        "\n\nmessage DryRequest {",
        "// What is dry now.\n//\n// Nothing is wet.\nmessage DryResponse {",
        "// How hot it may become.\n//\n// The `UNSPECIFIED` one is ours to choose.\nenum Heat {",
    ],
    "frames": [
        # Docstrings below attributes, also inherited ones, become comments.
        "message FrameRequest {\n  // In millimetres.\n  //\n  // Without the frame.\n  int64",
        "  // Of which year the frame is.\n  google.protobuf.Timestamp since = 3",
        "  // Pictures within.\n  repeated Sized inner = 6",
        "message FrameMetadata {\n  // How much is done, in `mm`.\n  int64 width = 1",
        "// Each method starts a long-running operation.\nservice Frames {",
        "  // Check the request, and start nothing.\n  bool validate_only",
        # Only fields that a request must have are REQUIRED; metadata is OUTPUT_ONLY.
        f"google.protobuf.Timestamp since = 3 [{BEHAVIOR} REQUIRED];\n",
        f"optional acme.dryer.v1.Heat heat = 4 [{BEHAVIOR} OPTIONAL];\n",
        f"string name = 5 [{BEHAVIOR} OPTIONAL];\n",
        f"repeated Sized inner = 6 [{BEHAVIOR} OPTIONAL];\n",
        f"google.protobuf.Timestamp end_time = 2 [{BEHAVIOR} OUTPUT_ONLY];\n",
        # The HTTP rule has the declared method and variables; DELETE has no body.
        '(google.api.http) = {\n      delete: "/v1/{name=frames/*}"\n    };',
    ],
    "casts": [
        'post: "/v1/ironWorks:cast"\n',
        'import "lro/v1/lro.proto";\n',
        '= {\n      patch: "/v1/{sized.height}/casts"\n      body: "sized"\n    };',
    ],
}


@pytest.mark.parametrize("package", LINES)
def test_proto_text_has_everything_in_the_descriptors_once(sources, package):
    """A proto file has each message, service, option, HTTP rule and comment once."""
    text = sources[f"acme/{package}/v1/{package}.proto"]
    for lines in LINES[package]:
        assert lines in text or lines.replace("(.google", "(google") in text, lines
    assert text.count("CRIMSON = 1;") == (package == "google")
    assert "Not a field" not in text


def test_every_field_has_its_field_behavior(sources):
    """Each request field has a field behavior; each field of our metadata file has a comment."""
    fields = re.findall(
        r"^  [\w.<>, ]+ = \d+( \[[^]]*\])?;$",
        sources["acme/casts/v1/casts.proto"].partition("\nenum ")[0],
        re.MULTILINE,
    )
    assert len(fields) == len(attrs.fields(CastRequest)) + 2
    assert all("(google.api.field_behavior) = OPTIONAL" in field for field in fields)
    field = r"^  // .+\n(?:  //.*\n)*  (?:optional )?[\w.]+ \w+ = \d+ \["
    ours = re.findall(field, sources["lro/v1/lro.proto"], re.MULTILINE)
    assert len(ours) == len(attrs.fields(lro.OperationMetadata))


def test_class_without_source_is_printed_without_comments(service):
    """A class without source, made at run time, is printed without comments."""
    made = attrs.make_class("MadeRequest", {"size": attrs.field(type=int, default=0)})
    service.declare("acme.made.v1.Made.Make", request=made, response=Sized, metadata=FrameMetadata)
    text = protobuf.proto_sources(service)["acme/made/v1/made.proto"]
    assert f"message MadeRequest {{\n  int64 size = 1 [{OPTIONAL.replace('(.', '(')}];\n" in text


def test_descriptor_set_has_every_import_before_its_file(service):
    """In a descriptor set each file comes after its imports; a registry can read the set."""
    files = FileDescriptorSet.FromString(protobuf.descriptor_set(service)).file
    seen = set()
    for file in files:
        assert set(file.dependency) <= seen
        seen.add(file.name)
    types = type(service.types)()
    assert "acme.google.v1.Nested.Part" in protobuf.register_file_set(
        types, protobuf.descriptor_set(service)
    )
    (shop,) = files[-1].service
    assert [method.options.Extensions[HTTP].post for method in shop.method] == [
        "/v1/pictureShop:paint",
        "/v9/wash",
    ]
    info = shop.method[0].options.Extensions[OPERATION_INFO]
    assert (info.response_type, info.metadata_type) == ("PaintResponse", "PaintMetadata")


def test_protobuf_messages_are_imported_from_their_own_file(service):
    source = of_protobuf()
    book, step = (source.codec(f"lrofix.v1.{name}").python for name in ("Book", "Step"))
    service.declare("acme.google.v1.Other.Read", request=book, response=book, metadata=step)
    (text,) = protobuf.proto_sources(service).values()
    file = book.DESCRIPTOR.file.name
    assert f'import "{file}";\n' in text
    assert "rpc Read(lrofix.v1.Book) returns" in text
    assert 'response_type: "lrofix.v1.Book"' in text
    names = [
        one.name for one in FileDescriptorSet.FromString(protobuf.descriptor_set(service)).file
    ]
    assert names.index(file) < names.index("acme/google/v1/google.proto")


def test_service_without_a_package_is_printed():
    with Service(MemoryStore(), InlineExecutor(), maintenance=False) as made:
        made.method("Shop.Paint")(paint)
        text = protobuf.proto_sources(made)["messages.proto"]
    assert text.startswith('syntax = "proto3";\n\nimport')
    assert 'option go_package = "messages;messagespb";\n' in text
    assert 'option java_package = "com.messages";\n' in text
    assert "default_host" not in text
    assert 'post: "/v1/shop:paint"' in text


SHOP = """
syntax = "proto3";
package {package};
import "google/longrunning/operations.proto";
message BuyRequest {{ string item = 1; }}
message BuyResponse {{ string item = 1; }}
message BuyMetadata {{}}
{service}
"""
SERVICE = """
service Shop {
  rpc Buy(BuyRequest) returns (google.longrunning.Operation) {
    option (google.longrunning.operation_info) = {
      response_type: "BuyResponse"
      metadata_type: "BuyMetadata"
    };
  }
}
"""


@pytest.mark.parametrize(
    ("package", "name", "service_text"),
    [
        ("shop1.v1", "shop1/v1/shop1.proto", ""),
        ("shop2.v1", "shop2/v1/shop_service.proto", SERVICE),
    ],
)
def test_messages_of_given_files_are_not_printed_again(
    service, tmp_path, monkeypatch, package, name, service_text
):
    """Messages and services that an existing proto file declares are not printed again."""
    source = SHOP.format(package=package, service=service_text)
    pb = imported(compiled({name: source}, tmp_path), name, monkeypatch)
    classes = {"request": pb.BuyRequest, "response": pb.BuyResponse, "metadata": pb.BuyMetadata}
    service.declare(f"{package}.Shop.Buy", **classes)
    printed = {
        path: text for path, text in protobuf.proto_sources(service).items() if package in text
    }
    whole = protobuf.descriptor_set(service)
    assert [one for one in lint(whole) if package in one.method] == []
    names = [file.name for file in FileDescriptorSet.FromString(whole).file]
    assert len(names) == len(set(names))
    assert name in names
    if service_text:
        assert printed == {}
    else:
        (text,) = printed.values()
        assert set(printed) == {"shop1/v1/shop1_lro.proto"}
        assert "rpc Buy(BuyRequest) returns" in text
        assert "message BuyRequest" not in text
        compiled({**printed, name: source}, tmp_path)


@pytest.mark.parametrize(
    "options", [StartOptions(), StartOptions("6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01", True)]
)
def test_start_options_are_encoded_behind_the_request(options):
    """The options of a start, written after a message's fields, are read back."""
    assert read_options(b"\x0a\x01x" + write_options(options)) == options
