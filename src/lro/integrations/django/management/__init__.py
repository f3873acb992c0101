"""The package of commands that Django adds to ``manage.py``."""
