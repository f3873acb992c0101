"""The service and everything that runs in it, with the ports to stores and executors."""
