"""A tiny target and its drafter on one GPU: what the scripts for a card share.

`models` writes the model folders and has the arguments of engines, `load` says what is asked of the server
and what must come of it, `install` checks the installed wheel, `sessions` starts engines that end with their
script. `engine` is the process that serves, `worker` looks into vLLM's worker, `parts` has what processes
with an engine share. `scoring` says what greedy answers are judged by.
"""

import sys
from pathlib import Path

# From a copy of the sources: where this runs, nothing of this project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "build"))
