# Read by scripts that decode the texts of SmolLM2's page into the folder $out; MEETING=FILE adds a meeting's transcript.
longdraft fetch smollm2
mkdir -p "$out"
python -c "from pydoc_data.topics import topics; print('\n\n'.join(map(topics.get, sorted(topics))))" >"$out/documentation.txt"
meeting=${MEETING:-}
tasks=${TASKS-code book documentation ${meeting:+meeting}}

# text_of TASK COMMAND...: the command, with the options of `longdraft bench ...` that choose this text after its words.
text_of() {
    task=$1
    shift
    case $task in
    documentation) "$@" --prompt-file "$out/documentation.txt" --ask "What does the with statement do?" ;;
    meeting) "$@" --prompt-file "$meeting" --ask "Summarize this meeting." ;;
    *) "$@" --text "$task" ;;
    esac
}

# sampled_as HOW COMMAND...: the same for options that say how tokens are drawn: greedy, T0.7 or T1.
sampled_as() {
    how=$1
    shift
    case $how in
    greedy) "$@" --temperature 0 ;;
    T0.7) "$@" --temperature 0.7 --top-p 0.9 ;;
    T1) "$@" --temperature 1 ;;
    esac
}
