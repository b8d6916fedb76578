"""The ``dissensus`` command: thin, so that every command is one function call of the library."""

from dissensus.cli.app import app, main

__all__ = ["app", "main"]
