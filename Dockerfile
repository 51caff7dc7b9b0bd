# Stateline with Spark's JVM. Put an application on top, or mount one at /app:
#
#     FROM stateline
#     COPY flights.py /app/
#     CMD ["run", "flights:app"]

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY service service
COPY store store
# The lock only pins: packages that just the tests need stay out of the image.
RUN python -m venv /opt/stateline \
    && /opt/stateline/bin/pip install --no-cache-dir --constraint requirements.lock .

# bookworm, because later Debian releases have no Java 17.
FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home stateline \
    && install --directory --owner=stateline --group=stateline --mode=0750 /var/lib/stateline /app
COPY --from=build /opt/stateline /opt/stateline
ENV PATH="/opt/stateline/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    STATELINE_STATE_DIR=/var/lib/stateline \
    STATELINE_SERVER_HOST=0.0.0.0
USER stateline
WORKDIR /app
VOLUME /var/lib/stateline
EXPOSE 8000
# SIGTERM commits and stops; a stop may take 30 s (`docker stop --time 45`).
ENTRYPOINT ["stateline"]
CMD ["--help"]
