"""Stores of operations. Import the one that you use, since each may need an extra."""
