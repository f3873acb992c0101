"""A journal on disk of operations that were started and not collected."""
