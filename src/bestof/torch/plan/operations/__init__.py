"""The operations that plans compute by native kernels: one file each, one table."""
