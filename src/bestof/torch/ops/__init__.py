"""Operations: what a call is, and the rows that can compute it. They know no consumer."""
