"""Leaves out what the Python here cannot have."""

import sys

collect_ignore = []
if sys.version_info < (3, 12):  # for which there is no Django 6, whose tasks these are
    collect_ignore.append("test_django_tasks.py")
