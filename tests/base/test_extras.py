"""A module that needs an extra says what to install if its library is missing."""

from __future__ import annotations

import importlib
import sys

import pytest

from lro.errors import MissingExtra

PARTS = [
    ("lro.prometheus", "prometheus_client", "lro.prometheus", "prometheus"),
    ("lro.executors.celery", "celery", "the Celery executor", "celery"),
    ("lro.grpc", "grpc", "the gRPC edge", "grpc"),
    ("lro.integrations.aiohttp", "aiohttp", "lro.integrations.aiohttp", "aiohttp"),
    ("lro.integrations.django", "django", "lro.integrations.django", "django"),
    ("lro.integrations.fastapi", "fastapi", "the integration into FastAPI", "fastapi"),
    ("lro.integrations.flask", "flask", "lro.integrations.flask", "flask"),
    ("lro.integrations.litestar", "litestar", "the integration into Litestar", "litestar"),
    ("lro.integrations.quart", "quart", "the integration into Quart", "quart"),
    ("lro.integrations.starlette", "starlette", "the integration into Starlette", "starlette"),
    ("lro.lint", "google.longrunning", "the linter", "protobuf"),
    ("lro.protobuf", "google.longrunning", "protobuf messages", "protobuf"),
    ("lro.stores.postgres", "psycopg", "the PostgreSQL store", "postgres"),
    ("lro_client.transports.grpc", "grpc", "the gRPC transport", "grpc"),
    ("lro_conform.client._grpc_peer", "grpc", "judging a client over gRPC", "grpc"),
    ("lro_conform.server._grpc", "grpc", "judging over gRPC", "grpc"),
]


def with_parts(name: str) -> list[str]:
    """Return the name of a module or package, and of its imported submodules."""
    return [name, *(one for one in [*sys.modules] if one.startswith(f"{name}."))]


@pytest.mark.parametrize(("module", "library", "part", "extra"), PARTS)
def test_import_without_the_optional_library_names_the_extra(
    module: str, library: str, part: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the optional library, an import raises MissingExtra, which names the extra."""
    for name in with_parts(library):
        monkeypatch.setitem(sys.modules, name, None)
    for name in with_parts(module):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtra) as caught:
        importlib.import_module(module)
    assert str(caught.value) == f"{part} needs the extra '{extra}': pip install 'lro[{extra}]'"
