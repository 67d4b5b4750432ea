"""Commands of operators: serve, topic, group, transaction, audit, top, doctor."""
