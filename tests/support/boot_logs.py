"""Logs of vLLM's start, made up line by line after the wording of releases 0.24.0 and 0.33.0."""

from dataclasses import dataclass

__all__ = ["Boot"]


@dataclass(frozen=True)
class Boot:
    """The log of one start.

    Attributes:
        dialect: ``0.24`` or ``0.33``.
        runner: ``v1`` or ``v2``.
        k: drafted tokens a step; 0 without speculation.
        estimate: of the graphs' memory, as the log words it; empty where it is absent.
        sizes: capture sizes as configured.
        captured: how many graphs are captured for mixed batches.
        mode: of graphs, as configured.
        downgraded: what the worker makes of the mode; empty if it stays.
        kv: type of the KV cache.
    """

    dialect: str = "0.24"
    runner: str = "v1"
    k: int = 7
    estimate: str = "1.03"
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 64)
    captured: int = 5
    mode: str = "FULL_AND_PIECEWISE"
    downgraded: str = ""
    kv: str = "fp8_e4m3"

    @property
    def text(self) -> str:
        """The whole log."""
        return "\n".join((*self.front(), *self.config(), *self.memory(), *self.graphs(), *self.end())) + "\n"

    def api(self, where: str, line: str) -> str:
        """Return a line of the front end's."""
        return f"(APIServer pid=100) INFO 07-01 10:00:00 [{where}] {line}"

    def engine(self, where: str, line: str, level: str = "INFO") -> str:
        """Return a line of the engine's."""
        return f"(EngineCore pid=101) {level} 07-01 10:00:05 [{where}] {line}"

    def front(self) -> list[str]:
        old = self.dialect == "0.24"
        where = "api_utils.py:339" if old else "startup.py:38"
        logo = (
            f"\n ▄▄ ▄█ █     █     █ ▀▄▀ █  version \x1b[97;1m{self.dialect}.0\x1b[0m\n  █▄█▀ █     █     █"
        )
        arguments = (
            "{'model_tag': 'some/model', 'max_num_seqs': 64, 'gpu_memory_utilization': 0.7, 'api_key': '***'}"
        )
        return [
            "/usr/bin/python -m vllm.entrypoints.cli.main serve some/model",
            "",
            self.api(where, logo),
            self.api(where, f"non-default args: {arguments}"),
            self.api("model.py:1725", "Using max model len 49152"),
            self.api("model.py:1725", "Using max model len 262144"),
        ]

    def config(self) -> list[str]:
        drafts = (
            f"SpeculativeConfig(method='dflash', model='z-lab/d', num_spec_tokens={self.k})"
            if self.k
            else "None"
        )
        number = {"NONE": "0", "PIECEWISE": "1"}.get(self.mode, "(2, 1)")
        compilation = (
            "{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'compile_sizes': [], "
            f"'cudagraph_mode': <CUDAGraphMode.{self.mode}: {number}>, "
            f"'cudagraph_capture_sizes': {list(self.sizes)}, "
            f"'max_cudagraph_capture_size': {max(self.sizes, default=0)}}}"
        )
        settings = (
            f"model='some/model', speculative_config={drafts}, tokenizer='some/model', dtype=torch.bfloat16, "
            f"max_seq_len=49152, quantization=modelopt, enforce_eager=False, kv_cache_dtype={self.kv}, "
            f"enable_prefix_caching=True, compilation_config={compilation}"
        )
        line = f"Initializing a V1 LLM engine (v{self.dialect}.0) with config: {settings}"
        lines = [self.engine("core.py:114", line)]
        if self.runner == "v2":
            lines.append(self.engine("gpu_worker.py:331", "Using V2 Model Runner"))
        else:
            lines.append(self.engine("gpu_model_runner.py:5160", "Starting to load model some/model..."))
        potential = "['FLASHINFER', 'TRITON_ATTN']"
        return [
            *lines,
            self.engine("cuda.py:420", "Using AttentionBackendEnum.TRITON_ATTN backend."),
            self.engine(
                "cuda.py:480", f"Using FLASHINFER attention backend out of potential backends: {potential}."
            ),
            self.engine("selector.py:139", "Using HND KV cache layout for FLASHINFER backend."),
            self.engine("cuda.py:420", "Using AttentionBackendEnum.TRITON_ATTN backend."),
        ]

    def memory(self) -> list[str]:
        unit = "GiB" if self.runner == "v2" and self.dialect == "0.24" else "GiB memory"
        where = "model_runner.py:302" if self.runner == "v2" else "gpu_model_runner.py:5255"
        lines = [self.engine(where, f"Model loading took 17.94 {unit} and 95.386885 seconds")]
        if self.estimate and self.runner == "v1":
            lines += [
                self.engine(
                    "gpu_model_runner.py:6488",
                    f"Profiling CUDA graph memory: PIECEWISE={self.captured} (largest=64), FULL=9",
                ),
                self.engine(
                    "gpu_model_runner.py:6594", f"Estimated CUDA graph memory: {self.estimate} GiB total"
                ),
            ]
        lines += [
            self.engine("gpu_worker.py:508", "Available KV cache memory: 35.7 GiB"),
            self.engine(
                "gpu_worker.py:523",
                "CUDA graph memory profiling is enabled. The current --gpu-memory-utilization=0.7000 is "
                "equivalent to --gpu-memory-utilization=0.6914 without CUDA graph memory profiling.",
            ),
        ]
        if self.dialect == "0.24":
            return [
                *lines,
                self.engine("kv_cache_utils.py:2146", "GPU KV cache size: 547,729 tokens"),
                self.engine(
                    "kv_cache_utils.py:2147", "Maximum concurrency for 49,152 tokens per request: 11.14x"
                ),
            ]
        said = "GPU KV cache size: 547,729 tokens, Maximum concurrency for 49,152 tokens per request: 11.14x"
        return [*lines, self.engine("kv_cache_utils.py:1147", said)]

    def graphs(self) -> list[str]:
        lines = []
        if self.downgraded:
            lines.append(
                self.engine(
                    "compilation.py:1404",
                    f"CUDAGraphMode.{self.mode} is not supported with spec-decode for attention backend "
                    "FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); "
                    f"setting cudagraph_mode={self.downgraded}",
                    "WARNING",
                )
            )
        if self.captured:
            kind = "PIECEWISE" if self.runner == "v2" else "mixed prefill-decode, PIECEWISE"
            bar = f"Capturing CUDA graphs ({kind}): "
            count = self.captured
            steps = (
                f"   0%|          | 0/{count} [00:00<?, ?it/s]\r{bar}100%|████| {count}/{count} [00:01<00:00]"
            )
            where = "model_runner.py:726" if self.runner == "v2" else "gpu_model_runner.py:6662"
            lines += [
                f"(EngineCore pid=101) {bar}{steps}",
                self.engine(where, "Graph capturing finished in 2 secs, took 0.61 GiB"),
            ]
            if self.estimate:
                pool = f"CUDA graph pool memory: 0.6 GiB (actual), {self.estimate} GiB (estimated), …"
                lines.append(self.engine("gpu_worker.py:667", pool))
        return lines

    def end(self) -> list[str]:
        return [
            self.engine(
                "core.py:337",
                "init engine (profile, create kv cache, warmup model) took 135.67 s (compilation: 21.36 s)",
            ),
            self.api("api_server.py:581", "Starting vLLM server on http://127.0.0.1:8000"),
            "(APIServer pid=100) INFO:     Application startup complete.",
        ]
