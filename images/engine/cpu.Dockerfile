# vLLM on the CPU with a tiny Gemma 4 and its MTP assistant: the real server and the real flags, for machines without a GPU.
# Linux on x86-64 only. The base is pinned by tag; where your registry tells its digest, pin that: --build-arg BASE=debian@sha256:...
#
# Left out to make 2.7 GB of 6.3 GB: NVIDIA's libraries and triton (cpu-excludes.txt). PyTorch links against the former even
# where it never calls them, so cuda_stubs.py puts stubs in their place. PyTorch's headers go too.
# glibc gives large blocks back at every operation and faults them in again; MALLOC_* keeps them.
# Importing what a server needs writes its bytecode, and only that: a container's root file system may be read-only.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update -q && apt-get install -qy --no-install-recommends python3-venv gcc binutils libnuma1
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
COPY images/requirements-uv.txt images/engine/requirements-cpu.txt /build/
RUN --mount=type=secret,id=ca-bundle,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv /opt/uv && /opt/uv/bin/pip install -q --no-cache-dir --require-hashes -r /build/requirements-uv.txt
COPY images/engine/cuda_stubs.py images/engine/tiny_gemma4.py /build/
RUN --mount=type=secret,id=ca-bundle,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv --without-pip /opt/venv \
 && /opt/uv/bin/uv pip install -q --no-cache --no-deps --require-hashes --python /opt/venv/bin/python -r /build/requirements-cpu.txt \
 && cd /opt/venv/lib/python3.11/site-packages \
 && python3 /build/cuda_stubs.py . \
 && rm -r torch/include torch/bin/protoc* torch/lib/libtorch_cuda_linalg.so \
 && /opt/venv/bin/python /build/tiny_gemma4.py /models \
 && /opt/venv/bin/python -c 'import vllm.entrypoints.openai.api_server, vllm.v1.executor.multiproc_executor, \
        vllm.v1.worker.cpu_worker, vllm.v1.attention.backends.cpu_attn, \
        vllm.model_executor.models.gemma4_mm, vllm.model_executor.models.gemma4_mtp'
# The plugin last: it changes oftener than what it is put into.
COPY images/engine/pyproject.toml images/engine/install.py images/engine/sbom.py /build/
COPY images/engine/gemma_engine /build/gemma_engine
RUN cd /build && /opt/venv/bin/python install.py && cd / \
 && /opt/venv/bin/python -c 'import gemma_engine.model, gemma_engine.statlogger, gemma_engine.probe, gemma_engine.budget, gemma_engine.shedding' \
 && /opt/venv/bin/python /build/sbom.py > /build/sbom.cdx.json

FROM ${BASE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends python3 libnuma1 ca-certificates \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/* \
 && useradd --uid 2000 --user-group --home-dir /cache --create-home --shell /usr/sbin/nologin vllm
COPY --from=build /opt/venv /opt/venv
COPY --from=build /models /models
COPY --from=build /build/sbom.cdx.json /opt/gemma-serving/
COPY images/engine/chat_template_gemma4.jinja /opt/gemma-serving/
LABEL org.opencontainers.image.title="vllm-cpu-tiny-gemma4" \
      org.opencontainers.image.description="vLLM on the CPU with a tiny random Gemma 4, for tests and demos" \
      org.opencontainers.image.version="0.32.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/cache \
    HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824 TORCH_COMPILE_DISABLE=1
USER 2000:2000
WORKDIR /cache
EXPOSE 8000
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]
