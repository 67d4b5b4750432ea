"""Histories of many clients, recorded, and a checker of what they were promised."""
