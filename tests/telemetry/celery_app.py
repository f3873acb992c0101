"""The Celery app of these tests; its worker processes write their spans to a file."""

from __future__ import annotations

import os

from opentelemetry import trace

from tests.telemetry.collected import SPANS_FILE, provider_to_file

if SPANS_FILE in os.environ:  # only in a worker process
    trace.set_tracer_provider(provider_to_file(os.environ[SPANS_FILE]))

from tests.executors.celery_app import app, service

__all__ = ["app", "service"]
