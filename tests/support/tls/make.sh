#!/bin/sh
# Makes the test certificates anew. The authorities' keys are thrown away: nothing more can be signed with them.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# `openssl ca` and not `x509`, which cannot say when a certificate begins: clocks of test machines may be late.
cat >"$work/ca.conf" <<END
[ca]
default_ca = tests
[tests]
database = $work/index
new_certs_dir = $work
default_md = sha256
policy = any
rand_serial = yes
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:false
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = \${ENV::NAMES}
END
: >"$work/index"
export NAMES=DNS:localhost

request() { # NAME KEY_FILE
    openssl ecparam -name prime256v1 -genkey -noout -out "$2"
    openssl req -new -key "$2" -subj "/CN=swift-tiers tests: $1" -out "$work/request"
}

sign() { # FILE END SECTION [MORE]
    file=$1 end=$2 section=$3
    shift 3
    openssl ca -batch -notext -config "$work/ca.conf" -in "$work/request" -out "$file" \
        -startdate 20200101000000Z -enddate "$end" -extensions "$section" "$@"
}

leaf() { # NAME SUBJECT_ALT_NAMES END
    request "$1" "$1.key"
    NAMES=$2 sign "$1.pem" "$3" leaf -cert authority.pem -keyfile "$work/authority.key"
}

for name in authority other-authority; do
    request "$name" "$work/$name.key"
    sign "$name.pem" 21200101000000Z authority -selfsign -keyfile "$work/$name.key"
done
leaf server DNS:localhost,IP:127.0.0.1 21200101000000Z
leaf elsewhere DNS:elsewhere.example 21200101000000Z
leaf client DNS:client.example 21200101000000Z
leaf expired DNS:localhost,IP:127.0.0.1 20200102000000Z
openssl ec -in client.key -aes128 -passout pass:planted-marker -out client-encrypted.key
