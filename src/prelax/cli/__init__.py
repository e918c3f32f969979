"""The commands: ``prelax COMMAND --help`` shows an example of each."""

from prelax.cli.app import app, main

__all__ = ["app", "main"]
