"""Tamper evidence as pure functions: hash chain, Merkle tree, signed notes, checkpoints and proofs."""
