"""Lookups over the bytes of an index file. Pure: the bytes in memory are the bytes of the file."""
