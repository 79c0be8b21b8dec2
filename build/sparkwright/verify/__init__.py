"""Verification of a running server: load, counters, logs and answers, judged.

`plan` and `suite` are the files to open first. A run goes cell by cell: a check *plans* cells (`Cell`), the
suite sends their requests and records the observations (`Observation`), the check *judges* observations and
boot facts and nothing else (`Finding`). The journal holds all of that, so that a run can be killed and
resumed, and judged again by a later version. This package runs beside any server: it imports neither torch
nor vLLM.
"""
