"""Tests of the clients in docs/how-to/clients-in-other-languages.md."""
