"""Commands of operators: serve, topic, group, top, doctor."""
