#compdef sparktune
# Completions of sparktune for zsh:  source <(sparktune completions zsh)
_sparktune() {
    local line word
    local -a lines offered
    lines=("${(@f)$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        word=${line%%$'\t'*}
        offered+=("${word//:/\\:}:${line#*$'\t'}")
    done
    (( $#offered )) && _describe -t values value offered
    case $lines[1] in
        files) _files ;;
        folders) _files -/ ;;
    esac
}
compdef _sparktune sparktune
