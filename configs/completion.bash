# SPDX-License-Identifier: MIT
# Completion of pcptune for bash; the output of `pcptune help --completion`.

_pcptune_names() { # the values of the key "name" on standard input
	grep -o '"name":"[^"]*"' | cut -d '"' -f 4
}
_pcptune_targets() {
	pcptune targets --json 2>/dev/null | _pcptune_names
}
_pcptune_policies() {
	pcptune policies --json 2>/dev/null | _pcptune_names
}
_pcptune() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local verb=${COMP_WORDS[1]} opts= kind=
	local verbs="run status targets log explain set unset advise apply revert policy policies counters check-config verify record trace curve eval simulate version help" limits="high= high_min= high_max= batch= scale_max= rules="

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W "$verbs --help --version" -- "$cur"))
		return
	fi
	case $verb in
	run) opts="--policy --set --json --min-size --max-size --db --private --quiet --help" ;;
	status) opts="--watch --count --socket --json --help" ;;
	targets) opts="--db --socket --json --help" ;;
	log) opts="--db --target --cpu --zone --policy --reason --since --tail --follow --events --policy-path --socket --json --help" ;;
	explain) opts="--db --policy-path --socket --json --help" ;;
	set) opts="--zone --cpu --socket --json --help" ;;
	unset) opts="--zone --cpu --socket --json --help" ;;
	advise) opts="--from --to --policy --set --db --policy-path --socket --json --help" ;;
	apply) opts="--db --socket --json --help" ;;
	revert) opts="--db --socket --json --help" ;;
	policy) opts="--socket --json --help" ;;
	policies) opts="--generations --markdown --policy-path --json --help" ;;
	counters) opts="--cpus --markdown --socket --json --help" ;;
	check-config) opts="--policy-path --json --help" ;;
	verify) opts="--db --socket --policy-path --json --help" ;;
	record) opts="--output --seconds --json --quiet --socket --help" ;;
	trace) opts="--output --json --help" ;;
	curve) opts="--trace --db --target --from --to --cpu --batch --svg --socket --json --help" ;;
	eval) opts="--trace --db --target --policy --set --budget --managed --partial --threads --policy-path --json --help" ;;
	simulate) opts="--workload --cpus --rows --set --budget --seeds --seed --published --policy-path --json --help" ;;
	version) opts="--socket --json --help" ;;
	help) opts="--completion --json --help" ;;
	esac
	case $verb:$prev in
	run:--policy | run:-p) kind=policy ;;
	run:--set) kind=none ;;
	run:--json | run:-j) kind=file ;;
	run:--min-size) kind=none ;;
	run:--max-size) kind=none ;;
	run:--db | run:-d) kind=file ;;
	status:--count | status:-n) kind=none ;;
	status:--socket | status:-s) kind=file ;;
	targets:--db | targets:-d) kind=file ;;
	targets:--socket | targets:-s) kind=file ;;
	log:--db | log:-d) kind=file ;;
	log:--target | log:-t) kind=none ;;
	log:--cpu | log:-c) kind=none ;;
	log:--zone | log:-z) kind=none ;;
	log:--policy | log:-p) kind=policy ;;
	log:--reason | log:-r) kind=none ;;
	log:--since | log:-S) kind=none ;;
	log:--tail | log:-n) kind=none ;;
	log:--policy-path) kind=directory ;;
	log:--socket | log:-s) kind=file ;;
	explain:--db | explain:-d) kind=file ;;
	explain:--policy-path) kind=directory ;;
	explain:--socket | explain:-s) kind=file ;;
	set:--zone | set:-z) kind=none ;;
	set:--cpu | set:-c) kind=none ;;
	set:--socket | set:-s) kind=file ;;
	unset:--zone | unset:-z) kind=none ;;
	unset:--cpu | unset:-c) kind=none ;;
	unset:--socket | unset:-s) kind=file ;;
	advise:--from) kind=none ;;
	advise:--to) kind=none ;;
	advise:--policy | advise:-p) kind=policy ;;
	advise:--set) kind=none ;;
	advise:--db | advise:-d) kind=file ;;
	advise:--policy-path) kind=directory ;;
	advise:--socket | advise:-s) kind=file ;;
	apply:--db | apply:-d) kind=file ;;
	apply:--socket | apply:-s) kind=file ;;
	revert:--db | revert:-d) kind=file ;;
	revert:--socket | revert:-s) kind=file ;;
	policy:--socket | policy:-s) kind=file ;;
	policies:--policy-path) kind=directory ;;
	counters:--socket | counters:-s) kind=file ;;
	check-config:--policy-path) kind=directory ;;
	verify:--db | verify:-d) kind=file ;;
	verify:--socket | verify:-s) kind=file ;;
	verify:--policy-path) kind=directory ;;
	record:--output | record:-o) kind=file ;;
	record:--seconds | record:-n) kind=none ;;
	record:--json | record:-j) kind=file ;;
	record:--socket | record:-s) kind=file ;;
	trace:--output | trace:-o) kind=file ;;
	curve:--trace | curve:-t) kind=file ;;
	curve:--db | curve:-d) kind=file ;;
	curve:--target) kind=none ;;
	curve:--from) kind=none ;;
	curve:--to) kind=none ;;
	curve:--cpu | curve:-c) kind=none ;;
	curve:--batch | curve:-b) kind=none ;;
	curve:--svg) kind=file ;;
	curve:--socket | curve:-s) kind=file ;;
	eval:--trace | eval:-t) kind=file ;;
	eval:--db | eval:-d) kind=file ;;
	eval:--target) kind=none ;;
	eval:--policy | eval:-p) kind=policy ;;
	eval:--set) kind=none ;;
	eval:--budget | eval:-b) kind=none ;;
	eval:--managed | eval:-m) kind=none ;;
	eval:--threads) kind=none ;;
	eval:--policy-path) kind=directory ;;
	simulate:--workload | simulate:-w) kind=none ;;
	simulate:--cpus | simulate:-c) kind=none ;;
	simulate:--rows | simulate:-r) kind=none ;;
	simulate:--set) kind=none ;;
	simulate:--budget | simulate:-b) kind=none ;;
	simulate:--seeds | simulate:-n) kind=none ;;
	simulate:--seed | simulate:-s) kind=none ;;
	simulate:--policy-path) kind=directory ;;
	simulate:--json | simulate:-j) kind=file ;;
	version:--socket | version:-s) kind=file ;;
	esac
	case $kind in
	file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	directory) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	policy) COMPREPLY=($(compgen -W "$(_pcptune_policies)" -- "$cur")); return ;;
	none) return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W "$opts" -- "$cur"))
		return
	fi
	case $verb in
	run) COMPREPLY=($(compgen -c -- "$cur")) ;;
	record)
		if [[ " ${COMP_WORDS[*]} " == *" -- "* ]]; then
			COMPREPLY=($(compgen -c -- "$cur"))
		else
			COMPREPLY=($(compgen -W "$(_pcptune_targets)" -- "$cur"))
		fi ;;
	set)
		if ((COMP_CWORD == 2)); then
			COMPREPLY=($(compgen -W "$(_pcptune_targets)" -- "$cur"))
		else
			COMPREPLY=($(compgen -W "$limits" -- "$cur"))
			compopt -o nospace 2>/dev/null
		fi ;;
	policy)
		if ((COMP_CWORD == 2)); then
			COMPREPLY=($(compgen -W "$(_pcptune_targets)" -- "$cur"))
		else
			COMPREPLY=($(compgen -W "$(_pcptune_policies)" -- "$cur"))
		fi ;;
	status | unset | advise | counters)
		COMPREPLY=($(compgen -W "$(_pcptune_targets)" -- "$cur")) ;;
	policies) COMPREPLY=($(compgen -W "$(_pcptune_policies)" -- "$cur")) ;;
	trace)
		if ((COMP_CWORD == 2)); then
			COMPREPLY=($(compgen -W "import export info" -- "$cur"))
		else
			COMPREPLY=($(compgen -f -- "$cur"))
		fi ;;
	check-config) COMPREPLY=($(compgen -f -- "$cur")) ;;
	help) COMPREPLY=($(compgen -W "$verbs" -- "$cur")) ;;
	esac
}
complete -o filenames -F _pcptune pcptune
