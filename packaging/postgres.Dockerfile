# PostgreSQL with the extension: docker build -f packaging/postgres.Dockerfile -t fencelock-postgres .
# Built beside the server that it is for, with the headers of its own minor version (PG_VERSION is the image's). When
# those are not to be had any more, the image is old: pull it again.
FROM rust:1.95-bookworm AS rust

FROM postgres:18-bookworm AS build
ENV CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
# Debian removes a version when the next one comes, so none is named.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends gcc libc6-dev make python3 libclang-dev "postgresql-server-dev-18=$PG_VERSION" && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN make all PG_CONFIG=/usr/lib/postgresql/18/bin/pg_config && \
    make install PG_CONFIG=/usr/lib/postgresql/18/bin/pg_config DESTDIR=/installed

FROM postgres:18-bookworm
COPY --from=build /installed /
