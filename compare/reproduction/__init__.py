"""Stored results met again: repeated, compared with another, packed for others, and checked."""
