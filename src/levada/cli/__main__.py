"""`python -m levada.cli`."""

import sys

from levada.cli import main

sys.exit(main())
