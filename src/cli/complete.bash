# Completions of sparktune for bash:  source <(sparktune completions bash)
_sparktune() {
    local current=${COMP_WORDS[COMP_CWORD]} paths word about
    COMPREPLY=()
    [[ $current == '=' ]] && current=
    {
        read -r paths
        while IFS=$'\t' read -r word about; do
            # With file names among the words, readline quotes them all itself.
            [[ $paths == none ]] && printf -v word %q "$word"
            COMPREPLY+=("$word")
        done
    } < <("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    case $paths in
        files) about=-f ;;
        folders) about=-d ;;
        *) return ;;
    esac
    compopt -o filenames 2>/dev/null
    while read -r word; do COMPREPLY+=("$word"); done < <(compgen "$about" -- "$current")
}
complete -F _sparktune sparktune
