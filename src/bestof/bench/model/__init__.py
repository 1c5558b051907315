"""`bestof bench model`: whole models, run by bestof and by other libraries."""
