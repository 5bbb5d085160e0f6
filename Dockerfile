# syntax=docker/dockerfile:1
#
#   docker build --build-arg GEOFOLD_COMMIT=$(git rev-parse --short=12 HEAD) -t geofold .
#
# The binary with TLS and SCRAM to Kafka, on a small Debian, as a user without rights. It wants a configuration at
# /etc/geofold/geofold.toml, or its keys as GEOFOLD_… variables on top of one.

FROM rust:1.94-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends libssl-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG GEOFOLD_COMMIT=""
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --features tls --bin geofold \
 && cp target/release/geofold /usr/local/bin/geofold

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin geofold
COPY --from=build /usr/local/bin/geofold /usr/local/bin/geofold
# The sample map, for a first try.
COPY config/map-55.json /usr/share/geofold/map-55.json
USER 10001:10001
ENV GEOFOLD_CONFIG=/etc/geofold/geofold.toml
EXPOSE 9464 9465 9466
# For a collector: geofold health --collector. It needs no more than the configuration that the worker has.
HEALTHCHECK --interval=15s --timeout=6s --start-period=30s --retries=4 CMD ["geofold", "health"]
# It drains for at most shutdown.drain_timeout, 25 s by default: docker stop --time 40.
STOPSIGNAL SIGTERM
ENTRYPOINT ["geofold"]
CMD ["run"]
