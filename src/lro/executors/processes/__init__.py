"""An executor that runs functions in child processes, which can be killed."""

from lro.executors.processes._executor import ProcessExecutor

__all__ = ["ProcessExecutor"]
