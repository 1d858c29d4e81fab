"""Let tenants and priorities have turns in a queue."""
