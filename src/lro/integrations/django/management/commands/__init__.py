"""The package of the command ``manage.py lro``."""
