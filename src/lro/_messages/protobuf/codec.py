"""The codec of a protobuf class, generated or made of a descriptor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from lro._base.any import WRAPPED_TYPES, Json
from lro._base.errors import InvalidArgument, got
from lro._messages.protobuf.binary import Binary, parsed, serialized
from lro._messages.protobuf.schema import shape_of_descriptor
from lro._messages.schema import Shape


@attrs.frozen
class ProtobufCodec:
    """Packs messages in binary form, so that fields which this program does not know survive."""

    python: type[Message]
    binary: Callable[[], Binary]

    @property
    def shape(self) -> Shape | None:
        """The fields, by the descriptor; None for the well-known types."""
        descriptor = cast(Descriptor, self.python.DESCRIPTOR)
        if descriptor.full_name in WRAPPED_TYPES:
            return None
        return shape_of_descriptor(descriptor)

    def dump(self, message: Any) -> Json | bytes:
        """The deterministic binary form."""
        if not isinstance(message, self.python):
            raise InvalidArgument("", f"must be a {self.python.__name__}, got {got(message)}")
        return serialized(message)

    def amend(
        self, payload: bytes, unless_set: Mapping[str, Json], always: Mapping[str, Json]
    ) -> bytes:
        """The binary form with more fields; the same bytes if it says all of that already."""
        try:
            message = parsed(self.python, payload)
        except InvalidArgument:  # whoever reads it is told
            return payload
        before = serialized(message)
        names = {field.json_name: field.name for field in message.DESCRIPTOR.fields}
        new = {key: value for key, value in unless_set.items() if not message.HasField(names[key])}
        for key in always:
            message.ClearField(names[key])
        added: dict[str, Json] = {**new, **always}
        message.MergeFrom(self.binary().read(self.python, added, strict=True))
        after = serialized(message)
        return payload if after == before else after

    def load(self, payload: Json | bytes, *, strict: bool) -> Any:
        """The message of a JSON value, or of the binary form."""
        if isinstance(payload, bytes):
            return parsed(self.python, payload)
        return self.binary().read(self.python, payload, strict=strict)
