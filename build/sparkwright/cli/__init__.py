"""The command line: one module a command, each of which parses, calls and renders.

`main` holds the table of commands and turns errors into messages and exit codes, `session` is
what a command works in, `output` shows events to a person.
"""
