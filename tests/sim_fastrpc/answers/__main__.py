"""Run one scenario: python -m tests.sim_fastrpc.answers LIBRARY SCENARIO."""

import sys

from tests.sim_fastrpc.answers import control, handles, memory, queues  # noqa: F401
from tests.sim_fastrpc.answers.client import SCENARIOS, Client

library, name = sys.argv[1:]
SCENARIOS[name](Client(library))
