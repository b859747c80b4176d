#!/bin/sh
# The first process of a container that `run.sh --docker` starts. The container ends when this process ends. sparktune is
# started with `exec` and ends when the user leaves its screen, while the trainer that it started goes on. Therefore this
# process waits until it is the only one left.

alone() {
    set -- /proc/[0-9]*
    [ $# -le 1 ]
}

# `docker stop` and shutdown send SIGTERM: the trainer then saves a checkpoint and ends.
trap 'kill -s TERM -- -1' TERM

# sparktune writes its process id into this file when it starts. Gives up after a minute.
waited=0
while [ ! -e /dev/shm/sparktune.pid ] && [ $waited -lt 60 ]; do
    sleep 1
    waited=$((waited + 1))
done
until alone; do
    sleep 1
done
