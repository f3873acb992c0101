"""What holds for every test: the same examples each time, and no skip where all is to be had."""

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
    # How fast examples are made depends on how busy the machine is.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

gc.disable()  # while tests are collected, nearly all that is made is kept

# glibc keeps what each thread has freed apart from that of others, which adds up to 60 MB.
M_ARENA_MAX = -8
if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
    mallopt(M_ARENA_MAX, 1)

# A shell starts what runs in the background with this ignored, and tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers of tests are on this machine, which no proxy reaches, and spans are looked at.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.startswith("OTEL_"):
        del os.environ[name]

# Each client of httpx reads the certificates of all authorities, which takes 70 ms of CPU. No test
# asks a server of the internet from this process, so one of them is enough.
bundles = {certifi.where(), os.environ.get("SSL_CERT_FILE", certifi.where())}
authority = tempfile.NamedTemporaryFile(suffix=".pem")  # noqa: SIM115 - until the process ends
authority.write(Path(certifi.where()).read_bytes().partition(b"-----END CERTIFICATE-----\n")[0])
authority.write(b"-----END CERTIFICATE-----\n")
authority.flush()
create_context = ssl.create_default_context


def create_small_context(*purpose: ssl.Purpose, **options: Any) -> ssl.SSLContext:
    """Return a context that trusts one authority where it is to trust all of them."""
    if options.get("cafile") in bundles:
        options["cafile"] = authority.name
    return create_context(*purpose, **options)


ssl.create_default_context = create_small_context


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from going through all tests and modules again and again."""
    gc.collect()
    return_memory()
    if hypothesis.__version_info__ >= (6, 140):  # older ones look for what refers to their own
        gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def free_memory() -> Iterator[None]:
    """Give the system back what a module's tests have freed."""
    yield
    return_memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Take from errors that are arguments of tests the frames in which they were raised."""
    for value in getattr(item, "callspec", item).__dict__.get("params", {}).values():
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skipped test fail under LRO_REQUIRE_SERVICES, unless it is marked ``platform``."""
    report = yield
    # Half a surrogate pair in a log line could not be sent to the process that prints the report.
    report.sections = [(title, plain(text)) for title, text in report.sections]
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("platform")
    if report.skipped and not expected:
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself, as ``importorskip`` does."""
    report = yield
    if report.skipped:
        refuse_skip(report)
    return report


def return_memory() -> None:
    """Give back freed memory, of which glibc keeps large parts."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def plain(text: str) -> str:
    """Return a text that has a form in UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that gives its reason, where services are promised."""
    if os.environ.get("LRO_REQUIRE_SERVICES"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"LRO_REQUIRE_SERVICES is set, but: {reason}"
