"""The adapters: what each library or runtime must tell the engine.  Imported by name, on demand."""
