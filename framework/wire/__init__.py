"""Define the wire format: payloads, their JSON, their compression, the names of keys. Pure: no Redis, no logging."""
