"""Scenarios of the tasks cancel, list and delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lro_conform._checks import GRPC, HTTP
from lro_conform._codes import RpcCode
from lro_conform._sources import aip, operations_proto
from lro_conform.client._judging import (
    calls_once,
    fails_with,
    if_called,
    lists_names,
    not_of_operation,
    responds,
    says,
)
from lro_conform.client._scenario import (
    COLLECTION,
    RESPONSE,
    ended,
    error_of,
    info,
    must,
    operation,
    running,
    scenario,
    should,
)
from lro_conform.client._steps import Acknowledges, Answer, Lists, Refuses, Script, Verb

_CANCEL: Final = operations_proto("CancelOperation")
_DELETE: Final = operations_proto("DeleteOperation")
_PAGES: Final = aip(158)


def _scripts(verb: Verb, *answers: Answer, get: Sequence[Answer] = ()) -> dict[str, Script]:
    script: Script = {verb: answers, Verb.GET: get} if get else {verb: answers}
    return {HTTP: script, GRPC: script}


CANCELS: Final = (
    scenario(
        "cancelled",
        _scripts(
            Verb.CANCEL,
            Acknowledges(),
            get=(
                running("cancelled"),
                running("cancelled"),
                error_of("cancelled", RpcCode.CANCELLED, "cancelled by a caller"),
            ),
        ),
        must(
            "cancels.cancelled",
            "A cancelled operation is reported with an error whose code is CANCELLED.",
            _CANCEL,
            fails=(fails_with(1, message="by a caller"), if_called(Verb.CANCEL)[0]),
        ),
        should(
            "cancels.once",
            "A cancel request that was answered is not sent again.",
            _CANCEL,
            fails=calls_once(Verb.CANCEL),
        ),
        task="cancel",
    ),
    scenario(
        "too-late",
        _scripts(Verb.CANCEL, Acknowledges(), get=(running("too-late"), ended("too-late"))),
        must(
            "cancels.too-late",
            "An operation that succeeds despite a cancel request is reported as a success.",
            _CANCEL,
            fails=responds(RESPONSE),
        ),
        task="cancel",
    ),
    scenario(
        "no-cancel",
        _scripts(
            Verb.CANCEL,
            Refuses(code=RpcCode.UNIMPLEMENTED),
            get=(running("no-cancel"), running("no-cancel"), ended("no-cancel")),
        ),
        must(
            "cancels.unimplemented",
            "If CancelOperation is answered with UNIMPLEMENTED, the operation is not reported "
            "as cancelled.",
            _CANCEL,
            fails=not_of_operation,
        ),
        task="cancel",
    ),
    scenario(
        "cancel-again",
        _scripts(
            Verb.CANCEL,
            Refuses(code=RpcCode.UNAVAILABLE),
            Acknowledges(),
            get=(
                running("cancel-again"),
                running("cancel-again"),
                error_of("cancel-again", RpcCode.CANCELLED, "cancelled by a caller"),
            ),
        ),
        info(
            "cancels.retries",
            "A cancel request that was answered with UNAVAILABLE is sent again.",
            aip(194, "Retryable codes"),
            fails=fails_with(1),
        ),
        task="cancel",
    ),
)

_NAMES: Final = tuple(f"{COLLECTION}/listed-{number}" for number in range(3))
_LISTED: Final = tuple(operation(f"listed-{number}") for number in range(3))

LISTS: Final = (
    scenario(
        "pages",
        _scripts(
            Verb.LIST,
            Lists(operations=_LISTED[:1], next_page_token="page-1"),
            Lists(next_page_token="page-2"),
            Lists(operations=_LISTED[1:]),
        ),
        must(
            "lists.all-pages",
            "The client reads pages until there is no page token, even after an empty page.",
            _PAGES,
            fails=lists_names(_NAMES),
        ),
        task="list",
    ),
    scenario(
        "cut-list",
        _scripts(
            Verb.LIST,
            Lists(operations=_LISTED[:1], next_page_token="page-1"),
            Refuses(code=RpcCode.PERMISSION_DENIED),
        ),
        must(
            "lists.not-cut",
            "If a page is refused, the client does not present the earlier pages as the whole "
            "list.",
            _PAGES,
            fails=says("lost"),
        ),
        task="list",
    ),
)

DELETES: Final = (
    scenario(
        "deleted",
        _scripts(Verb.DELETE, Acknowledges()),
        must(
            "deletes.deleted",
            "The client calls DeleteOperation once, and reports a response.",
            _DELETE,
            fails=(says("response"), calls_once(Verb.DELETE)),
        ),
        task="delete",
    ),
    scenario(
        "no-delete",
        _scripts(Verb.DELETE, Refuses(code=RpcCode.UNIMPLEMENTED)),
        must(
            "deletes.unimplemented",
            "If DeleteOperation is answered with UNIMPLEMENTED, the client does not report "
            "success.",
            _DELETE,
            fails=says("lost"),
        ),
        task="delete",
    ),
)
