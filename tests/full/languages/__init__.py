"""Clients in other languages, as docs/how-to/clients-in-other-languages.md has them."""
