"""The Kafka server: asyncio sockets <-> protocol <-> broker; limits and back-pressure."""
