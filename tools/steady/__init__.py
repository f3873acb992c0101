"""Runs the tests again and again under conditions that disturb them."""
