"""Connections and bytes: HTTP's protocol, TLS, bodies, and their bounds."""
