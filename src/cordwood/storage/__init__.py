"""The only layer that touches the disk."""
