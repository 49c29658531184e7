"""One pipeline step per file: plain functions above, thin Prefect tasks below."""
