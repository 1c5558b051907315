"""Records a running program: verbose lines, operations, modules and clocks."""
