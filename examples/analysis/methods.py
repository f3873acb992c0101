"""Declares the ten methods: the function and the messages of each endpoint."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from examples.analysis import messages as m
from examples.analysis.messages import AnalysisMetadata, Image
from examples.analysis.progress import QUEUED, Progress, settle, target_of
from examples.analysis.router import NAMES
from lro import Job, Method, Service

PACKAGE: Final = "lro.examples.analysis.v1.ImageAnalysis"
TIME_LIMIT: Final = timedelta(seconds=60)

AnalysisMethod = Method[Any, Any, AnalysisMetadata]
_Job: TypeAlias = Job[AnalysisMetadata]
_Response = TypeVar("_Response")


def first_picture(request: Any) -> Image:
    """Return the first picture of a request, or an empty picture if it has none."""
    found = request.image or next(iter(getattr(request, "frames", ())), None)
    return found or Image()


def first_metadata(verb: str, request: Any) -> AnalysisMetadata:
    """Return the metadata that callers see before the work begins."""
    return AnalysisMetadata(verb=verb, target=target_of(first_picture(request)), stage=QUEUED)


# These functions are defined at module level, because worker processes import them by name.


def detect(request: m.DetectRequest, job: _Job) -> m.DetectResponse:
    return _work("detect", m.DetectResponse, request, job)


def verify(request: m.VerifyRequest, job: _Job) -> m.VerifyResponse:
    return _work("verify", m.VerifyResponse, request, job)


def compare(request: m.CompareRequest, job: _Job) -> m.CompareResponse:
    return _work("compare", m.CompareResponse, request, job)


def segment(request: m.SegmentRequest, job: _Job) -> m.SegmentResponse:
    return _work("segment", m.SegmentResponse, request, job)


def classify(request: m.ClassifyRequest, job: _Job) -> m.ClassifyResponse:
    return _work("classify", m.ClassifyResponse, request, job)


def authenticate(request: m.AuthenticateRequest, job: _Job) -> m.AuthenticateResponse:
    return _work("authenticate", m.AuthenticateResponse, request, job)


def score(request: m.ScoreRequest, job: _Job) -> m.ScoreResponse:
    return _work("score", m.ScoreResponse, request, job)


def explain(request: m.ExplainRequest, job: _Job) -> m.ExplainResponse:
    return _work("explain", m.ExplainResponse, request, job)


def extract(request: m.ExtractRequest, job: _Job) -> m.ExtractResponse:
    return _work("extract", m.ExtractResponse, request, job)


def track(request: m.TrackRequest, job: _Job) -> m.TrackResponse:
    return _work("track", m.TrackResponse, request, job)


def register(service: Service) -> Mapping[str, AnalysisMethod]:
    """Declare all ten methods at a service, and return them by their names in the router."""
    return {verb: _declare(service, globals()[verb]) for verb in NAMES}


def _declare(service: Service, function: Callable[..., Any]) -> AnalysisMethod:
    verb = function.__name__
    decorate: Callable[..., AnalysisMethod] = service.method(
        f"{PACKAGE}.{verb.capitalize()}",
        validate=lambda request: _module(verb).check(request),
        final_metadata=settle,
        time_limit=TIME_LIMIT,
        path=f"/v1/{verb}",
    )
    return decorate(function)


def _work(verb: str, _: type[_Response], request: Any, job: _Job) -> _Response:
    module = _module(verb)
    # If an earlier worker was lost, job.metadata has its progress, which must not fall.
    progress = Progress(job, job.metadata or first_metadata(verb, request), module.STAGES)
    response: _Response = getattr(module, verb)(request, progress)
    return response


@functools.cache
def _module(verb: str) -> Any:
    # Import at the first call, not at startup: the import takes a second, for which health checks
    # would have to wait.
    return importlib.import_module(f"examples.analysis.verbs.{verb}")
