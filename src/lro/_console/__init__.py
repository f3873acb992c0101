"""The console: a web page that shows operations, and the HTTP calls that only this page makes."""
