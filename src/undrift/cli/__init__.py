"""The command line: one file a command. Commands import what they need when called, so that help is instant."""

from undrift.cli.main import app, main

__all__ = ["app", "main"]
