#!/usr/bin/env bash
# usage: deploy/kustomize/components/monitoring/wrap-rules.sh
# Prints prometheus-rules.yaml: the files of deploy/prometheus/rules, each as a PrometheusRule of the operator.
set -euo pipefail
cd "$(dirname "$0")/../../../prometheus/rules"

echo "# Written by wrap-rules.sh from deploy/prometheus/rules; change those."
for file in *.yaml; do
  cat << HEADER
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: syncopate-${file%.yaml}
  labels:
    app.kubernetes.io/name: syncopate
    app.kubernetes.io/instance: syncopate
spec:
HEADER
  grep -v '^#' "$file" | sed 's/^\(.\)/  \1/'
done
