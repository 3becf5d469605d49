#!/bin/sh
# Prints the Secret of a release (values: secretName), with new keys each time: keep it, apart from backups of the database.
#
#   sh make-secrets.sh | kubectl -n releap apply -f -
set -eu

token() { openssl rand -hex 32; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ssh-keygen -q -t ed25519 -N '' -C releap -f "$folder/key"
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
cat <<SECRET
apiVersion: v1
kind: Secret
metadata:
  name: ${1:-releap}
stringData:
  operator-token: $(token)
  metrics-token: $(token)
  gateway-token: $(token)
  keys.json: |
    {"keys": [{"id": "${now%%T*}-$(openssl rand -hex 4)", "created_at": "$now", "key": "$(openssl rand -base64 32)"}]}
  ssh_host_ed25519_key: |
$(sed 's/^/    /' "$folder/key")
SECRET
