"""What brokers tell of themselves as JSON, and how it is followed."""
