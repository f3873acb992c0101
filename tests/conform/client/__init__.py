"""Tests of the client kit: its peers and checks, and the clients that it judges."""
