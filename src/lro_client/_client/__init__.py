"""The clients, and the handles of operations that they return."""
