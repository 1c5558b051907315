"""Verify a plan against its model before it is handed out."""
