# Names of the running server, where a command takes one.
functions[_evenkeel_words]=$functions[_evenkeel]
_evenkeel() {
    local kind=""
    case "$words[CURRENT-1]" in
        --tenant) kind=tenants ;;
        --pool) kind=pools ;;
        *)
            case "$CURRENT $words[2] $words[3]" in
                "4 tenant show" | "4 tenant set" | "4 tenant remove" | "3 why "*) kind=tenants ;;
                "4 pool show" | "4 pool set" | "4 pool remove") kind=pools ;;
                "4 volume show" | "4 volume set" | "4 volume grow" | "4 volume remove") kind=volumes ;;
            esac
            ;;
    esac
    if [[ -n "$kind" && "$PREFIX" != -* ]]; then
        compadd -- ${(f)"$(evenkeel names "$kind" 2>/dev/null)"}
        return
    fi
    _evenkeel_words "$@"
}

