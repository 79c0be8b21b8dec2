"""The compose file for a served recipe, for hosts that have Docker or Podman."""

from __future__ import annotations

import json

from sparkwright.serve.service.model import ServiceOptions, ServicePlaces

_RECIPE = "/etc/sparkwright/recipe.toml"
_TEXT = """\
# vLLM serving {recipe}, started and watched by sparkwright inside the container.
# docker compose -f {path} up -d
name: {project}
services:
  server:
    image: {image}
    # The owner of the file with the key; the image takes any user.
    user: {user}
    restart: unless-stopped
    environment:
      RECIPE: {recipe_word}
{more}      API_KEY_FILE: /run/secrets/api_key
      HOST: 0.0.0.0
      PORT: "8000"
    env_file:
      - path: {variables}
        required: false
    secrets:
      - source: api_key
    ports:
      - {ports}
    volumes:
      - type: volume
        source: store
        target: /var/lib/sparkwright
      - type: {models_type}
        source: {models}
        target: /models
{recipe_volume}    # Workers share memory with each other, and pinned memory may not be limited.
    ipc: host
    ulimits:
      memlock: -1
      stack: 67108864
    # GPU and host share one memory: when it runs out, this ends before the host's own services do.
    oom_score_adj: 500
    pids_limit: 8192
    cap_drop:
      - ALL
    security_opt:
      - no-new-privileges:true
    stop_grace_period: 90s
    healthcheck:
      test: ["CMD", "python", "-m", "sparkwright.serve.health"]
      interval: 30s
      timeout: 10s
      retries: 3
      # A boot has a limit of its own, which leaves out the download of a model; this one must not be shorter.
      start_period: 12h
    logging:
      driver: json-file
      options:
        max-size: 50m
        max-file: "5"
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
secrets:
  api_key:
    file: {key}
volumes:
  store: {{}}
{models_volume}"""


def compose_text(options: ServiceOptions, places: ServicePlaces) -> str:
    """Return the compose file's text; every word from outside is quoted as YAML and not expanded."""
    more = f"      USE: {_word(options.use)}\n" if options.use else ""
    if options.settings:
        more += f"      SETTINGS: {_word(json.dumps(options.settings))}\n"
    if options.offline:
        more += '      HF_HUB_OFFLINE: "1"\n'
    own = options.recipe.startswith("/")  # a file of the user's, which the container has to be shown
    volume = f"      - type: bind\n        source: {_word(options.recipe)}\n        target: {_RECIPE}\n"
    return _TEXT.format(
        recipe_volume=volume + "        read_only: true\n" if own else "",
        recipe=options.recipe,
        path=places.compose,
        project=f"sparkwright-{options.name.replace('.', '-')}",
        image=_word(options.image),
        user=_word(f"{options.uid}:{options.uid}"),
        recipe_word=_word(_RECIPE if own else options.recipe),
        more=more,
        variables=_word(str(places.variables)),
        ports=_word(f"{_address(options.host)}:{options.port}:8000"),
        models_type="bind" if options.models else "volume",
        models=_word(options.models or "models"),
        key=_word(str(places.key)),
        models_volume="" if options.models else "  models: {}\n",
    )


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _word(text: str) -> str:
    """Return *text* as a quoted scalar; compose expands ``$``, which is doubled."""
    return json.dumps(text.replace("$", "$$"))
