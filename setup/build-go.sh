#!/bin/sh
# Builds a Go program of this repository: one static binary, the same bytes from the same sources and compiler.
# Usage: setup/build-go.sh FOLDER OUTPUT   (FOLDER of the package, as guest/cmd/agent). GOARCH: amd64 or arm64.
set -eu
out=$(realpath -m "$2")
mkdir -p "$(dirname "$out")"
cd "$(dirname "$0")/../$1"
export CGO_ENABLED=0 GOOS=linux GOARCH="${GOARCH:-amd64}" GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off
go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o "$out.new" .
mv "$out.new" "$out"
