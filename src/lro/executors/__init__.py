"""Where work runs. Import the executor you use: each may need an extra."""
