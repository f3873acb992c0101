"""The routes of the operations, for ``include``: those of the settings in ``LRO``."""

import functools
from typing import Any

from django.db import transaction
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from lro.http import OperationsEdge
from lro.integrations._base import PathRule, rules_by_path
from lro.integrations.django._operations import answer, operations


def _view(edge: OperationsEdge, rule: PathRule) -> Any:
    # The edge refuses POSTs from pages of other sites itself, and asks who is calling: a caller
    # without a session gets 401 and no page to sign in.
    view: Any = csrf_exempt(functools.update_wrapper(functools.partial(answer, edge, rule), answer))
    view = transaction.non_atomic_requests(view)  # no transaction of the project's for a poll
    view.login_required = False  # for LoginRequiredMiddleware
    return view


urlpatterns: list[Any] = [
    path(text.removeprefix("/"), _view(edge, rule), name=f"lro-{rule.rpc}")
    for edge in operations().edges
    for text, (rule, _) in rules_by_path(edge, "<str:*>", "<path:*>").items()
]
