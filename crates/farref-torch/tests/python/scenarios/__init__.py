"""What is tried, one file each."""
