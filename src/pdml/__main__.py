"""`python -m pdml`."""

import sys

from pdml.cli import main

sys.exit(main())
