#!/bin/sh
# Captures the vectors of one server again. The server must run with wal_level=logical.
#
#   PGHOST=... PGPORT=... PGUSER=postgres ./capture.sh
#
# Drops and creates the database trellara_vectors on it, once per scenario.
set -eu
cd "$(dirname "$0")"
version=$(psql -XAtqc "SELECT current_setting('server_version_num')::int / 10000" postgres)
mkdir -p "$version"
for scenario in scenarios/*.sql; do
    name=$(basename "$scenario" .sql)
    psql -Xqc 'DROP DATABASE IF EXISTS trellara_vectors' postgres
    psql -Xqc 'CREATE DATABASE trellara_vectors' postgres
    psql -Xqo /dev/null -v ON_ERROR_STOP=1 -v out="$version/$name.hex" -f "$scenario" trellara_vectors
done
psql -Xqc 'DROP DATABASE trellara_vectors' postgres
