# shellcheck shell=bash
# What is offered for a word, from tables that `syncopate completion` puts in front: _syncopate_keys,
# _syncopate_command, _syncopate_value, _syncopate_key_values. Works in bash and in zsh.
# shellcheck disable=SC2154  # what the tables set: flags, operands
# shellcheck disable=SC2034  # what the callers read: files, unfinished

# Finds what the word under the cursor, $1, may be after the words before it, $2 and on. Sets `candidates` (whole
# words), `files` ("", "file" or "folder") and `unfinished` (not empty: the candidates are to be typed on).
_syncopate_candidates() {
  local current=$1 command='' position=0 value='' subcommands flags operands word
  shift
  for word; do
    if [ -n "$value" ]; then
      value=''
      continue
    fi
    case $word in
      --*=*) ;;
      -*) _syncopate_value "$command" "$word" ;;
      *)
        _syncopate_command "$command"
        case " $subcommands " in
          *" $word "*) command=${command:+$command }$word position=0 ;;
          *) position=$((position + 1)) ;;
        esac
        ;;
    esac
  done
  _syncopate_command "$command"
  if [ -z "$value" ]; then
    case $current in
      -*) candidates=$flags; return ;;
    esac
    if [ "$position" -eq 0 ]; then candidates=$subcommands; fi
    for word in $operands; do
      value=${word%...}
      if [ "$position" -eq 0 ] || [ "$value" != "$word" ]; then break; fi
      value='' position=$((position - 1))
    done
  fi
  case $value in
    file | folder) files=$value ;;
    'file|setting')
      files='file'
      if [ -n "$current" ]; then _syncopate_settings "$current"; fi
      ;;
    setting) _syncopate_settings "$current" ;;
    one_of:*) value=${value#one_of:} candidates="$candidates ${value//,/ }" ;;
  esac
}

_syncopate_settings() {
  local key=${1%%=*} values='' word
  if [ "$key" = "$1" ]; then
    candidates="$candidates $_syncopate_keys" unfinished=yes
    return
  fi
  _syncopate_key_values "$key"
  for word in $values; do candidates="$candidates $key=$word"; done
}
