"""The service and all that runs in it; its ports to stores and executors."""
