"""The exporters: what ships records out of the process.  Imported by name, on demand."""
