"""A store node of `LocalStore`: `python -m ...store_node HOST:PORT BYTES MASTER DESCRIPTOR`.

Lends memory until it is killed, and says so by writing to the descriptor.

Mooncake's own service does the same, and has a REST API besides that listens on every interface and asks nobody who
they are.
"""

from __future__ import annotations

import os
import signal
import sys

#: For its own copies, bytes.
BUFFER_BYTES = 16 << 20


def main(name: str, size: int, master: str, telling: int) -> None:
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found, import-untyped]

    store = MooncakeDistributedStore()
    if store.setup(name, "P2PHANDSHAKE", size, BUFFER_BYTES, "tcp", "", master) != 0:
        sys.exit(f"Mooncake does not start a node of {size} bytes for the master {master}")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.write(telling, b"1")
    os.close(telling)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
