"""The services of these tests."""

from tests.azure.works import make_media

__all__ = ["make_media"]
