"""What concerns the whole process: memory, data loading, layouts and ranks."""
