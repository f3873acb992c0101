"""The URL patterns, for ``include``, of the operations that the setting ``LRO`` describes."""

import functools
from typing import Any

from django.db import transaction
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from lro.http import OperationsEdge
from lro.integrations._base import PathRule, rules_by_path
from lro.integrations.django._operations import answer, operations


def _view(edge: OperationsEdge, rule: PathRule) -> Any:
    # The edge itself refuses POSTs from pages of other sites, and finds the caller. A caller
    # without a session gets 401, not a redirect to the sign-in page.
    view: Any = csrf_exempt(functools.update_wrapper(functools.partial(answer, edge, rule), answer))
    view = transaction.non_atomic_requests(view)  # a poll needs no transaction of the project
    view.login_required = False  # an attribute that LoginRequiredMiddleware reads
    return view


urlpatterns: list[Any] = [
    path(text.removeprefix("/"), _view(edge, rule), name=f"lro-{rule.rpc}")
    for edge in operations().edges
    for text, (rule, _) in rules_by_path(edge, "<str:*>", "<path:*>").items()
]
