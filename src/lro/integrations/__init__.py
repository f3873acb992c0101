"""The edge as each framework has it: routes, dependencies, errors, start and stop.

Each module here is of one framework, and needs the extra of its name: ``lro.integrations.fastapi``,
``lro.integrations.starlette``, ``lro.integrations.litestar``, ``lro.integrations.quart``.
"""
