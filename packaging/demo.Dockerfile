# The demo as a client of two servers that run already: see compose.yaml.
FROM debian:bookworm-slim
# Debian removes a version when the next one comes, so none is named.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 redis-tools postgresql-client && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /demo
COPY tools/demo ./demo
COPY tools/harness ./harness
# nobody
USER 65534
ENTRYPOINT ["python3", "-m", "demo", "--picture", "/tmp/demo.svg"]
