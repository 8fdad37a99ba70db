# Redis with the module: docker build -f packaging/redis.Dockerfile -t fencelock-redis .
FROM rust:1.95-bookworm AS build
# Headers of the C library come with the image; libclang makes bindings of the module API.
# Debian removes a version when the next one comes, so none is named.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN make module

FROM redis:7.2-bookworm
COPY --from=build /src/target/release/libredis_fencelock.so /usr/lib/redis/modules/redis_fencelock.so
CMD ["redis-server", "--loadmodule", "/usr/lib/redis/modules/redis_fencelock.so"]
