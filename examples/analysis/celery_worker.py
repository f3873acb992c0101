"""Run the analyses of servers that use ``--executor celery``::

    ANALYSIS_STORE=postgresql://... ANALYSIS_BROKER=redis://... \\
        celery -A examples.analysis.celery_worker worker --concurrency 2
"""

from __future__ import annotations

import attrs

from examples.analysis.deployment import Deployment
from examples.analysis.methods import register

deployment = attrs.evolve(Deployment.of_environment(), executor="celery")
app = deployment.celery
service = deployment.make_service()
register(service)
