"""The console: a page that shows operations, and the two reads of its own."""
