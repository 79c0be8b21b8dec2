"""``python -m sparkwright``."""

import sys

from sparkwright.cli.main import main

sys.exit(main())
