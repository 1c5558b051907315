"""What concerns the whole process: memory, threads, data loading, layouts and ranks."""
