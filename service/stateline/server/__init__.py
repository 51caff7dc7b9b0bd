"""The HTTP server: `create_app` makes the application, `serve` runs it."""

from stateline.server.main import create_app, serve, serve_inherited

__all__ = ["create_app", "serve", "serve_inherited"]
