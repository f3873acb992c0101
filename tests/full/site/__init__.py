"""The docs as a web site: built once for these tests, read as files and in Chromium."""
