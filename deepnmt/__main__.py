"""`python -m deepnmt` is the command `deepnmt`."""

import sys

from deepnmt.cli import main

sys.exit(main())
