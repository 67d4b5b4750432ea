"""``cordwood serve`` on a disk that kills: ``python -m support.sink_broker DATA LISTEN KILLS``."""

from __future__ import annotations

import sys
from unittest.mock import patch

from cordwood.config.loading import load_broker_config
from cordwood.server import broker
from cordwood.server.running import run_server
from support.killing import KillingFiles, Kills


def main(data: str, listen: str, kills: str) -> None:
    """Serve until killed."""
    config, _ = load_broker_config({"log.dirs": data, "listeners": listen})
    with patch.object(broker, "files_of", lambda path, config: KillingFiles(Kills(kills))):
        run_server(config, lambda address, *_: print(f"cordwood: ready on {address}", flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
