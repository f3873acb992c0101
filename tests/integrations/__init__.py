"""Tests of each integration with the real framework, over real sockets."""
