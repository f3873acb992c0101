"""An executor whose functions run in processes of their own, which can be killed."""

from lro.executors.processes._executor import ProcessExecutor

__all__ = ["ProcessExecutor"]
