# Completions of sparktune for fish:  sparktune completions fish | source
function __sparktune_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] complete -- $words[2..-1] "$current" 2>/dev/null)
    printf '%s\n' $lines[2..-1]
    switch "$lines[1]"
        case files
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current"
    end
end
complete -c sparktune -f -a '(__sparktune_complete)'
