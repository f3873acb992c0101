"""Settings of all tests: repeatable examples, and no skips if the environment requires services."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import ssl
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import pytest

pytest_plugins = ["pytester", "tests.service_fixtures"]

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    # examples take longer on a busy machine
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

gc.disable()  # pytest keeps nearly all objects that it makes while it collects tests

# glibc keeps freed memory in one arena per thread, up to 60 MB in all; one arena is enough
M_ARENA_MAX = -8
if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
    mallopt(M_ARENA_MAX, 1)

# a shell starts background jobs with SIGINT ignored, but tests interrupt their child processes
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Test servers run on this machine, where a proxy would not reach them. Tests also check spans,
# which OTEL variables change.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.startswith("OTEL_"):
        del os.environ[name]

# Each httpx client loads the certificates of all authorities, which takes 70 ms of CPU. No test in
# this process contacts a server on the internet, so one certificate is enough.
bundles = {certifi.where(), os.environ.get("SSL_CERT_FILE", certifi.where())}
authority = tempfile.NamedTemporaryFile(suffix=".pem")  # noqa: SIM115 - until the process ends
authority.write(Path(certifi.where()).read_bytes().partition(b"-----END CERTIFICATE-----\n")[0])
authority.write(b"-----END CERTIFICATE-----\n")
authority.flush()
create_context = ssl.create_default_context


def create_small_context(*purpose: ssl.Purpose, **options: Any) -> ssl.SSLContext:
    """Return a context that trusts one authority instead of all authorities."""
    if options.get("cafile") in bundles:
        options["cafile"] = authority.name
    return create_context(*purpose, **options)


ssl.create_default_context = create_small_context


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from repeatedly scanning all tests and modules."""
    gc.collect()
    return_memory()
    # Older versions of Hypothesis look for referrers, which freezing would hide.
    if hypothesis.__version_info__ >= (6, 140):
        gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def free_memory() -> Iterator[None]:
    """Return the memory that a module's tests have freed to the system."""
    yield
    return_memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Remove the tracebacks, which keep frames alive, from errors that are parameters of tests."""
    for value in getattr(item, "callspec", item).__dict__.get("params", {}).values():
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under LRO_REQUIRE_SERVICES, make a skipped test fail, unless it is marked ``platform``."""
    report = yield
    # a log line with a lone surrogate could not be sent to the process that prints the report
    report.sections = [(title, plain(text)) for title, text in report.sections]
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("platform")
    if report.skipped and not expected:
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Under LRO_REQUIRE_SERVICES, make a module that skips itself (``importorskip``) fail."""
    report = yield
    if report.skipped:
        refuse_skip(report)
    return report


def return_memory() -> None:
    """Return freed memory to the system, because glibc keeps much of it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def plain(text: str) -> str:
    """Return the text with escapes in place of characters that UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that shows its reason, if LRO_REQUIRE_SERVICES is set."""
    if os.environ.get("LRO_REQUIRE_SERVICES"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"LRO_REQUIRE_SERVICES is set, but: {reason}"
