#!/bin/sh
# Builds hostd or voltree: one static binary, the same bytes from the same sources and compiler.
# Usage: host/build.sh [output file]   (default: build/host/hostd beside this folder; its name says which). GOARCH: amd64 or arm64.
set -eu
cd "$(dirname "$0")"
out="${1:-../build/host/hostd}"
mkdir -p "$(dirname "$out")"
export CGO_ENABLED=0 GOOS=linux GOARCH="${GOARCH:-amd64}" GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off
go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o "$out.new" "./cmd/$(basename "$out")"
mv "$out.new" "$out"
