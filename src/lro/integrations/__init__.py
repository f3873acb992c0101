"""Integrations of operations into web frameworks: routes, dependencies, errors, start and stop.

Each module is for one framework, and needs the extra of the same name: for
``lro.integrations.fastapi`` install ``lro[fastapi]``. ``lro.integrations.django`` is a Django app.
"""
