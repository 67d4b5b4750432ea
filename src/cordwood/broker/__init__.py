"""Topics, producers and groups in domain words: no sockets, no wire types."""
