"""`python -m npurt.serve.engine SOCKET`: the process of an engine."""

import socket
import sys

from npurt.serve.engine.batched import Batched
from npurt.serve.engine.worker import work

if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])), Batched)
