"""The verbose lines of oneDNN, MKL and bestof, and the work that they report."""
