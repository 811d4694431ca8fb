# shellcheck shell=bash
# Bash's part: what is offered, as bash wants it. It cuts words at COMP_WORDBREAKS, so the line is cut anew, and of
# replies only what follows the last break is given. PROGRAM is the program's name.
_syncopate() {
  local candidates='' files='' unfinished='' current='' line=${COMP_LINE:0:COMP_POINT} typed=() found=()
  read -ra typed <<<"$line"
  case $line in
    *[[:space:]]) ;;
    *) current=${typed[-1]} && unset 'typed[-1]' ;;
  esac
  _syncopate_candidates "$current" "${typed[@]:1}"
  case $files in
    file) mapfile -t found < <(compgen -f -- "$current") ;;
    folder) mapfile -t found < <(compgen -d -- "$current") ;;
  esac
  if [ -n "$files" ]; then compopt -o filenames 2>/dev/null; fi
  if [ -n "$unfinished" ]; then compopt -o nospace 2>/dev/null; fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$current")
  if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}"); fi
  COMPREPLY+=("${found[@]}")
}
complete -F _syncopate PROGRAM
