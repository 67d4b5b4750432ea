"""Signing checkpoints of the partitions of a data directory that this process writes."""

from __future__ import annotations

import contextlib

from cordwood.disk import Files
from cordwood.errors import SigningUnavailable
from cordwood.host import process
from cordwood.storage.chain.checkpoints import sign_checkpoint, signing_key, verifier_key
from cordwood.storage.chain.files import KeptChain
from cordwood.storage.log import PartitionLog
from cordwood.storage.meta import Lifecycle


class CheckpointSigner:
    """Signs with the key of the directory at *data*, whose UUID is *broker*. From any thread."""

    def __init__(self, files: Files, data: str, broker: str, lifecycle: Lifecycle) -> None:
        self._files = files
        self._data = data
        self._broker = broker
        self._lifecycle = lifecycle

    def sign(self, log: PartitionLog, chain: KeptChain) -> str:
        """Sign a checkpoint of the chain of *log*, keep the note and return it. Durable on return.

        The key is created on first use.

        Raises:
            EvidenceRefused: If the tree does not extend every checkpoint that was signed before.
            SigningUnavailable: If the package that signs is not installed.
        """
        self._lifecycle.check_open()
        state = log.state
        key = signing_key(self._files, self._data, self._broker, process.new_seed)
        return sign_checkpoint(
            self._files,
            self._data,
            self._broker,
            state.topic,
            state.partition,
            chain,
            key,
            state.record_format,
        )

    def sign_compaction(self, log: PartitionLog, chain: KeptChain) -> None:
        """Sign a checkpoint of the chain of *log* if a checkpoint was ever signed in this directory.

        Without a key there is no verifier to check a signature with. The statement of the compaction is in
        the tree, so the first checkpoint covers it.
        """
        if verifier_key(self._files, self._data) is not None:
            with contextlib.suppress(SigningUnavailable):
                self.sign(log, chain)
