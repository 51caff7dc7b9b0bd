"""The worker itself: its loop, the records it processes next, its figures."""
