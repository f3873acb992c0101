"""Where operations are kept. Import the store you use: each may need an extra."""
