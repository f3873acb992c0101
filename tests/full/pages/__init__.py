"""Tests of docs pages beyond their snippets: what a page claims is compared with the behaviour."""
