
# Names of the running server, where a command takes one.
_evenkeel_named() {
    local kind="" word="${COMP_WORDS[COMP_CWORD]}"
    case "${COMP_WORDS[COMP_CWORD-1]}" in
        --tenant) kind=tenants ;;
        --pool) kind=pools ;;
        *)
            case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
                "3 tenant show" | "3 tenant set" | "3 tenant remove" | "2 why "*) kind=tenants ;;
                "3 pool show" | "3 pool set" | "3 pool remove") kind=pools ;;
                "3 volume show" | "3 volume set" | "3 volume grow" | "3 volume remove") kind=volumes ;;
            esac
            ;;
    esac
    if [[ -n "$kind" && "$word" != -* ]]; then
        COMPREPLY=($(compgen -W "$(evenkeel names "$kind" 2>/dev/null)" -- "$word"))
        return 0
    fi
    _evenkeel "$@"
}

complete -F _evenkeel_named -o bashdefault -o default evenkeel
