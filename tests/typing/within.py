"""Types of ``within``: blocking connections of each library are accepted, async ones not."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import sqlite3

import psycopg
import sqlalchemy
from django.db import connection as of_django
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

import lro
from lro.adapters import TransactionalStore
from lro.stores.postgres import PostgresStore
from lro.stores.sqlite import SQLiteStore
from tests.typing.messages import ResizeMetadata, ResizeRequest, ResizeResponse


async def connections(
    resize: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata],
    of_psycopg: psycopg.Connection,
    of_sqlite: sqlite3.Connection,
    of_sqlalchemy: sqlalchemy.Connection,
    session: Session,
    scoped: scoped_session[Session],
    asynchronous: psycopg.AsyncConnection,
    asynchronous_session: AsyncSession,
) -> None:
    """``within`` accepts blocking connections and sessions only."""
    request = ResizeRequest()
    resize.start(request, within=of_psycopg)
    resize.start(request, within=of_sqlite)
    resize.start(request, within=of_sqlalchemy)
    resize.start(request, within=session)
    resize.start(request, within=scoped)
    resize.start(request, within=of_django)
    await resize.start_async(request, within=of_sqlite)
    resize.start(request, within=asynchronous)  # type: ignore[arg-type]
    resize.start(request, within=asynchronous_session)  # type: ignore[arg-type]
    resize.start(request, within="connection")  # type: ignore[arg-type]


def stores(postgres: PostgresStore, sqlite: SQLiteStore) -> list[TransactionalStore]:
    """Return the stores that can join a transaction."""
    return [postgres, sqlite]
