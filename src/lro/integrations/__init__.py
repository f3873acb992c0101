"""The edge as each framework has it: routes, dependencies, errors, start and stop.

Each module here is of one framework, and needs the extra of its name: ``lro.integrations.fastapi``
is installed by ``lro[fastapi]``. Django's is an app, ``lro.integrations.django``.
"""
