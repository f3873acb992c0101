"""The ten methods: which function does the work of which endpoint, on which messages."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from examples.analysis import messages
from examples.analysis.messages import AnalysisMetadata, Image
from examples.analysis.progress import QUEUED, JobProgress, settle, target_of
from examples.analysis.router import NAMES
from lro import Job, Method, Service, WorkerLost

PACKAGE: Final = "lro.examples.analysis.v1.ImageAnalysis"
TIME_LIMIT: Final = timedelta(seconds=60)

AnalysisMethod = Method[Any, Any, AnalysisMetadata]


def first_picture(request: Any) -> Image:
    """The picture that a request is about, empty where it has none."""
    found = request.image or next(iter(getattr(request, "frames", ())), None)
    return found or Image()


def first_metadata(verb: str, request: Any) -> AnalysisMetadata:
    """What callers see before the work begins."""
    return AnalysisMetadata(verb=verb, target=target_of(first_picture(request)), stage=QUEUED)


def register(service: Service) -> Mapping[str, AnalysisMethod]:
    """Declare all ten at a service, by their names in the router."""
    return {verb: _method(service, verb) for verb in NAMES}


def _method(service: Service, verb: str) -> AnalysisMethod:
    def work(request: Any, job: Job[AnalysisMetadata]) -> Any:
        module = _module(verb)
        # job.metadata may be the progress of a lost worker, which must not fall.
        metadata = job.metadata or first_metadata(verb, request)
        progress = JobProgress(job, metadata, module.STAGES)
        return getattr(module, verb)(request, progress)

    name = verb.capitalize()
    decorate: Callable[..., AnalysisMethod] = service.method(
        f"{PACKAGE}.{name}",
        request=getattr(messages, name + "Request"),
        response=getattr(messages, name + "Response"),
        metadata=AnalysisMetadata,
        validate=lambda request: _module(verb).check(request),
        settle=settle,
        time_limit=TIME_LIMIT,
        worker_lost=WorkerLost.RETRY,  # the same request gives the same response
    )
    return decorate(work)


@functools.cache
def _module(verb: str) -> Any:
    # Imported by the first call: scikit-image takes a second, for which health must not wait.
    return importlib.import_module(f"examples.analysis.verbs.{verb}")
