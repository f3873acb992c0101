"""The server reads each start exactly as the client wrote it (spec §9.1, §9.7)."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro.grpc._messages import read_start
from lro_client.transports import StartRequest
from lro_client.transports._grpc_coding import start_to_binary


@lro.message("acme.v1.Plain")
@attrs.frozen
class Plain:
    """A request without the fields ``request_id`` and ``validate_only``."""

    label: str = ""
    sizes: tuple[int, ...] = ()
    inner: dict[str, bytes] = attrs.field(factory=dict)


@lro.message("acme.v1.Own")
@attrs.frozen
class Own:
    """A request with the fields ``request_id`` and ``validate_only``."""

    label: str = ""
    request_id: str = ""
    validate_only: bool = False


TYPES = lro.TypeRegistry(Plain, Own)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WIDE = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.builds(
    Plain,
    label=TEXTS,
    sizes=st.lists(WIDE, max_size=5).map(tuple),
    inner=st.dictionaries(TEXTS, st.binary(max_size=9), max_size=3),
)


def start(message: object, request_id: str, validate_only: bool) -> bytes:
    """Return a start in binary form."""
    asked = StartRequest(
        target="x.Y.Z", message=message, request_id=request_id, validate_only=validate_only
    )
    return start_to_binary(asked, TYPES)


@settings(max_examples=25)
@given(PLAIN, TEXTS, st.booleans())
def test_id_and_flag_beside_the_message_are_read_back(
    message: Plain, request_id: str, validate_only: bool
) -> None:
    """Request ID and ``validate_only`` of a start are read back; the message is unchanged."""
    found, beside = read_start(start(message, request_id, validate_only), Plain, TYPES)
    assert found == message
    assert (beside.request_id, beside.validate_only) == (request_id, validate_only)


@settings(max_examples=25)
@given(TEXTS, TEXTS, TEXTS, st.booleans(), st.booleans())
def test_id_and_flag_of_the_call_go_over_those_of_the_message(
    label: str, own_id: str, request_id: str, own_flag: bool, validate_only: bool
) -> None:
    """Options of a start, if set, override ``request_id`` and ``validate_only`` of the message."""
    payload = start(Own(label, own_id, own_flag), request_id, validate_only)
    found, beside = read_start(payload, Own, TYPES)
    assert found == Own(label, request_id or own_id, validate_only or own_flag)
    assert (beside.request_id, beside.validate_only) == (found.request_id, found.validate_only)


@settings(max_examples=25)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_or_refused(payload: bytes) -> None:
    """Reading any bytes returns a request or raises InvalidArgument, nothing else."""
    try:
        found, _ = read_start(payload, Plain, TYPES)
    except lro.InvalidArgument:
        return
    assert isinstance(found, Plain)
