"""Tests of several processes on one database: all agree on its records and on who wins a race."""
