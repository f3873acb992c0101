"""Pages of the docs whose claims no snippet shows: each is read, and held against what happens."""
