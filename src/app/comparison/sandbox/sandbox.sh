# Runs a program with Python where it can reach no network, no process and no file of this machine but Python
# itself, all read-only. `unshare` has started this as the only process of its namespaces.
#
#   sh -c SCRIPT sandbox PYTHON SECONDS PROGRAM
set -eu
python=$1 seconds=$2 program=$3
mount -t tmpfs -o size=64m,mode=755,nosuid,nodev tmpfs /tmp
cd /tmp
mkdir old work dev proc
for name in usr bin sbin lib lib32 lib64; do
    if [ -L "/$name" ]; then
        cp -P "/$name" "$name"
    elif [ -d "/$name" ]; then
        mkdir "$name"
        mount --rbind "/$name" "$name"
        mount -o remount,bind,ro "$name"
        # What is mounted below it, such as /usr/local, keeps its own flags, to which this adds one.
        while read -r _ _ _ _ point flags _; do
            case $point in
                "$PWD/$name"/*) mount -o "remount,bind,$flags,ro" "$point" ;;
            esac
        done < /proc/self/mountinfo
    fi
done
: > dev/null
mount --bind /dev/null dev/null
# `umount` reads /proc, so that goes last.
mount --rbind /proc proc
pivot_root . old
umount -l /old
umount -l /proc
rmdir /old /proc
cd /work
exec prlimit --as=1073741824 --cpu="$seconds" --fsize=16777216 --nproc=8 --nofile=64 --core=0 \
    setpriv --no-new-privs --bounding-set=-all --inh-caps=-all \
    env -i HOME=/work TMPDIR=/work PATH=/usr/bin:/bin LANG=C.UTF-8 "$python" -I -c "$program"
