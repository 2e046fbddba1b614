"""``python -m leanbayes``."""

import sys

from .cli import main

sys.exit(main())
