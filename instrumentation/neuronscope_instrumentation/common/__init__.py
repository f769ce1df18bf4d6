"""What several adapters share: reading foreign values, parts of messages, clients of one generator."""
