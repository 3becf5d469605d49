#!/bin/sh
# Builds the guest agent: one static binary, the same bytes from the same sources and compiler.
# Usage: guest/build.sh [output file]   (default: build/guest/agent beside this folder)
set -eu
cd "$(dirname "$0")"
out="${1:-../build/guest/agent}"
mkdir -p "$(dirname "$out")"
export CGO_ENABLED=0 GOOS=linux GOARCH="${GOARCH:-amd64}" GOFLAGS=-mod=mod GOTOOLCHAIN=local GOWORK=off
go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o "$out.new" ./cmd/agent
mv "$out.new" "$out"
