# Read by the other shell scripts, which take one word or none: --help prints the comment that a script begins with, and
# a mistake is one line and status 2.
case ${1:-} in
-h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
-*)
    echo "$(basename "$0"): there is no option $1; --help shows how it is used" >&2
    exit 2
    ;;
esac
if [ $# -gt 1 ]; then
    echo "$(basename "$0"): $2 is one word too many; --help shows how it is used" >&2
    exit 2
fi
