"""The Kafka wire protocol, sans I/O: bytes to requests, responses to bytes."""
