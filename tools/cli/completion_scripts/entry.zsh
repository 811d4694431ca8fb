# zsh's part: the tables are read as a Bourne shell would, the candidates are given as zsh wants them. PROGRAM is the
# program's name.
_syncopate_in_sh() {
  emulate -L sh
  _syncopate_candidates "$@"
}

_syncopate() {
  local candidates='' files='' unfinished=''
  _syncopate_in_sh "${words[CURRENT]}" "${(@)words[2,CURRENT-1]}"
  case $files in
    file) _files ;;
    folder) _files -/ ;;
  esac
  if [[ -n $unfinished ]]; then
    compadd -S '' -- ${=candidates}
  else
    compadd -- ${=candidates}
  fi
}

if [ "${funcstack[1]}" = _syncopate ]; then
  _syncopate "$@"
else
  compdef _syncopate PROGRAM
fi
