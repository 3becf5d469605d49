#!/bin/sh
# Builds storemount, which mounts object stores in guests: one static binary, the same bytes from the same sources and compiler.
# Usage: guest/storemount/build.sh [output file]   (default: build/guest/storemount beside guest/)
set -eu
cd "$(dirname "$0")"
out="${1:-../../build/guest/storemount}"
mkdir -p "$(dirname "$out")"
export CGO_ENABLED=0 GOOS=linux GOARCH="${GOARCH:-amd64}" GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off
go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o "$out.new" .
mv "$out.new" "$out"
