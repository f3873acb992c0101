"""Fixtures of the tests of lro.azure."""

from tests.azure.works import make_media

__all__ = ["make_media"]
