"""The documents that the rules are based on, as citations with addresses."""

from __future__ import annotations

from lro_conform._checks import Citation

_GOOGLEAPIS = "https://github.com/googleapis/googleapis/blob/master/google"


def operations_proto(place: str = "") -> Citation:
    """The comments of ``google/longrunning/operations.proto`` at a message, field or RPC."""
    return Citation("operations.proto", place, f"{_GOOGLEAPIS}/longrunning/operations.proto")


def http_proto(place: str = "") -> Citation:
    """The comments of ``google/api/http.proto``: how HTTP is mapped to RPCs."""
    return Citation("http.proto", place, f"{_GOOGLEAPIS}/api/http.proto")


def status_proto(place: str = "") -> Citation:
    """The comments of ``google/rpc/status.proto``."""
    return Citation("status.proto", place, f"{_GOOGLEAPIS}/rpc/status.proto")


def code_proto(place: str = "") -> Citation:
    """The comments of ``google/rpc/code.proto``, which give each code its HTTP status."""
    return Citation("code.proto", place, f"{_GOOGLEAPIS}/rpc/code.proto")


def aip(number: int, section: str = "") -> Citation:
    """An API improvement proposal."""
    return Citation(f"AIP-{number}", section, f"https://google.aip.dev/{number}")


def rfc(number: int, section: str = "") -> Citation:
    """An RFC; ``section`` is its number, such as ``10.2.3``."""
    place = f"#section-{section}" if section else ""
    url = f"https://www.rfc-editor.org/rfc/rfc{number}{place}"
    return Citation(f"RFC {number}", f"§{section}" if section else "", url)


def protojson(section: str = "") -> Citation:
    """The JSON form of protocol buffers."""
    return Citation("ProtoJSON", section, "https://protobuf.dev/programming-guides/json/")


def grpc_doc(place: str = "", file: str = "PROTOCOL-HTTP2.md") -> Citation:
    """The documents of gRPC: its protocol over HTTP/2, or another file in the same folder."""
    return Citation("gRPC", place, f"https://github.com/grpc/grpc/blob/master/doc/{file}")


def system_parameters(name: str) -> Citation:
    """The common query parameters of Google's APIs, which their generated clients send."""
    url = "https://cloud.google.com/apis/docs/system-parameters"
    return Citation("System parameters", name, url)
