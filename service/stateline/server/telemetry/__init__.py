"""Reports of a server on itself and its workers: metrics, log of requests, pipelines' status."""
