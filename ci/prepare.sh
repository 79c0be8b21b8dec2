#!/usr/bin/env bash
# Install what the tests need beside Python: the C++ compiler for the wheel's other architecture, an SSH server,
# and nginx, which stands for a shared store.
# Tests that lack one are skipped, which suits a contributor's machine but not continuous integration.
set -euo pipefail
packages=()
if [ "$(uname -m)" != aarch64 ] && ! command -v aarch64-linux-gnu-g++ >/dev/null; then
    packages+=(g++-aarch64-linux-gnu libc6-dev-arm64-cross)
fi
[ -x /usr/sbin/sshd ] || packages+=(openssh-server)
[ -x /usr/sbin/nginx ] || packages+=(nginx-light)
if [ ${#packages[@]} -gt 0 ]; then
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    $as_root apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
fi
