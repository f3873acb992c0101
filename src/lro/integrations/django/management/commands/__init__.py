"""The command ``lro``."""
