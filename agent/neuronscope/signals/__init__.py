"""What is observed: values, records, typed views, and the registry of names."""
