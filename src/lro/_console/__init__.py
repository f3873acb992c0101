"""The console: a page that shows operations, and the calls that only this page makes."""
