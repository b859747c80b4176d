#!/bin/sh
# The first process of a container that `run.sh --docker` starts, and so the one whose end ends the container. sparktune
# comes in by `exec`, leaves when its screen is left, and the trainer it started stays: the container lives as long as
# anything in it does.

alone() {
    set -- /proc/[0-9]*
    [ $# -le 1 ]
}

# `docker stop`, or the machine goes down: the trainer saves a checkpoint and ends.
trap 'kill -s TERM -- -1' TERM

# sparktune writes its number there as it comes in: within a minute, or it never will.
waited=0
while [ ! -e /dev/shm/sparktune.pid ] && [ $waited -lt 60 ]; do
    sleep 1
    waited=$((waited + 1))
done
until alone; do
    sleep 1
done
