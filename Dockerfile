# The reference server: docs/how-to/container.md says how it is built and run. No step needs a shell.
FROM python:3.13-slim AS build
WORKDIR /build
RUN ["python", "-m", "venv", "/venv"]
COPY pyproject.toml hatch_build.py README.md LICENSE /build/
COPY src /build/src
RUN ["/venv/bin/pip", "install", "--no-cache-dir", "--disable-pip-version-check", ".[examples,fast,grpc,postgres]"]

FROM python:3.13-slim
# The user has no name, no home and no rights but on /data.
RUN ["install", "--directory", "--owner=10001", "--group=10001", "/data"]
COPY --from=build /venv /venv
COPY examples /app/examples
WORKDIR /app
ENV PATH=/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v1/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "examples.analysis"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--store", "sqlite:////data/operations.db"]
