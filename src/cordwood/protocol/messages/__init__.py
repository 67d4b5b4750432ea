"""The messages of every API but Produce and Fetch, declared as data: a module per theme."""
