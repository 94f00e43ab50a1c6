"""What `viscos impute` does with its items: batches, what is said of them, and the files that are left."""
