"""Keys and values as bytes, and back."""
