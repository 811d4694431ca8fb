#!/usr/bin/env bash
# Makes a certificate authority and a certificate for each role, for runs over mutual TLS (docs/security.md), where no
# cert-manager does that. What is there stays: certificates are renewed in place only when they are about to end, or with
# --renew, so it may be run from cron; daemons notice new files by themselves.
#
#   scripts/make-certs.sh DIR [--trust-domain NAME] [--days N] [--roles "trainer rollouter"] [--renew] [--tokens]
#
# DIR/ca.crt         what everybody trusts (security.tls_ca)
# DIR/ca.key         signs certificates: keep it away from daemons, best off the machine
# DIR/<role>.crt     a certificate of 30 days for each role, with the name spiffe://<trust domain>/role/<role>
# DIR/<role>.key     its private key
# DIR/tokens         with --tokens: a bearer token for each role (security.token_file)
set -euo pipefail

trust_domain=syncopate
days=30
ca_days=3650
roles="trainer rollouter synchronizer admin viewer client environment"
renew=false
tokens=false
dir=

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
}
fail() {
  echo "make-certs: $*" >&2
  exit 1
}

while (($#)); do
  case $1 in
    --trust-domain) trust_domain=${2:?a name must follow --trust-domain}; shift ;;
    --days) days=${2:?a number must follow --days}; shift ;;
    --roles) roles=${2:?roles must follow --roles}; shift ;;
    --renew) renew=true ;;
    --tokens) tokens=true ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option $1; see --help" ;;
    *) [[ -z $dir ]] || fail "one folder, not two: $dir and $1"; dir=$1 ;;
  esac
  shift
done
[[ -n $dir ]] || { usage >&2; exit 1; }
[[ $days =~ ^[1-9][0-9]*$ ]] || fail "--days takes a number from 1, not $days"
[[ $trust_domain =~ ^[a-z0-9.-]{1,253}$ ]] || fail "a trust domain is made of a-z, 0-9, '.' and '-', not $trust_domain"
for role in $roles; do
  [[ $role =~ ^(trainer|rollouter|synchronizer|admin|viewer|client|environment)$ ]] || fail "$role is no role"
done
command -v openssl > /dev/null || fail "openssl is not installed"

umask 077
mkdir -p "$dir"
work=$(mktemp -d "$dir/.new-XXXXXX")
trap 'rm -rf "$work"' EXIT

new_key() {
  openssl ecparam -genkey -name prime256v1 -noout -out "$1"
}

# A certificate that is there, fits the authority and does not end within a third of its life is left alone.
is_good() {
  ! $renew && [[ -s $dir/$1.crt && -s $dir/$1.key ]] &&
    openssl x509 -in "$dir/$1.crt" -noout -checkend $((days * 86400 / 3)) > /dev/null &&
    openssl verify -CAfile "$dir/ca.crt" "$dir/$1.crt" > /dev/null 2>&1
}

if [[ ! -s $dir/ca.key || ! -s $dir/ca.crt ]]; then
  new_key "$work/ca.key"
  openssl req -x509 -new -key "$work/ca.key" -sha256 -days $ca_days -subj "/O=$trust_domain/CN=authority" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -out "$work/ca.crt"
  chmod 0400 "$work/ca.key"
  chmod 0444 "$work/ca.crt"
  mv -f "$work/ca.key" "$work/ca.crt" "$dir/"
  echo "made the authority $dir/ca.crt; keep $dir/ca.key safe"
fi

for role in $roles; do
  is_good "$role" && continue
  new_key "$work/$role.key"
  openssl req -new -key "$work/$role.key" -subj "/O=$trust_domain/CN=$role" -out "$work/$role.csr"
  # The DNS name is for clients that cannot do without one; daemons and ctl look at the URI alone.
  printf '%s\n' "subjectAltName=URI:spiffe://$trust_domain/role/$role,DNS:$role" "basicConstraints=critical,CA:FALSE" \
    "keyUsage=critical,digitalSignature" "extendedKeyUsage=serverAuth,clientAuth" > "$work/$role.ext"
  openssl x509 -req -in "$work/$role.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -sha256 -days "$days" -extfile "$work/$role.ext" -out "$work/$role.crt" 2> /dev/null ||
    fail "openssl could not sign the certificate of $role"
  chmod 0400 "$work/$role.key"
  chmod 0444 "$work/$role.crt"
  mv -f "$work/$role.key" "$work/$role.crt" "$dir/"
  echo "made $dir/$role.crt, valid for $days days"
done

if $tokens && [[ ! -s $dir/tokens ]]; then
  for role in $roles; do
    echo "$role $(openssl rand -hex 32)"
  done > "$work/tokens"
  chmod 0400 "$work/tokens"
  mv -f "$work/tokens" "$dir/"
  echo "made $dir/tokens"
fi
