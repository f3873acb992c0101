"""Executors, which run the work. Import only the module that you use: some need an extra."""
