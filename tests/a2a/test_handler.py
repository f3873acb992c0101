"""What the handler is given, and what it does with it: methods, hooks, parents, limits."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.types import AgentCard, GetExtendedAgentCardRequest, GetTaskRequest, Message
from a2a.types import SendMessageRequest, Task
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
)
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

import lro
from lro.a2a import SCHEMAS_URI, Handler, add_to, agent_card, routes
from lro.errors import DeclarationError, InvalidArgument, MethodNotSupported
from lro.testing import Faulty  # type: ignore[attr-defined]
from tests.a2a.serving import VERSION, make_agent, message
from tests.http.counting_service import DOMAIN, CountRequest, CountResponse, CountService, build

CONTEXT = ServerCallContext(state={"headers": {"x-caller": "ann"}})
AT_ONCE = {"returnImmediately": True}
