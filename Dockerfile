#   DOCKER_BUILDKIT=1 docker build --build-arg GEOFOLD_COMMIT=$(git rev-parse --short=12 HEAD) -t geofold .
#
# The binary with TLS and SCRAM to Kafka, with the libraries and certificates that it needs and nothing else: no shell, no
# package manager. It runs as a user without rights, also with a read-only root. It wants a configuration at
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

FROM debian:bookworm-slim AS files
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin geofold
COPY --from=build /usr/local/bin/geofold /usr/local/bin/geofold
# The sample map, for a first try.
COPY config/map-55.json /usr/share/geofold/map-55.json
# status.d tells scanners which packages the files are of; OpenSSL looks for certificates under /usr/lib/ssl.
RUN set -e; umask 022; mkdir -p /image/var/lib/dpkg/status.d /image/usr/lib; cd /image; install -d -m 1777 tmp var/tmp \
 && for package in base-files ca-certificates libc6 libgcc-s1 libssl3 zlib1g; do dpkg-query --status $package >var/lib/dpkg/status.d/$package; done \
 && ldd /usr/local/bin/geofold | grep -o '/[^ ]*' | xargs cp --dereference --parents --target-directory . \
 && cp --dereference --parents /etc/os-release /etc/ssl/certs/ca-certificates.crt /etc/ssl/openssl.cnf /etc/passwd /etc/group . \
 && ln -s certs/ca-certificates.crt etc/ssl/cert.pem && ln -s /etc/ssl usr/lib/ssl && echo 'hosts: files dns' >etc/nsswitch.conf \
 && cp --parents /usr/local/bin/geofold /usr/share/geofold/map-55.json .

FROM scratch
COPY --from=files /image /
USER 10001:10001
ENV PATH=/usr/local/bin
ENV GEOFOLD_CONFIG=/etc/geofold/geofold.toml
EXPOSE 9464 9465 9466
# For a collector: geofold health --collector. It needs no more than the configuration that the worker has.
HEALTHCHECK --interval=15s --timeout=6s --start-period=30s --retries=4 CMD ["geofold", "health"]
# It drains for at most shutdown.drain_timeout, 25 s by default: docker stop --time 40.
STOPSIGNAL SIGTERM
ENTRYPOINT ["geofold"]
CMD ["run"]
