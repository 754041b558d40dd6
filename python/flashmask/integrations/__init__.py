"""flashmask inside other packages. Nothing here is imported before it is asked for."""
