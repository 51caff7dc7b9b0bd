"""SQL over HTTP: `/v1/sql`."""
