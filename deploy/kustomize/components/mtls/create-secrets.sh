#!/usr/bin/env bash
# usage: create-secrets.sh DIR NAMESPACE | kubectl apply --server-side -f -
# Prints the Secrets that the components mtls, workers-mtls and token mount, from what scripts/make-certs.sh wrote into DIR: a
# <role>-tls for each daemon and for workers (environment) and, if DIR has tokens, syncopate-token. Asks no cluster. The key
# of the authority and the certificates of people stay where they are.
set -euo pipefail

[ "$#" -eq 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
dir=$1 namespace=$2

secret() {
  echo ---
  kubectl create secret generic "$@" --namespace "$namespace" --dry-run=client --output yaml
}

for role in synchronizer trainer rollouter environment; do
  for file in "$dir/$role.crt" "$dir/$role.key" "$dir/ca.crt"; do
    [ -r "$file" ] || { echo "create-secrets: $file cannot be read; scripts/make-certs.sh $dir makes it" >&2; exit 1; }
  done
  secret "$role-tls" --from-file=tls.crt="$dir/$role.crt" --from-file=tls.key="$dir/$role.key" \
    --from-file=ca.crt="$dir/ca.crt"
done
[ ! -r "$dir/tokens" ] || secret syncopate-token --from-file=token="$dir/tokens"
