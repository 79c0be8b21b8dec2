"""Does the wheel serve as it should? Load, counters, logs and answers of a running server, judged.

`suite` is the file to open first. A run goes cell by cell: a check *plans* cells (`Cell`), the suite sends
their requests and notes everything that it sees (`Observation`), the check *judges* observations and boot
facts and nothing else (`Finding`). The journal holds all of that, so that a run can be killed and resumed,
and judged again by a later version. This room runs beside any server: it imports neither torch nor vLLM.
"""
