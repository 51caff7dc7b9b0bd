# Stateline, as two images. The last one, which `docker build -t stateline .` makes, has Spark's JVM; `slim` has not, and
# is enough for workers and servers:
#
#     docker build --target slim -t stateline-slim .
#
# Put an application on top, or mount one at /app:
#
#     FROM stateline-slim
#     COPY flights.py /app/
#     CMD ["serve", "flights:app"]

FROM python:3.12-slim-bookworm AS build
# What is installed besides, by names of pyproject.toml's extras, with commas between them. `slim` alone can be without spark.
ARG EXTRAS=spark,sql
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY service service
COPY store store
# The lock only pins: packages that just the tests need stay out of the image, and so does pip. uv compares hashes of
# constraints, which pip cannot. Spark's jars, 450 MB, are for those who run pipelines.
RUN python -m venv --without-pip /opt/stateline \
    && pip install --no-cache-dir 'uv>=0.8' \
    && uv pip install --python /opt/stateline/bin/python --no-cache --constraint requirements.lock ".[$EXTRAS]" \
    && mkdir /opt/jars \
    && if test -d /opt/stateline/lib/python3.12/site-packages/pyspark; then \
        mv /opt/stateline/lib/python3.12/site-packages/pyspark/jars /opt/; fi

# Spark's Kafka connector, as jars in the folder where Stateline looks for them. Of pipelines alone.
FROM python:3.12-slim-bookworm AS connector
RUN apt-get update \
    && apt-get install --yes --no-install-recommends maven openjdk-17-jre-headless
COPY --from=build /src/service/stateline/spark/pom.xml /src/pom.xml
RUN mvn --quiet --batch-mode --file /src/pom.xml dependency:copy-dependencies -DoutputDirectory=/opt/connector

FROM python:3.12-slim-bookworm AS slim
RUN useradd --uid 10001 --create-home stateline \
    && install --directory --owner=stateline --group=stateline --mode=0750 /var/lib/stateline /app
COPY --from=build /opt/stateline /opt/stateline
# 0.0.0.0 is refused without tokens (server.tokens.file), unless server.insecure says that something else guards it.
ENV PATH="/opt/stateline/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    STATELINE_STATE_DIR=/var/lib/stateline \
    STATELINE_SERVER_HOST=0.0.0.0
USER stateline
WORKDIR /app
VOLUME /var/lib/stateline
EXPOSE 8000
# Of `serve` and `run`, on port 8000 and without TLS. Others answer nothing: start them with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# SIGTERM commits and stops; a stop may take 30 s (`docker stop --time 45`).
ENTRYPOINT ["stateline"]
CMD ["--help"]

# bookworm, because later Debian releases have no Java 17.
FROM slim AS stateline
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/jars /opt/stateline/lib/python3.12/site-packages/pyspark/jars
COPY --from=connector /opt/connector /opt/stateline/share/stateline/spark-jars
USER stateline
