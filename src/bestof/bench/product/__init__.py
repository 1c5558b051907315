"""Matrix products by bestof and by other libraries, measured in turn."""
