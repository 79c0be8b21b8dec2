"""Finished runs in the forms of Prometheus, aiperf, guidellm and llama-benchy, and as our own files.

`formats` is the file to open first. Each form has its module; `definitions` says of every field how it is
computed and where that differs from the report's own aggregate of a similar name.
"""
