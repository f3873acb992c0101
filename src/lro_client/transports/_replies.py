"""What a good reply must say, over whichever transport it came."""

from __future__ import annotations

from lro import Operation
from lro_client._errors import empty_reply, unreadable
from lro_client._flow.steps import Call, StartRequest


def check_operation(call: Call, operation: Operation, http_status: int | None = None) -> None:
    """Refuse an operation that tells nothing, or that nobody could ask for again.

    Raises:
        UnreadableReply: It has no field, or comes from a start, in progress and without a name.
    """
    if isinstance(call.request, StartRequest):
        if not (operation.name or operation.done):
            text = "the reply is not what was asked for: an operation in progress without a name"
            raise unreadable(call.verb, text, http_status)
    elif operation == _NOTHING:
        raise empty_reply(call.verb, "an operation without any field", http_status)


_NOTHING = Operation()
