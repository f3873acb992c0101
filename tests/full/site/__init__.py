"""The docs site: built once for these tests, and tested as files and in Chromium."""
