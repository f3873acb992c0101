"""Tests of the console in a real browser: the system's Chromium, driven by Playwright."""
