"""`python -m prefix_middleware.demo`."""

import sys

from prefix_middleware.demo import main

sys.exit(main(sys.argv[1:]))
