"""Executors, which run the work. Import the one that you use, since each may need an extra."""
