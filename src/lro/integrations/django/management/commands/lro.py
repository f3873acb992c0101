"""``manage.py lro``: check the store, purge expired operations, or run a worker."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from lro.errors import Unavailable
from lro.integrations.django._operations import configured, service


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """The command ``lro``, which acts on the service that the setting ``LRO`` names."""

    help = "Check whether the store can be used, purge what has expired, or be a worker."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument that names the action: check, purge or worker."""
        parser.add_argument("what", choices=("check", "purge", "worker"))

    def handle(self, *, what: str, **_: Any) -> None:
        """Run the action.

        Raises:
            CommandError: The action failed.
        """
        if what == "check":
            self._check()
            return
        from lro.cli import main

        status = main([what, ":".join(configured()["SERVICE"].rsplit(".", 1))])
        if status:
            raise CommandError(f"lro {what} has failed", returncode=status)

    def _check(self) -> None:
        try:
            service().store.find(("operations/check",))  # any name will do
        except Unavailable as exc:
            raise CommandError(str(exc)) from exc
        methods = len(service().edges.specs)
        self.stdout.write(f"The {type(service().store).__name__} can be used; methods: {methods}.")
