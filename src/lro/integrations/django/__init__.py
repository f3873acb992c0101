"""Operations in a Django project: an app with settings, URLs, permissions, a command and an admin.

Add ``"lro.integrations.django"`` to ``INSTALLED_APPS``, the dict ``LRO`` to the settings, and
``path("", include("lro.integrations.django.urls"))`` to ``urlpatterns``. The keys of ``LRO``:

- ``SERVICE``: the dotted path of the :class:`lro.Service`, such as ``"shop.work.service"``.
- ``CALLER``: the function, or its dotted path, that returns the name of a request's caller; by
  default :func:`signed_in_user`.
- ``PERMISSION``: a permission that ``request.user`` must have, such as ``"shop.use_operations"``.
- ``STARTS``, ``PARENTS``, ``TRUSTED_ORIGINS``, ``MAX_BODY``, ``POLL_SECONDS``: options of
  :class:`lro.http.OperationsEdge`.
- ``CONSOLE``: a path such as ``"/console"`` at which the console is served, or an
  :class:`lro.console.Console`.
- ``SCHEMA``: the schema of the PostgreSQL store, for the admin; by default ``"lro"``.
"""

from lro.errors import MissingExtra

try:
    import django.conf  # noqa: F401 - looks whether it is there
except ImportError as _exc:
    raise MissingExtra("lro.integrations.django", "django") from _exc

from lro.integrations.django._operations import signed_in_user, start, with_lifespan

__all__ = ["signed_in_user", "start", "with_lifespan"]
