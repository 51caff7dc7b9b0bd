"""What a server tells of itself and of its workers: metrics, log of requests, pipelines' status."""
