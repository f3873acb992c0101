"""Metrics for Prometheus, right with any number of processes: the extra ``prometheus``.

:class:`MetricsApp` serves them by ASGI, that of :mod:`lro.wsgi` by WSGI; :func:`collector` is for
a registry of ``prometheus_client`` of your own.

Counters and histograms come from the totals that the store keeps of all processes on it, so that
any of them answers for all, and no number falls when one of them ends. They are at most some 15
seconds old. Gauges are of the process that answers, and carry its id in the label ``process``.
"""

from lro._engine.service import Service
from lro._prometheus import MetricsEdge, ServiceCollector
from lro.asgi import MetricsApp

__all__ = ["MetricsApp", "MetricsEdge", "ServiceCollector", "collector"]


def collector(service: Service) -> ServiceCollector:
    """The metrics of a service, for a registry of your own: ``REGISTRY.register(...)``.

    Of a store that cannot be read when they are collected there are only gauges.
    """
    return ServiceCollector(service)
