"""The HTTP edge without a framework: requests in, replies out (spec §5, §6)."""
